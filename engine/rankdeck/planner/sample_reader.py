"""Read samples, one by one and in batches, for as long as the time budget lasts. Read samples.py first.

The first sample is always read, and batches that repeat it show how sizes grow with the number of samples.
Then the other samples are read in random order, then batches that combine the smallest and largest samples,
and finally batches like those of a run. A batch that would take longer than the remaining time is not read.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

from rankdeck.config import RunConfig
from rankdeck.data.base import SampleKey, SampleSet, SupportsReadBatch
from rankdeck.data.loader import read_sample_keys
from rankdeck.data.samplers import TrainBatchSampler
from rankdeck.planner.samples import (
    UNIFORM,
    UNKNOWN,
    Growth,
    Samples,
    find_growth,
    list_leaves,
    num_elements,
    sizes_of,
)
from rankdeck.training import user_code
from rankdeck.training.workload import merge_sample, read_user_sample

BUDGET_S = 3.0
_SINGLE_SAMPLE_SHARE = 0.6
"""Share of the time budget for reading samples one by one."""
_MAX_SAMPLES = 200_000
_MAX_EXTREMES = 6
_MAX_PADDING_CHECKS = 256
"""Maximum number of samples of one shape that are checked for padding."""
_NUM_RUN_BATCHES = 4
"""Number of batches to read at the run's batch size."""
_NUM_MEASURED_BATCHES = 8
"""Number of batches to read at each batch size if no growth rule was found."""

Leaves = list[Tensor | int]


def read_samples(config: RunConfig, budget_s: float = BUDGET_S) -> Samples:
    """Read samples until all are read or the time is up.

    Raises:
        DataError: the data set is refused.
        Exception: any error raised by the user's data set.
    """
    if not user_code.is_user_code(config.data.use):
        return UNIFORM
    train, _ = user_code.build_data(config.data.use, config.data.args, Path(config.folder or "."))
    if isinstance(train, SupportsReadBatch):
        return _SampleReader(config, train, budget_s).read()
    return Samples(has_padding=_has_padding(train, budget_s))


def _has_padding(train: SampleSet, budget_s: float) -> bool:
    """Check, as far as time permits, whether any sample is padded; stop after the first sample if it has no
    mask."""
    until_s = time.monotonic() + budget_s
    first = read_user_sample(train, 0)
    if mask_of(first) is None:
        return False
    others = random.Random(0).sample(range(len(train)), min(len(train), _MAX_PADDING_CHECKS))
    return is_padded(first) or any(
        time.monotonic() < until_s and is_padded(read_user_sample(train, index)) for index in others
    )


def mask_of(batch: Any) -> Tensor | None:
    """Return a batch's padding mask, found by the name that Hugging Face's models use; None if there is no
    mask."""
    inputs = batch[0] if isinstance(batch, tuple) else batch
    mask = inputs.get("attention_mask") if isinstance(inputs, dict) else None
    return mask if isinstance(mask, Tensor) else None


def is_padded(batch: Any) -> bool:
    mask = mask_of(batch)
    return mask is not None and not bool(mask.all())


