"""What a data set is here: a source that first tells its shapes without reading data, and later gives two
map-style data sets.

    source = Digits(args)      the catalogue's target, called with the checked arguments
    source.describe()          a DataCard: shapes, dtypes, classes, vocabulary; reads no sample
    source.prepare()           what is made once for all ranks (a vocabulary); several processes may do it
    source.load()              (training samples, held-out samples or None)

Each sample is `(inputs, targets)`. Three optional gifts of a data set, the user's own included:

    read_batch(indices)        a ready batch at once, where that is faster than collating samples one by one
    needs_epoch = True         it is indexed by a Draw (seed, epoch, sample), not a plain index, and may make
                               a generator of its own from these three
    is_random = False          nothing is drawn from global generators, so that they need no seed

Read samplers.py, randomness.py and loader.py next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True)
class DataSpec:
    """What is known of a data set before a sample is read. Shapes are of one sample, without the batch dim;
    None is unknown.

    `classes`: how many classes targets name. `vocabulary`: how many tokens there are. `may_mask`: targets may
    hold MASKED, so counts differ between ranks.
    """

    input_shape: tuple[int, ...]
    input_dtype: torch.dtype
    target_shape: tuple[int, ...]
    target_dtype: torch.dtype
    classes: int | None = None
    vocabulary: int | None = None
    may_mask: bool = False
    train_samples: int | None = None
    heldout_samples: int | None = None


class SampleKey(NamedTuple):
    """One sample of one epoch: all that its randomness follows from."""

    seed: int
    epoch: int
    sample: int


class SampleSet(Protocol):
    """Map-style: a length, and a sample by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...


@runtime_checkable
class SupportsReadBatch(Protocol):
    """A data set that hands over a whole batch at once."""

    def read_batch(self, indices: Sequence[Any]) -> Any: ...


class DataSource(Protocol):
    """One row of the catalogue's table of data sets, with its arguments."""

    def describe(self) -> DataSpec: ...

    def prepare(self) -> None: ...

    def load(self) -> tuple[SampleSet, SampleSet | None]: ...


def needs_epoch(dataset: object) -> bool:
    """Whether it is indexed by a Draw instead of a plain index."""
    return bool(getattr(dataset, "needs_epoch", False))


def is_random(dataset: object) -> bool:
    """Whether it may draw from global generators."""
    return bool(getattr(dataset, "is_random", True))


# Samples that lie in two tensors, read a batch at a time.


class TensorSamples:
    """`num_samples` samples over the rows of `inputs` (N, ...) and `targets` (N, ...); sample i is row i
    modulo N.
    """

    is_random = False

    def __init__(self, inputs: Tensor, targets: Tensor, num_samples: int | None = None) -> None:
        assert len(inputs) == len(targets) > 0
        self.inputs = inputs
        self.targets = targets
        self.num_samples = len(inputs) if num_samples is None else num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not -self.num_samples <= index < self.num_samples:
            raise IndexError(index)
        row = index % self.num_samples % len(self.inputs)
        return self.inputs[row], self.targets[row]

    def read_batch(self, indices: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (B, ...) and targets (B, ...) for B samples."""
        rows = torch.as_tensor(indices)
        if self.num_samples > len(self.inputs):
            rows = rows % len(self.inputs)
        return self.inputs.index_select(0, rows), self.targets.index_select(0, rows)
