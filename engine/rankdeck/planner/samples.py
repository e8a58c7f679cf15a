"""The largest batch that can come: how large the samples of a person's own data are, looked at one by one.

Samples that are stacked have one shape, and so have those of the catalogue. A data set that reads whole
batches may pad each to its longest sample, so that memory follows from a batch that comes once in an epoch.
Looking takes a few seconds at most and runs a person's code: in a process of its own (pool.py). Where not all
samples could be seen and `data.longest` names none, a plan is a lower bound. Read fake_pass.py next.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from itertools import starmap
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from rankdeck.base.phrases import ALL_OF, listed, phrase
from rankdeck.config import RunConfig
from rankdeck.data.base import ReadsBatches
from rankdeck.parallel.nested import each_tensor, tensors_of
from rankdeck.training import user_code
from rankdeck.training.workload import one_sample

BUDGET_S = 3.0
_MOST_SEEN = 200_000

Shape = tuple[int, ...]


class Samples(msgspec.Struct, frozen=True):
    """What is known of a data set's samples.

    `largest` has for each tensor of a sample the most in each of its dims, the batch left out; None where all
    have the first one's shape. `num_seen` of `num_samples` were looked at. `is_named`: data.longest says the
    rest.
    """

    largest: list[Shape] | None = None
    is_varied: bool = False
    num_seen: int = 0
    num_samples: int = 0
    is_named: bool = False

    @property
    def is_bound(self) -> bool:
        """Whether a larger one may come."""
        return self.largest is not None and self.num_seen < self.num_samples and not self.is_named

    @property
    def words(self) -> str:
        """Which batch is planned; "" where there is but one kind."""
        if self.largest is None or not (self.is_varied or self.is_bound):
            return ""
        known = dict.fromkeys("x".join(map(str, shape)) for shape in self.largest if shape)
        shapes = listed(known, ALL_OF)
        if self.is_bound:
            return phrase(
                "At least this much: {seen:,} of {samples:,} samples were looked at, the largest {shapes}. "
                "Name the longest in data.longest.",
                seen=self.num_seen,
                samples=self.num_samples,
                shapes=shapes,
            )
        if self.is_named:
            return phrase(
                "Samples differ in shape; planned for a batch of the largest by data.longest: {shapes}.",
                shapes=shapes,
            )
        return phrase(
            "Samples differ in shape; planned for a batch of the largest by all {samples:,}: {shapes}.",
            samples=self.num_samples,
            shapes=shapes,
        )

    def enlarge(self, sample: Any) -> Any:
        """The sample with every tensor, (1, ...), as large as the largest; what is in it is not kept."""
        if self.largest is None:
            return sample
        shapes = iter(self.largest)
        return each_tensor(sample, lambda tensor: tensor.new_empty((1, *next(shapes)), device="meta"))


UNIFORM = Samples()
"""Of data of which one sample is as large as another."""


def look(config: RunConfig, budget_s: float = BUDGET_S) -> Samples:
    """Look at samples until all are seen or the time is up; the first one, then the others in any order.

    Raises: DataError, and whatever a person's data set raises.
    """
    if not user_code.is_user_code(config.data.use):
        return UNIFORM
    train, _ = user_code.build_data(config.data.use, config.data.args, Path(config.folder or "."))
    if not isinstance(train, ReadsBatches):
        return UNIFORM
    end_s, num_samples = time.monotonic() + budget_s, len(train)
    first = _shapes(one_sample(train, 0))
    least = largest = first
    num_seen = 1
    for index in random.Random(0).sample(range(1, num_samples), min(num_samples - 1, _MOST_SEEN)):
        if time.monotonic() >= end_s:
            break
        shapes = _shapes(one_sample(train, index))
        if list(map(len, shapes)) != list(map(len, first)):
            break  # not the same tensors: which ones come together is the data set's own affair
        least, largest = _each(min, least, shapes), _each(max, largest, shapes)
        num_seen += 1
    if config.data.longest is not None:
        largest = _named(least, largest, config.data.longest)
    return Samples(largest, least != largest, num_seen, num_samples, config.data.longest is not None)


def _shapes(sample: Any) -> list[Shape]:
    tensors: list[Tensor] = tensors_of(sample)
    return [tuple(tensor.shape[1:]) for tensor in tensors]


def _each(choose: Any, some: Sequence[Shape], others: Sequence[Shape]) -> list[Shape]:
    return [tuple(map(choose, one, other)) for one, other in zip(some, others, strict=True)]


def _named(least: Sequence[Shape], largest: Sequence[Shape], longest: int) -> list[Shape]:
    """The dims that differ as long as the longest; the first ones where none was seen to differ."""
    is_varied = least != largest

    def length(dim: int, low: int, high: int) -> int:
        follows = low != high if is_varied else dim == 0
        return max(high, longest) if follows else high

    return [
        tuple(starmap(length, zip(range(len(high)), low, high, strict=True)))
        for low, high in zip(least, largest, strict=True)
    ]
