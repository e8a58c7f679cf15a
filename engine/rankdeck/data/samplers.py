"""Assigns samples to steps, microsteps and ranks: a step has the same samples for every number of ranks.

Each epoch's permutation is derived from (seed, epoch); with data.order = "given" it is the data set's own
order in every epoch. Step t of an epoch takes its slice of global_batch samples, divided into `accumulate`
microsteps, and each microstep is divided among the data ranks:

    permutation   |------- step 0 -------|------- step 1 -------| ... tail
    step          |- micro 0 --|- micro 1 --|
    microstep     | rank 0 | rank 1 | ... |

All slices are contiguous, so the samples of all ranks together are the same for any number of ranks. The
tail, too short for a step, is dropped (data.last = "drop") or becomes a shorter step that is divided the same
way ("keep"): the sizes of microsteps and of rank shares then differ by at most one sample, and a rank with an
empty share reads a padding sample that does not count. Read loader.py next.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rankdeck.data.base import SampleKey


def epoch_order(num_samples: int, seed: int, epoch: int) -> Tensor:
    """Return the permutation (num_samples,) of one epoch without touching global random state."""
    digest = hashlib.blake2b(f"{seed}:{epoch}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest) >> 1)
    return torch.randperm(num_samples, generator=generator)


@dataclass(frozen=True)
class EpochLayout:
    """Division of each epoch's samples into steps."""

    num_samples: int
    global_batch: int
    keep_last: bool = False

    @property
    def num_tail(self) -> int:
        """Number of samples after the last full step."""
        return self.num_samples % self.global_batch

    @functools.cached_property
    def steps(self) -> int:
        return self.num_samples // self.global_batch + (self.keep_last and self.num_tail > 0)

    @property
    def num_dropped(self) -> int:
        """Number of samples per epoch that no step uses."""
        return 0 if self.keep_last else self.num_tail

    def step_samples(self, step: int) -> int:
        """Return the number of samples in step `step` of the run; steps are counted from 0."""
        return min(self.global_batch, self.num_samples - step % self.steps * self.global_batch)


def shard_range(num: int, index: int, count: int) -> range:
    """Return shard `index` of `num` items that are divided into `count` contiguous shards; the first shards
    take the remainder."""
    base, more = divmod(num, count)
    start = index * base + min(index, more)
    return range(start, start + base + (index < more))


def local_range(num: int, microstep_index: int, accumulate: int, shard_index: int, shard_count: int) -> range:
    """Return the range of positions, within a step of `num` samples, that one rank reads in microstep
    `microstep_index`; the range can be empty."""
    # A shorter last step is cut into microsteps first, then ranks, so a microstep is the same for every
    # number of ranks. Cut like a full step, it would leave ranks without a sample.
    microstep = shard_range(num, microstep_index, accumulate)
    local = shard_range(len(microstep), shard_index, shard_count)
    return range(microstep.start + local.start, microstep.start + local.stop)


# Every rank gets the same number of batches, so torch's Join is not needed. Batches may hold different
# numbers of targets, because losses are sums with counts.
class TrainBatchSampler:
    """Batch sampler for training: yields this rank's samples for each microstep, in order from `start_step`.

    If `keep_last` is True, the last step of an epoch may be shorter; a rank that has no share of that step
    gets one sample as padding. If `keep_order` is True, every epoch has the data set's order.
    """

    def __init__(
        self,
        num_samples: int,
        global_batch: int,
        *,
        accumulate: int = 1,
        shard_index: int = 0,
        shard_count: int = 1,
        seed: int = 0,
        steps: int,
        start_step: int = 0,
        keep_last: bool = False,
        keep_order: bool = False,
    ) -> None:
        assert 0 <= shard_index < shard_count and 0 <= start_step <= steps
        assert num_samples >= global_batch and global_batch % (accumulate * shard_count) == 0
        self.epochs, self.accumulate = EpochLayout(num_samples, global_batch, keep_last), accumulate
        self.shard_index, self.shard_count = shard_index, shard_count
        self.seed, self.steps, self.start_step = seed, steps, start_step
        self.keep_order = keep_order

    def __len__(self) -> int:
        return (self.steps - self.start_step) * self.accumulate

    def __iter__(self) -> Iterator[list[SampleKey]]:
        for epoch, samples in self._iter_microsteps():
            yield [SampleKey(self.seed, epoch, index) for index in samples.tolist()]

    def index_tensors(self) -> Iterator[Tensor]:
        """Yield the sample indices as tensors, for data in memory."""
        return (samples for _, samples in self._iter_microsteps())

    def _iter_microsteps(self) -> Iterator[tuple[int, Tensor]]:
        """Yield (epoch, this rank's sample indices) for every microstep; the index tensors are views of the
        epoch's order."""
        epochs, accumulate = self.epochs, self.accumulate
        steps_per_epoch = epochs.steps
        full_ranges = [self._local_range(epochs.global_batch, microstep) for microstep in range(accumulate)]
        ordered_epoch, order = -1, torch.empty(0)
        for step in range(self.start_step, self.steps):
            epoch, index = divmod(step, steps_per_epoch)
            if epoch != ordered_epoch:
                order, ordered_epoch = self._order(epoch), epoch
            first, num = index * epochs.global_batch, epochs.step_samples(step)
            for microstep in range(accumulate):
                local = (
                    full_ranges[microstep]
                    if num == epochs.global_batch
                    else self._local_range(num, microstep)
                )
                # A rank with an empty share reads one sample as padding.
                yield epoch, order[first + local.start : first + local.stop] if local else order[-1:]

    def _order(self, epoch: int) -> Tensor:
        num_samples = self.epochs.num_samples
        return torch.arange(num_samples) if self.keep_order else epoch_order(num_samples, self.seed, epoch)

    def _local_range(self, num: int, microstep: int) -> range:
        return local_range(num, microstep, self.accumulate, self.shard_index, self.shard_count)


class HeldoutBatchSampler:
    """Batch sampler for evaluation: all ranks together yield each held-out sample once, and every rank yields
    the same number of batches.

    `valid_counts()` returns how many of the samples in each batch are counted. A padding batch (count 0)
    contains the last held-out sample, so that a rank without a share still takes part in the forward pass.
    """

    def __init__(
        self,
        num_samples: int,
        global_batch: int,
        *,
        shard_index: int = 0,
        shard_count: int = 1,
    ) -> None:
        assert num_samples > 0 and 0 <= shard_index < shard_count and global_batch % shard_count == 0
        self.num_samples, self.global_batch = num_samples, global_batch
        self.shard_index = shard_index
        self.local_batch = global_batch // shard_count

    def __len__(self) -> int:
        return -(-self.num_samples // self.global_batch)

    def __iter__(self) -> Iterator[list[SampleKey]]:
        last = self.num_samples - 1
        for start, num_valid in zip(self._starts(), self.valid_counts(), strict=True):
            first = min(start, last)
            yield [SampleKey(0, 0, index) for index in range(first, first + max(num_valid, 1))]

    def valid_counts(self) -> list[int]:
        """Return the number of samples that count in each of this rank's batches; 0 marks a padding batch."""
        return [max(0, min(self.local_batch, self.num_samples - start)) for start in self._starts()]

    def _starts(self) -> range:
        first = self.shard_index * self.local_batch
        return range(first, first + len(self) * self.global_batch, self.global_batch)
