"""Defines the protocol of a data source. A source describes the shapes of its data without reading samples,
then loads a training data set and, if there is one, a held-out data set, both map-style.

    source = Digits(args)      the catalogue's target, called with the checked arguments
    source.describe()          a DataSpec: shapes, dtypes, classes, vocabulary; reads no sample
    source.prepare()           builds what all ranks share (a vocabulary); several processes may call it
    source.load()              (training samples, held-out samples or None)

Each sample is `(inputs, targets)`. A data set, including a user's own, may offer three optional attributes:

    read_batch(indices)        returns a whole batch, where that is faster than collating samples
    needs_epoch = True         the data set is indexed by a SampleKey (seed, epoch, sample) instead of a plain
                               index, so that it can seed a generator of its own
    is_random = False          the data set draws nothing from global generators, so they need no seed

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
    """Shapes and sizes of a data set, known before a sample is read. Shapes are per sample, without the batch
    dim; None means unknown.

    `classes`: number of target classes. `vocabulary`: number of distinct tokens. `may_mask`: targets can
    contain IGNORE_INDEX, so the number of targets in the loss can differ between ranks.
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
    """Key of one sample in one epoch; it determines the sample's randomness."""

    seed: int
    epoch: int
    sample: int


class SampleSet(Protocol):
    """A map-style data set: a length, and samples by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...


@runtime_checkable
class SupportsReadBatch(Protocol):
    """A data set that can return a whole batch at once."""

    def read_batch(self, indices: Sequence[Any]) -> Any: ...


class DataSource(Protocol):
    """A data set of the catalogue, with its arguments."""

    def describe(self) -> DataSpec: ...

    def prepare(self) -> None: ...

    def load(self) -> tuple[SampleSet, SampleSet | None]: ...


def needs_epoch(dataset: object) -> bool:
    """Check whether the data set is indexed by a SampleKey instead of a plain index."""
    return bool(getattr(dataset, "needs_epoch", False))


def is_random(dataset: object) -> bool:
    """Check whether the data set may draw from global generators."""
    return bool(getattr(dataset, "is_random", True))


# Samples that lie in two tensors, read a batch at a time.


class TensorSamples:
    """Samples in two tensors: sample i is row i modulo N of `inputs` (N, ...) and `targets` (N, ...).

    `num_samples` may exceed N; rows then repeat.
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
        # The first modulo maps negative indices.
        row = index % self.num_samples % len(self.inputs)
        return self.inputs[row], self.targets[row]

    def read_batch(self, indices: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs (B, ...) and targets (B, ...) of B samples."""
        rows = torch.as_tensor(indices)
        # Without repeated rows the modulo would only cost a copy.
        if self.num_samples > len(self.inputs):
            rows = rows % len(self.inputs)
        return self.inputs.index_select(0, rows), self.targets.index_select(0, rows)
