"""The data sets of a plan: batches of fake tensors, of the shapes that the largest batches of a run have.

Of a person's own data one batch of each size is read, the one that holds most: what it is made of, and
numbers beside its tensors, are as in the run. Read samples.py before, fake_pass.py next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from rankdeck.config import RunConfig
from rankdeck.data.base import SampleSet
from rankdeck.data.loader import one_batch
from rankdeck.parallel.nested import each_tensor
from rankdeck.planner.growth import each_leaf, leaves_of, resized, sizes_of
from rankdeck.planner.samples import Samples
from rankdeck.torch_compat.dispatch import without_modes
from rankdeck.training.workload import as_given, one_sample


def planned_data(train: SampleSet, samples: Samples, config: RunConfig) -> SampleSet:
    """What stands for a person's own data in a plan."""
    if samples.is_uniform:
        return Shapes(one_sample(train, 0), len(train))
    return LargestBatches(train, samples, config)


class Shapes:
    """A data set of which only the shapes are known: batches that stack samples like one."""

    is_random = False

    def __init__(self, sample: Any, num_samples: int) -> None:
        self._sample = sample
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> Any:
        return each_tensor(self.read_batch([index]), lambda tensor: tensor[0])

    def read_batch(self, indices: Sequence[Any]) -> Any:
        """A batch as the loader would give it, (B, ...) for every tensor (1, ...) of the sample."""
        return each_tensor(self._sample, lambda tensor: resized(tensor, (len(indices), *tensor.shape[1:])))


class LargestBatches:
    """A person's own data, of which every batch is the largest of its size."""

    is_random = False

    def __init__(self, train: SampleSet, samples: Samples, config: RunConfig) -> None:
        self._train, self._samples, self._config = train, samples, config
        self._largest: dict[int, tuple[Any, list[tuple[int, ...]]]] = {}
        """By the number of samples: a batch, and the sizes that each of its leaves gets."""

    def __len__(self) -> int:
        return len(self._train)

    def __getitem__(self, index: int) -> Any:
        return self.read_batch([index])

    def read_batch(self, indices: Sequence[Any]) -> Any:
        """The largest batch of so many samples, whichever they are."""
        num = len(indices)
        if num not in self._largest:
            with without_modes():
                self._largest[num] = self._read(num)
        batch, sizes = self._largest[num]
        rest = iter(sizes)
        return each_leaf(batch, lambda leaf: resized(leaf, next(rest)))

    def _read(self, num: int) -> tuple[Any, list[tuple[int, ...]]]:
        largest = self._samples.largest_batch(num, self._config)
        batch = as_given(one_batch(self._train, largest.indices))
        leaves = leaves_of(batch)
        own = [sizes_of(leaf) for leaf in leaves]
        without_values = each_leaf(batch, lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf)
        if largest.sizes is None or len(largest.sizes) != sum(map(len, own)):
            return without_values, own
        rest = iter(largest.sizes)
        return without_values, [tuple(max(size, next(rest)) for size in sizes) for sizes in own]
