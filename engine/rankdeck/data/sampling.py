"""Who gets which sample, when: the same samples per step for every number of ranks.

One permutation per epoch follows from (seed, epoch). Step t of an epoch takes its slice of global_batch
samples, cut into `accumulate` parts, each part cut among the data ranks:

    permutation   |------- step 0 -------|------- step 1 -------| ... tail, dropped
    step          |-- part 0 --|-- part 1 --|
    part          | rank 0 | rank 1 | ... |

All cuts are contiguous, so the union over ranks is the same whatever their number. Read loader.py next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from rankdeck.base.errors import ConfigError, DataError
from rankdeck.config.catalog import MASKED
from rankdeck.data.base import Draw


def epoch_order(num_samples: int, seed: int, epoch: int) -> Tensor:
    """The permutation (num_samples,) of one epoch; touches no global random state."""
    digest = hashlib.blake2b(f"{seed}:{epoch}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest) >> 1)
    return torch.randperm(num_samples, generator=generator)


class StepBatches:
    """The batch sampler of training: one list of this rank's samples for every (step, part), steps in order
    from `start_step`.

    Raises: DataError when the data cannot fill one step. ConfigError when global_batch does not divide.
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
    ) -> None:
        assert 0 <= shard_index < shard_count and 0 <= start_step <= steps
        if num_samples < global_batch:
            raise DataError(
                f"The training data has {num_samples} samples, but train.global_batch = {global_batch}.",
                path="train.global_batch",
                advice=f"Use a global batch of {max(num_samples, 1)} or less, or more data.",
            )
        if global_batch % (accumulate * shard_count):
            raise ConfigError(
                f"train.global_batch = {global_batch} cannot be cut into "
                f"train.accumulate = {accumulate} parts for {shard_count} data ranks.",
                path="train.global_batch",
                advice=f"Use a multiple of {accumulate * shard_count}.",
            )
        self.num_samples, self.global_batch, self.accumulate = num_samples, global_batch, accumulate
        self.shard_index, self.shard_count = shard_index, shard_count
        self.seed, self.steps, self.start_step = seed, steps, start_step
        self.steps_per_epoch = num_samples // global_batch
        self.local_batch = global_batch // (accumulate * shard_count)

    def __len__(self) -> int:
        return (self.steps - self.start_step) * self.accumulate

    def __iter__(self) -> Iterator[list[Draw]]:
        for epoch, samples in self._parts():
            yield [Draw(self.seed, epoch, index) for index in samples.tolist()]

    def tensors(self) -> Iterator[Tensor]:
        """The samples' numbers alone as tensors (local_batch,), for data that lies in memory."""
        return (samples for _, samples in self._parts())

    def _parts(self) -> Iterator[tuple[int, Tensor]]:
        """(epoch, this rank's samples) for every part of every step: rows of a view of the epoch's order."""
        per_epoch = self.steps_per_epoch * self.accumulate
        ordered_epoch, mine = -1, torch.empty(0)
        for part in range(self.start_step * self.accumulate, self.steps * self.accumulate):
            epoch, index = divmod(part, per_epoch)
            if epoch != ordered_epoch:
                order = epoch_order(self.num_samples, self.seed, epoch)[
                    : self.steps_per_epoch * self.global_batch
                ]
                mine = order.view(per_epoch, self.shard_count, self.local_batch)[:, self.shard_index]
                ordered_epoch = epoch
            yield epoch, mine[index]


class HeldoutBatches:
    """The batch sampler of evaluation: every held-out sample exactly once over all ranks, and equally many
    batches of one size for each.

    Samples that fill up the last batches repeat the last sample; `valid_counts()` says how many of each
    batch, from its front, count.
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

    def __iter__(self) -> Iterator[list[Draw]]:
        last = self.num_samples - 1
        for start in self._starts():
            yield [Draw(0, 0, min(index, last)) for index in range(start, start + self.local_batch)]

    def valid_counts(self) -> list[int]:
        """For each of this rank's batches, how many of its first samples are not padding."""
        return [max(0, min(self.local_batch, self.num_samples - start)) for start in self._starts()]

    def _starts(self) -> range:
        first = self.shard_index * self.local_batch
        return range(first, first + len(self) * self.global_batch, self.global_batch)


def mask_padding(targets: Tensor, num_valid: int) -> Tensor:
    """Integer targets (B, ...) with every sample from `num_valid` on set to MASKED; the same tensor where
    nothing is padding.
    """
    if num_valid >= len(targets):
        return targets
    masked = targets.clone()
    masked[num_valid:] = MASKED
    return masked
