"""Read the samples over which the check compares the strategy with one device.

Each rank reads its own samples, unless the data gives different samples when read again: then rank 0 reads
for all ranks, and each rank gets its slices of rank 0's batches. Such data draws from a source that no seed
controls (../../data/randomness.py). If it were read twice, the strategy's results would differ from those of
one device, and two computations on one device would also differ. The difference between those two
computations serves as the measure of rounding, so a broken strategy would go unnoticed. Read one_device.py
and trial.py next.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor

from rankdeck.base.errors import Problem
from rankdeck.base.phrases import phrase
from rankdeck.data.randomness import is_equal
from rankdeck.data.samplers import shard_range
from rankdeck.parallel.pytree import map_tensors, num_samples
from rankdeck.torch_compat.dispatch import tree_flatten
from rankdeck.training.batches import training_loader
from rankdeck.training.verify.check_errors import CheckStopError
from rankdeck.training.workload import Workload

Batches = list[tuple[Any, Any]]
"""(inputs, targets) of each microstep of each step."""
Shard = tuple[int, int]
"""(index, count), as a strategy's `data_shard` returns it."""
UNREPEATABLE_DATA = phrase(
    "The training data returns different samples when it is read again or split differently."
)
"""Reason for skipping the check if it notices too late that samples differ, or if batches cannot be split."""
_FULL_SHARD = 0, 1


class UnrepeatableDataError(CheckStopError):
    """Raised if a second reading gives different samples, and the samples of the first reading cannot be used
    instead."""


class ComparedSamples:
    """The samples of a workload, as one device reads them."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._first: Batches = []
        """The batches of the first reading, until a caller takes them."""
        self._reference: Batches = []
        self._is_unrepeatable = False

    def read(self, shard: Shard) -> Batches:
        """Return the batches of a shard. Raises: UnrepeatableDataError."""
        shared = self.shared_batches()
        if shared is not None:
            return shard_slices(shared, shard)
        if shard != _FULL_SHARD:
            return read_batches(self._workload, shard)
        if self._first:
            first, self._first = self._first, []
            return first
        again = read_batches(self._workload, shard)
        if not is_equal(again, self._reference):  # the few samples that are read twice did not show it
            raise UnrepeatableDataError
        return again

    def shared_batches(self) -> Batches | None:
        """Return the batches that are sliced for all ranks; None if each rank reads its own samples. Raises:
        UnrepeatableDataError."""
        if not self._reference:
            problems: list[Problem] = []
            first = read_batches(self._workload, _FULL_SHARD, problems.append)
            if problems and not all(map(_is_splittable, first)):
                raise UnrepeatableDataError
            self._first, self._is_unrepeatable = first, bool(problems)
            # Copies, because a model may write to its inputs.
            self._reference = [map_tensors(batch, lambda tensor: tensor.detach().clone()) for batch in first]
        return self._reference if self._is_unrepeatable else None


def read_batches(
    workload: Workload, shard: Shard, report: Callable[[Problem], None] | None = None
) -> Batches:
    """Read all batches of a shard. If `report` is not None, a few samples are read twice, and `report` is
    called if they differ."""
    with contextlib.closing(training_loader(workload, shard, report=report)) as loader:
        return list(loader)


def shard_slices(batches: Batches, shard: Shard) -> Batches:
    """Return a shard's slices of full batches, as copies, because a model may write to its inputs."""
    return [copy.deepcopy(batch) if shard == _FULL_SHARD else _slice(batch, *shard) for batch in batches]


def _is_splittable(batch: tuple[Any, Any]) -> bool:
    num = num_samples(batch)
    leaves, _ = tree_flatten(batch)
    return all(isinstance(leaf, Tensor) and leaf.shape[:1] == (num,) for leaf in leaves)


def _slice(batch: tuple[Any, Any], index: int, count: int) -> tuple[Any, Any]:
    indices = shard_range(num_samples(batch), index, count)
    cut: tuple[Any, Any] = map_tensors(batch, lambda tensor: tensor[indices.start : indices.stop].clone())
    return cut
