"""Who gets which sample, when: the same samples per step for every number of ranks.

One permutation per epoch follows from (seed, epoch); with data.order = "given" it is the data set's own order
in every epoch. Step t of an epoch takes its slice of global_batch
samples, cut into `accumulate` parts, each part cut among the data ranks:

    permutation   |------- step 0 -------|------- step 1 -------| ... tail
    step          |-- part 0 --|-- part 1 --|
    part          | rank 0 | rank 1 | ... |

All cuts are contiguous, so the union over ranks is the same whatever their number. The tail, too short for a
step, is dropped (data.last = "drop"), or is a shorter step that is cut the same way ("keep"): parts and ranks
then differ by a sample at most, and one whose share is empty reads a sample that counts nothing. Read
loader.py next.
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
    """The permutation (num_samples,) of one epoch; touches no global random state."""
    digest = hashlib.blake2b(f"{seed}:{epoch}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest) >> 1)
    return torch.randperm(num_samples, generator=generator)


@dataclass(frozen=True)
class EpochLayout:
    """How the samples of each epoch are cut into steps."""

    num_samples: int
    global_batch: int
    keep_last: bool = False

    @property
    def num_tail(self) -> int:
        """How many samples are behind the last whole step."""
        return self.num_samples % self.global_batch

    @functools.cached_property
    def steps(self) -> int:
        return self.num_samples // self.global_batch + (self.keep_last and self.num_tail > 0)

    @property
    def num_dropped(self) -> int:
        """How many samples of each epoch no step sees."""
        return 0 if self.keep_last else self.num_tail

    def step_samples(self, step: int) -> int:
        """How many samples step `step` of the run has, counted from 0."""
        return min(self.global_batch, self.num_samples - step % self.steps * self.global_batch)


def shard_range(num: int, index: int, count: int) -> range:
    """One of `count` contiguous shares of `num` things; the first ones are longer by one where they must."""
    base, more = divmod(num, count)
    start = index * base + min(index, more)
    return range(start, start + base + (index < more))


def local_range(num: int, part: int, accumulate: int, shard_index: int, shard_count: int) -> range:
    """The places, in a step of `num` samples, of what one rank reads of one part; empty where samples are
    too few."""
    whole = shard_range(num, part, accumulate)
    own = shard_range(len(whole), shard_index, shard_count)
    return range(whole.start + own.start, whole.start + own.stop)


class TrainBatchSampler:
    """The batch sampler of training: one list of this rank's samples for every (step, part), steps in order
    from `start_step`. With `keep_last` an epoch's last step may be shorter; a rank without a share of it gets
    one sample, as padding. `keep_order`: samples come as the data set has them, in every epoch.
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
        """The samples' numbers alone as tensors, for data that lies in memory."""
        return (samples for _, samples in self._iter_microsteps())

    def _iter_microsteps(self) -> Iterator[tuple[int, Tensor]]:
        """(epoch, this rank's samples) for every part of every step: views of the epoch's order."""
        epochs, accumulate = self.epochs, self.accumulate
        steps_per_epoch = epochs.steps
        whole = [self._local_range(epochs.global_batch, part) for part in range(accumulate)]
        ordered_epoch, order = -1, torch.empty(0)
        for step in range(self.start_step, self.steps):
            epoch, index = divmod(step, steps_per_epoch)
            if epoch != ordered_epoch:
                order, ordered_epoch = self._order(epoch), epoch
            first, num = index * epochs.global_batch, epochs.step_samples(step)
            for part in range(accumulate):
                own = whole[part] if num == epochs.global_batch else self._local_range(num, part)
                yield epoch, order[first + own.start : first + own.stop] if own else order[-1:]

    def _order(self, epoch: int) -> Tensor:
        num_samples = self.epochs.num_samples
        return torch.arange(num_samples) if self.keep_order else epoch_order(num_samples, self.seed, epoch)

    def _local_range(self, num: int, part: int) -> range:
        return local_range(num, part, self.accumulate, self.shard_index, self.shard_count)


class HeldoutBatchSampler:
    """The batch sampler of evaluation: every held-out sample exactly once over all ranks, and equally many
    batches for each. `valid_counts()` says how many samples of each batch count: where that is none, the
    batch is the last sample, for ranks that have to be in a forward together.
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
        """For each of this rank's batches, how many of its samples count: all, or none of one."""
        return [max(0, min(self.local_batch, self.num_samples - start)) for start in self._starts()]

    def _starts(self) -> range:
        first = self.shard_index * self.local_batch
        return range(first, first + len(self) * self.global_batch, self.global_batch)
