"""The largest batch that a run reads: how large the samples of a person's own data are, and how batches grow
with them.

    alone        samples are read one by one, until all are seen or the time is up
    together     some batches are read as a run reads them, and how their sizes follow is found
    the run's    every batch of the run is then known by its size, from the order that its seed gives

Samples that are stacked have one shape, and so have those of the catalogue. A data set that reads whole
batches may pad each to its longest sample or lay samples end to end, so that memory follows from a batch that
comes once in an epoch. Reading takes a few seconds at most and runs a person's code: in a process of its own
(pool.py). What could not be seen or found makes a plan a lower bound. Read sample_reader.py and fake_pass.py
next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import torch
from torch import Tensor

from rankdeck.base.phrases import AND_TEMPLATE, join_phrases, phrase
from rankdeck.config import RunConfig
from rankdeck.data.samplers import EpochLayout, epoch_order
from rankdeck.parallel.pytree import map_tensors

_MAX_DRAWN = 5_000_000
"""So many samples of a run are followed into their batches; those after them are like these."""

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class LargestBatch:
    """The samples of the batch that holds most, and the largest of each size that a batch may have; `sizes`
    is None where batches differ in what they are made of."""

    indices: list[int]
    sizes: list[int] | None


class Samples(msgspec.Struct, frozen=True):
    """What is known of a data set's samples, and of its batches.

    `num_dims` has for each tensor of a batch its dims, -1 for a number beside them; `sizes` and `growths`
    have one entry for each dim and number of all of them, and none where batches differ in what they are made
    of. `sizes` are of the samples in `seen`, one where all
    are equal, and `elements` says how much each of these samples holds. `batches` are the largest sizes of
    batches that were read, by how many samples they have. `longest` is what data.longest names.
    `has_padding`: some batches do, by the mask that comes with them.
    """

    num_samples: int = 0
    seen: list[int] = []
    elements: list[int] = []
    num_dims: list[int] = []
    sizes: list[list[int]] = []
    growths: list[Growth] = []
    batches: dict[int, list[int]] = {}
    num_read: int = 0
    longest: int | None = None
    has_padding: bool = False

    @property
    def is_uniform(self) -> bool:
        """Whether one sample is as large as another, and batches stack them."""
        return not self.seen

    @property
    def is_varied(self) -> bool:
        """Whether batches of equally many samples may differ in their shapes."""
        return not (self.is_uniform or (self.growths and self._has_rules)) or any(map(_is_varied, self.sizes))

    @property
    def is_bound(self) -> bool:
        """Whether a larger batch may come."""
        if self.is_uniform:
            return False
        return not self._has_rules or (len(self.seen) < self.num_samples and self.longest is None)

    @property
    def _has_rules(self) -> bool:
        """Whether the sizes of every batch follow from those of its samples."""
        return bool(self.growths) and all(growth.rule != UNKNOWN for growth in self.growths)

    @property
    def _is_end_to_end(self) -> bool:
        return any(
            growth.rule == SUM and _is_varied(sizes)
            for growth, sizes in zip(self.growths, self.sizes, strict=True)
        )

    @property
    def note(self) -> str:
        """Which batch is planned; "" where there is but one kind."""
        if not (self.is_varied or self.is_bound):
            return ""
        if not self._has_rules:
            return phrase(
                "At least this much: how batches grow with their samples is not known; planned for the "
                "largest of {batches} that were read.",
                batches=self.num_read,
            )
        if self._is_end_to_end:
            return self._end_to_end_note()
        shapes = join_phrases(
            dict.fromkeys("x".join(map(str, shape)) for shape in self._largest_sample_shapes()), AND_TEMPLATE
        )
        if self.is_bound:
            return phrase(
                "At least this much: {seen:,} of {samples:,} samples were looked at, the largest {shapes}. "
                "Name the longest in data.longest.",
                seen=len(self.seen),
                samples=self.num_samples,
                shapes=shapes,
            )
        if self.longest is not None:
            return phrase(
                "Samples differ in shape; planned for a batch of the largest by data.longest: {shapes}.",
                shapes=shapes,
            )
        return phrase(
            "Samples differ in shape; planned for a batch of the largest by all {samples:,}: {shapes}.",
            samples=self.num_samples,
            shapes=shapes,
        )

    def _end_to_end_note(self) -> str:
        if self.is_bound:
            return phrase(
                "At least this much: batches hold their samples end to end, and {seen:,} of {samples:,} "
                "samples were looked at. Name the longest in data.longest.",
                seen=len(self.seen),
                samples=self.num_samples,
            )
        if len(self.seen) < self.num_samples:
            return phrase(
                "Batches hold their samples end to end; planned for one of the longest samples, by "
                "data.longest."
            )
        return phrase(
            "Batches hold their samples end to end; planned for the largest of the run, by all {samples:,} "
            "samples.",
            samples=self.num_samples,
        )

    def _largest_sample_shapes(self) -> Iterator[Sizes]:
        """The most that each tensor of a sample has in each of its dims, the batch's left out."""
        sizes = iter(self._max_sample_sizes())
        for num_dims in self.num_dims:
            shape = tuple(next(sizes) for _ in range(abs(num_dims)))
            if num_dims > 1:
                yield shape[1:]

    def _max_sample_sizes(self) -> list[int]:
        """The largest that each size of a sample may have."""
        most = [max(sizes) for sizes in self.sizes]
        if self.longest is None:
            return most
        is_any_varied = any(map(_is_varied, self.sizes))
        dims = [dim for num_dims in self.num_dims for dim in (range(num_dims) if num_dims >= 0 else (-1,))]
        follows = [
            _is_varied(sizes) if is_any_varied else dim == 1
            for sizes, dim in zip(self.sizes, dims, strict=True)
        ]
        return [max(high, self.longest) if does else high for high, does in zip(most, follows, strict=True)]

    def largest_batch(self, num: int, config: RunConfig) -> LargestBatch:
        """The largest of the batches of `num` samples that a run of this configuration reads."""
        columns = [torch.tensor(sizes) for sizes in self.sizes]
        elements, most = torch.tensor(self.elements), -1
        largest: list[int] = [0] * len(columns)
        indices: list[int] = []
        ends = [
            place
            for place, (growth, sizes) in enumerate(zip(self.growths, self.sizes, strict=True))
            if growth.rule == SUM and _is_varied(sizes)
        ]
        for places in self._run_batches(num, config):
            held = elements[places].sum(dim=1)
            if int(held.max()) > most:
                most = int(held.max())
                indices = [self.seen[place] for place in places[int(held.argmax())].tolist()]
            for end in ends:
                together = self.growths[end].batch_sizes(columns[end][places])
                largest[end] = max(largest[end], int(together.max()))
        if not self.growths:
            return LargestBatch(indices, None)
        alone = self._max_sample_sizes()
        is_complete = len(self.seen) == self.num_samples
        for place, growth in enumerate(self.growths):
            if growth.rule == UNKNOWN:
                largest[place] = self._measured_size(place, num)
            elif place not in ends or (self.longest is not None and not is_complete):
                of_longest = torch.full((1, num), alone[place])
                largest[place] = int(growth.batch_sizes(of_longest))
        return LargestBatch(indices, largest)

    def _measured_size(self, place: int, num: int) -> int:
        """By the batches that were read: the smallest of as many samples, or more by proportion."""
        if not self.batches:
            return 0
        as_many = [count for count in self.batches if count >= num]
        if as_many:
            return self.batches[min(as_many)][place]
        count = max(self.batches)
        return -(-self.batches[count][place] * num // count)

    def _run_batches(self, num: int, config: RunConfig) -> Iterator[Tensor]:
        """The batches of `num` samples of each epoch, (B, num), as places in `seen`; drawn from what was seen
        where that is not all."""
        train = config.train
        epochs = EpochLayout(self.num_samples, train.global_batch, keep_last=config.data.last == "keep")
        steps_per_epoch = max(1, self.num_samples // train.global_batch)
        steps = train.known_steps or (train.epochs or 1) * epochs.steps
        num_epochs = min(-(-steps // steps_per_epoch), max(1, _MAX_DRAWN // self.num_samples))
        num_epochs = num_epochs if self._is_end_to_end or not self.growths else 1
        in_order, drawn = config.data.order == "given", torch.Generator().manual_seed(0)
        is_complete = len(self.seen) == self.num_samples
        places = torch.empty(self.num_samples, dtype=torch.int64)
        if is_complete:
            places[torch.tensor(self.seen)] = torch.arange(self.num_samples)
        for epoch in range(1 if in_order and is_complete else num_epochs):
            if not is_complete:
                order = torch.randint(len(self.seen), (self.num_samples,), generator=drawn)
            elif in_order:
                order = places
            else:
                order = places[epoch_order(self.num_samples, train.seed, epoch)]
            wanted = min(steps - epoch * steps_per_epoch, steps_per_epoch) * train.global_batch
            whole = max(wanted // num, 1) * num
            yield order[:whole].view(-1, num)


UNIFORM = Samples()
"""Of data of which one sample is as large as another."""


def _is_varied(sizes: Sequence[int]) -> bool:
    return len(sizes) > 1


# How the sizes of a batch follow from the sizes that its samples have alone, found by reading both.
#
#     longest    as the largest of them: padded batches, and what is the same in all
#     sum        as all of them together: stacked samples, graphs and packed sequences laid end to end.
#                Of each sample `shared` is counted once for all, as in offsets (1 + samples)
#     unknown    neither, in one of the batches that were read
#
# A size is that of one dim of one tensor, or a number beside the tensors (`max_length`, `num_graphs`).

LONGEST: Literal["longest"] = "longest"
SUM: Literal["sum"] = "sum"
UNKNOWN: Literal["unknown"] = "unknown"

Probe = tuple[Sequence[int], int]
"""A size of each sample of a batch alone, and that of the batch."""


class Growth(msgspec.Struct, frozen=True):
    """The rule of one size."""

    rule: Literal["longest", "sum", "unknown"]
    shared: int = 0

    def batch_sizes(self, sizes: Tensor) -> Tensor:
        """What batches with samples of these sizes (B, N) have: (B,). Not of an unknown one."""
        if self.rule == LONGEST:
            return sizes.amax(dim=1)
        return sizes.sum(dim=1) - self.shared * (sizes.shape[1] - 1)


def find_growth(probes: Sequence[Probe]) -> Growth:
    """The rule that all these batches follow; unknown where none has several samples."""
    if any(len(alone) > 1 for alone, _ in probes) and all(size == max(alone) for alone, size in probes):
        return Growth(LONGEST)
    shared = {divmod(sum(alone) - size, len(alone) - 1) for alone, size in probes if len(alone) > 1}
    if len(shared) == 1 and all(rest == 0 for _, rest in shared):
        return Growth(SUM, shared.pop()[0])
    return Growth(UNKNOWN)


def list_leaves(value: Any) -> list[Tensor | int]:
    """The tensors and whole numbers inside tuples, lists and dicts, in order."""
    found: list[Tensor | int] = []

    def add(leaf: Tensor | int) -> Tensor | int:
        found.append(leaf)
        return leaf  # the walk rebuilds what it goes through: a class may check its values

    map_leaves(value, add)
    return found


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure with every tensor and whole number changed."""
    return map_tensors(value, lambda leaf: leaf if isinstance(leaf, bool) else change(leaf), (Tensor, int))


def sizes_of(leaf: Tensor | int) -> tuple[int, ...]:
    """Every size of a leaf; the number itself of one that is no tensor."""
    return tuple(leaf.shape) if isinstance(leaf, Tensor) else (leaf,)


def num_elements(leaves: Sequence[Tensor | int]) -> int:
    return sum(leaf.numel() for leaf in leaves if isinstance(leaf, Tensor))


def resize_leaf(leaf: Any, sizes: Sequence[int]) -> Any:
    """A leaf of these sizes; what is in it is not kept."""
    return torch.zeros(tuple(sizes), dtype=leaf.dtype) if isinstance(leaf, Tensor) else sizes[0]
