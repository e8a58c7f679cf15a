"""The samples that are compared. Every rank reads its own, but where data give others when they are read
again: then rank 0 reads for all, and each has its slices of that.

Such data draw from where no seed reaches (../../data/randomness.py). What the strategy and one device compute
of two readings differs by these, and so does what one device computes twice, by which rounding is measured: a
broken strategy would not stand out. Read one_device.py and trial.py next.
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
"""(inputs, targets) of each part of each step."""
Shard = tuple[int, int]
"""(index, count), as a strategy has it."""
UNREPEATABLE_DATA = phrase("The training data gives other samples when it is read again, or cut otherwise.")
"""Why nothing is compared where that shows too late, or batches cannot be cut."""
_FULL_SHARD = 0, 1


class UnrepeatableDataError(CheckStopError):
    """Samples were read again and are others, and what was read first cannot take their place."""


class ComparedSamples:
    """The samples of a workload, as one device reads them."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._first: Batches = []
        """What was read first, until somebody has it."""
        self._reference: Batches = []
        self._is_unrepeatable = False

    def read(self, shard: Shard) -> Batches:
        """What a shard reads. Raises: UnrepeatableDataError."""
        shared = self.shared_batches()
        if shared is not None:
            return shard_slices(shared, shard)
        if shard != _FULL_SHARD:
            return read_batches(self._workload, shard)
        if self._first:
            first, self._first = self._first, []
            return first
        again = read_batches(self._workload, shard)
        if not is_equal(again, self._reference):  # which the few that are read twice did not show
            raise UnrepeatableDataError
        return again

    def shared_batches(self) -> Batches | None:
        """What all ranks have slices of; None where each reads its own. Raises: UnrepeatableDataError."""
        if not self._reference:
            told: list[Problem] = []
            first = read_batches(self._workload, _FULL_SHARD, told.append)
            if told and not all(map(_is_splittable, first)):
                raise UnrepeatableDataError
            self._first, self._is_unrepeatable = first, bool(told)
            self._reference = [map_tensors(batch, lambda tensor: tensor.detach().clone()) for batch in first]
        return self._reference if self._is_unrepeatable else None


def read_batches(workload: Workload, shard: Shard, tell: Callable[[Problem], None] | None = None) -> Batches:
    """All batches of a shard. With `report` a few samples are read twice; it hears where they are others."""
    with contextlib.closing(training_loader(workload, shard, report=tell)) as loader:
        return list(loader)


def shard_slices(batches: Batches, shard: Shard) -> Batches:
    """Copies of what a shard has of whole parts, as a model may write to its inputs."""
    return [copy.deepcopy(batch) if shard == _FULL_SHARD else _slice(batch, *shard) for batch in batches]


def _is_splittable(batch: tuple[Any, Any]) -> bool:
    num = num_samples(batch)
    leaves, _ = tree_flatten(batch)
    return all(isinstance(leaf, Tensor) and leaf.shape[:1] == (num,) for leaf in leaves)


def _slice(batch: tuple[Any, Any], index: int, count: int) -> tuple[Any, Any]:
    own = shard_range(num_samples(batch), index, count)
    cut: tuple[Any, Any] = map_tensors(batch, lambda tensor: tensor[own.start : own.stop].clone())
    return cut