class _SampleReader:
    """Reader that records the sizes of the samples and batches that it reads from one data set."""

    def __init__(self, config: RunConfig, train: SampleSet, budget_s: float) -> None:
        self._config, self._train = config, train
        self._start_s, self._budget_s = time.monotonic(), budget_s
        first = list_leaves(read_user_sample(train, 0))
        self._num_dims = _num_dims(first)
        self._single_sizes = {0: _sizes(first)}
        self._elements = {0: num_elements(first)}
        self._probes: list[tuple[list[int], list[int]]] = []
        """For each batch that was read, the indices of its samples and the sizes of the batch."""
        self._has_uniform_structure = True
        self._has_padding = False

    def read(self) -> Samples:
        # Batches of one repeated sample distinguish "longest" (unchanged) from "sum" (multiplied).
        self._probe_artificial([0, 0])
        self._probe_artificial([0, 0, 0])
        self._read_other_samples()
        for indices in self._extreme_batches():
            self._probe_artificial(indices)
        for num, how_many in self._run_batch_sizes(_NUM_RUN_BATCHES):
            self._read_run_batches(num, how_many)
            break  # one size is enough if rules are found
        growths = self._growths()
        if not growths or any(growth.rule == UNKNOWN for growth in growths):
            for num, how_many in self._run_batch_sizes(_NUM_MEASURED_BATCHES):
                self._read_run_batches(num, how_many)
            growths = self._growths()
        return self._samples(growths)

    def _samples(self, growths: list[Growth]) -> Samples:
        columns = (
            [list(column) for column in zip(*self._single_sizes.values(), strict=True)] if growths else []
        )
        batches: dict[int, list[int]] = {}
        for indices, sizes in self._probes:
            largest = batches.setdefault(len(indices), sizes)
            batches[len(indices)] = list(map(max, largest, sizes)) if len(largest) == len(sizes) else largest
        return Samples(
            num_samples=len(self._train),
            sample_indices=list(self._single_sizes),
            elements=list(self._elements.values()),
            num_dims=self._num_dims if growths else [],
            sizes=[column[:1] if len(set(column)) == 1 else column for column in columns],
            growths=growths,
            batches=batches,
            num_read=len(self._probes),
            longest=self._config.data.longest,
            has_padding=self._has_padding,
        )

    def _growths(self) -> list[Growth]:
        """Return the growth rule of each size; an empty list if batches differ in structure."""
        if not self._has_uniform_structure:
            return []
        return [
            self._growth_of_size(index, num_dims >= 0)
            for index, num_dims in enumerate(
                num_dims for num_dims in self._num_dims for _ in range(abs(num_dims))
            )
        ]

    def _growth_of_size(self, position: int, is_of_tensor: bool) -> Growth:
        probes = [
            ([self._single_sizes[index][position] for index in indices], sizes[position])
            for indices, sizes in self._probes
        ]
        growth = find_growth(probes)
        if growth.rule == UNKNOWN and not is_of_tensor:
            return Growth("longest")  # a number that is not a size: the batch's own is used
        return growth

    def _read_other_samples(self) -> None:
        num_samples = len(self._train)
        for index in random.Random(0).sample(range(1, num_samples), min(num_samples - 1, _MAX_SAMPLES)):
            if self._remaining_s() <= (1 - _SINGLE_SAMPLE_SHARE) * self._budget_s:
                return
            leaves = list_leaves(read_user_sample(self._train, index))
            if _num_dims(leaves) != self._num_dims:
                self._has_uniform_structure = False
                self._elements[index] = num_elements(leaves)
                self._single_sizes[index] = self._single_sizes[0]
                continue
            self._single_sizes[index], self._elements[index] = _sizes(leaves), num_elements(leaves)

    def _extreme_batches(self) -> Iterator[list[int]]:
        """Yield, for each size that varies, a batch of the smallest sample and the two largest samples."""
        columns = zip(*self._single_sizes.values(), strict=True)
        differing = dict.fromkeys(tuple(column) for column in columns if len(set(column)) > 1)
        read_indices = list(self._single_sizes)
        for column in islice(differing, _MAX_EXTREMES):
            ranked = sorted(range(len(read_indices)), key=column.__getitem__)
            yield [read_indices[ranked[0]], *(read_indices[position] for position in ranked[-2:])]

    def _run_batch_sizes(self, how_many: int) -> Iterator[tuple[int, int]]:
        """Halve the run's batch size repeatedly, and yield (batch size, `how_many`) for each size that the
        remaining time allows."""
        num = self._config.train.global_batch // self._config.train.accumulate
        while num > 1:
            if self._estimated_s(num) <= self._remaining_s():
                yield num, how_many
            num //= 2

    def _read_run_batches(self, num: int, how_many: int) -> None:
        """Read `how_many` batches of `num` samples, in the run's order if all samples have been read."""
        train, num_samples = self._config.train, len(self._train)
        if num > num_samples:
            return
        if len(self._single_sizes) < num_samples:  # sizes of unread samples are unknown
            drawn, read_indices = random.Random(num), list(self._single_sizes)
            batches = [
                [SampleKey(train.seed, 0, drawn.choice(read_indices)) for _ in range(num)]
                for _ in range(how_many)
            ]
        else:
            in_order = self._config.data.order == "given"
            batches = list(
                TrainBatchSampler(num_samples, num, seed=train.seed, steps=how_many, keep_order=in_order)
            )
        for draws in batches:
            if self._remaining_s() < self._estimated_s(num):
                return
            self._probe(draws)

    def _probe_artificial(self, indices: Sequence[int]) -> None:
        """Try to measure a batch that may never occur in a run; ignore errors that the data set raises."""
        # A data set need not support batches that no run reads, such as one sample twice.
        with contextlib.suppress(Exception):
            self._probe([SampleKey(0, 0, index) for index in indices])

    def _probe(self, draws: Sequence[SampleKey]) -> None:
        batch = merge_sample(read_sample_keys(self._train, draws))
        leaves = list_leaves(batch)
        self._has_padding |= is_padded(batch)
        if _num_dims(leaves) != self._num_dims:
            self._has_uniform_structure = False
        self._probes.append(([draw.sample for draw in draws], _sizes(leaves)))

    def _remaining_s(self) -> float:
        return self._budget_s - (time.monotonic() - self._start_s)

    def _estimated_s(self, num: int) -> float:
        """Estimate the seconds to read a batch of `num` samples, given the time per sample so far."""
        num_read = len(self._single_sizes) + sum(len(indices) for indices, _ in self._probes)
        return num * (time.monotonic() - self._start_s) / num_read


def _num_dims(leaves: Leaves) -> list[int]:
    return [leaf.dim() if isinstance(leaf, Tensor) else -1 for leaf in leaves]


def _sizes(leaves: Leaves) -> list[int]:
    return [size for leaf in leaves for size in sizes_of(leaf)]
