"""Find the largest batch that a run reads, from the sizes of the user's samples and the rule that combines
them into batches.

    samples         are read one by one, until all are read or the time is up
    a few batches   are read as a run reads them, to find the rule that their sizes follow
    other batches   are not read: the rule gives their sizes, and the run's seed determines their samples

Samples that are stacked into batches all have the same shape, as in the catalogue's data sets. A data set
that reads whole batches may pad each batch to its longest sample or concatenate samples, so the largest
batch, which may occur only once per epoch, determines the peak memory. Reading takes a few seconds at most
and runs the user's code, so it is done in a separate process (pool.py). If some samples were not read or
sizes follow no rule, the plan is a lower bound. Read sample_reader.py and fake_pass.py next.
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
"""Maximum number of samples in the simulated epochs; later epochs are assumed to have similar batches."""

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class LargestBatch:
    """The indices of the samples in the largest batch, and the maximum of each size over all batches.

    The largest batch has the most elements. `sizes` is None if batches differ in structure.
    """

    indices: list[int]
    sizes: list[int] | None


class Samples(msgspec.Struct, frozen=True):
    """Shapes and sizes of a data set's samples and batches, based on those that were read.

    `num_dims` lists the number of dims of each tensor in a batch, and -1 for each number outside a tensor.
    `sizes` and `growths` have one entry for each of these dims and numbers; both are empty if batches differ
    in structure. Each entry of `sizes` lists the sizes of the samples in `sample_indices`, or one size if all
    are equal; `elements` is the number of elements of each of these samples. `batches` maps a number of
    samples to the largest sizes measured in batches of that many samples. `longest` is the configured
    data.longest. `has_padding` is true if the mask of any batch shows padding.
    """

    num_samples: int = 0
    sample_indices: list[int] = []
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
        """Whether all samples have the same size and batches stack them."""
        return not self.sample_indices

    @property
    def is_varied(self) -> bool:
        """Whether batches with the same number of samples may differ in shape."""
        return not (self.is_uniform or (self.growths and self._has_rules)) or any(map(_is_varied, self.sizes))

    @property
    def is_bound(self) -> bool:
        """Whether the run may have a larger batch than the planned one, so that the plan is only a lower
        bound."""
        if self.is_uniform:
            return False
        return not self._has_rules or (len(self.sample_indices) < self.num_samples and self.longest is None)

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
        """A note on which batch is planned; "" if all batches are alike."""
        if not (self.is_varied or self.is_bound):
            return ""
        if not self._has_rules:
            return phrase(
                "At least this much: batch sizes follow no rule that the planner recognizes; the plan is "
                "for the largest batch that was read (batches read: {batches}).",
                batches=self.num_read,
            )
        if self._is_end_to_end:
            return self._end_to_end_note()
        shapes = join_phrases(
            dict.fromkeys("x".join(map(str, shape)) for shape in self._largest_sample_shapes()), AND_TEMPLATE
        )
        if self.is_bound:
            return phrase(
                "At least this much: the planner inspected only {seen:,} of {samples:,} samples "
                "(largest: {shapes}). Set data.longest to the length of the longest sample.",
                seen=len(self.sample_indices),
                samples=self.num_samples,
                shapes=shapes,
            )
        if self.longest is not None:
            return phrase(
                "Samples differ in shape; the plan is for a batch of the largest samples "
                "according to data.longest: {shapes}.",
                shapes=shapes,
            )
        return phrase(
            "Samples differ in shape; the plan is for a batch of the largest samples: {shapes}. "
            "The planner inspected all {samples:,} samples.",
            samples=self.num_samples,
            shapes=shapes,
        )

    def _end_to_end_note(self) -> str:
        if self.is_bound:
            return phrase(
                "At least this much: samples are concatenated into batches, and the planner inspected only "
                "{seen:,} of {samples:,} samples. Set data.longest to the length of the "
                "longest sample.",
                seen=len(self.sample_indices),
                samples=self.num_samples,
            )
        if len(self.sample_indices) < self.num_samples:
            return phrase(
                "Samples are concatenated into batches; the plan is for a batch of the longest "
                "samples, according to data.longest."
            )
        return phrase(
            "Samples are concatenated into batches; the plan is for the run's largest batch, "
            "based on all {samples:,} samples.",
            samples=self.num_samples,
        )

    def _largest_sample_shapes(self) -> Iterator[Sizes]:
        """Yield the largest shape of each tensor of a sample, without the batch dim."""
        sizes = iter(self._max_sample_sizes())
        for num_dims in self.num_dims:
            shape = tuple(next(sizes) for _ in range(abs(num_dims)))
            if num_dims > 1:
                yield shape[1:]

    def _max_sample_sizes(self) -> list[int]:
        """Return the largest possible size of each dim of a sample."""
        largest = [max(sizes) for sizes in self.sizes]
        if self.longest is None:
            return largest
        is_any_varied = any(map(_is_varied, self.sizes))
        dims = [dim for num_dims in self.num_dims for dim in (range(num_dims) if num_dims >= 0 else (-1,))]
        follows = [
            _is_varied(sizes) if is_any_varied else dim == 1
            for sizes, dim in zip(self.sizes, dims, strict=True)
        ]
        return [
            max(high, self.longest) if does else high for high, does in zip(largest, follows, strict=True)
        ]

    def largest_batch(self, num: int, config: RunConfig) -> LargestBatch:
        """Find the batch with the most elements among a run's batches of `num` samples."""
        columns = [torch.tensor(sizes) for sizes in self.sizes]
        elements, most_elements = torch.tensor(self.elements), -1
        largest: list[int] = [0] * len(columns)
        indices: list[int] = []
        ends = [
            index
            for index, (growth, sizes) in enumerate(zip(self.growths, self.sizes, strict=True))
            if growth.rule == SUM and _is_varied(sizes)
        ]
        for positions in self._run_batches(num, config):
            batch_elements = elements[positions].sum(dim=1)
            if int(batch_elements.max()) > most_elements:
                most_elements = int(batch_elements.max())
                indices = [
                    self.sample_indices[index] for index in positions[int(batch_elements.argmax())].tolist()
                ]
            for end in ends:
                together = self.growths[end].batch_sizes(columns[end][positions])
                largest[end] = max(largest[end], int(together.max()))
        if not self.growths:
            return LargestBatch(indices, None)
        alone = self._max_sample_sizes()
        is_complete = len(self.sample_indices) == self.num_samples
        for index, growth in enumerate(self.growths):
            if growth.rule == UNKNOWN:
                largest[index] = self._measured_size(index, num)
            elif index not in ends or (self.longest is not None and not is_complete):
                of_longest = torch.full((1, num), alone[index])
                largest[index] = int(growth.batch_sizes(of_longest))
        return LargestBatch(indices, largest)

    def _measured_size(self, index: int, num: int) -> int:
        """Estimate the size at `index` for a batch of `num` samples, from the batches that were read.

        Use the smallest batch with at least `num` samples; if there is none, scale up the batch with the most
        samples.
        """
        if not self.batches:
            return 0
        as_many = [count for count in self.batches if count >= num]
        if as_many:
            return self.batches[min(as_many)][index]
        count = max(self.batches)
        return -(-self.batches[count][index] * num // count)

    def _run_batches(self, num: int, config: RunConfig) -> Iterator[Tensor]:
        """Yield each epoch's batches as a tensor (B, `num`) of positions in `sample_indices`.

        If only some samples were read, the batches are drawn at random from those.
        """
        train = config.train
        epochs = EpochLayout(self.num_samples, train.global_batch, keep_last=config.data.last == "keep")
        steps_per_epoch = max(1, self.num_samples // train.global_batch)
        steps = train.known_steps or (train.epochs or 1) * epochs.steps
        num_epochs = min(-(-steps // steps_per_epoch), max(1, _MAX_DRAWN // self.num_samples))
        # If samples are padded or stacked, the planned sizes do not depend on the order of later epochs.
        num_epochs = num_epochs if self._is_end_to_end or not self.growths else 1
        in_order, drawn = config.data.order == "given", torch.Generator().manual_seed(0)
        is_complete = len(self.sample_indices) == self.num_samples
        positions = torch.empty(self.num_samples, dtype=torch.int64)
        if is_complete:
            positions[torch.tensor(self.sample_indices)] = torch.arange(self.num_samples)
        for epoch in range(1 if in_order and is_complete else num_epochs):
            if not is_complete:
                order = torch.randint(len(self.sample_indices), (self.num_samples,), generator=drawn)
            elif in_order:
                order = positions
            else:
                order = positions[epoch_order(self.num_samples, train.seed, epoch)]
            num_used = min(steps - epoch * steps_per_epoch, steps_per_epoch) * train.global_batch
            num_batched = max(num_used // num, 1) * num
            yield order[:num_batched].view(-1, num)


UNIFORM = Samples()
"""The `Samples` of data whose samples all have the same size."""


def _is_varied(sizes: Sequence[int]) -> bool:
    return len(sizes) > 1


# Rules by which a batch's sizes follow from its samples' sizes, found by reading both.
#
#     longest    the largest of them: padded batches, and sizes that are equal in all samples
#     sum        their sum: stacked samples, and graphs or packed sequences joined end to end. The part
#                `shared` of each size is counted only once per batch, as in offsets (1 + samples)
#     unknown    neither of these, in at least one of the batches that were read
#
# A size is one dim of one tensor, or a number outside the tensors (`max_length`, `num_graphs`). Stacking one
# sample instead made plans 9 to 68 % too low for graphs and packed sequences.

LONGEST: Literal["longest"] = "longest"
SUM: Literal["sum"] = "sum"
UNKNOWN: Literal["unknown"] = "unknown"

Probe = tuple[Sequence[int], int]
"""One size (a dim's length, or a number) in a batch's samples, each read alone, and in the batch itself."""


class Growth(msgspec.Struct, frozen=True):
    """The rule that gives one size of a batch from the sizes of its samples."""

    rule: Literal["longest", "sum", "unknown"]
    shared: int = 0

    def batch_sizes(self, sizes: Tensor) -> Tensor:
        """Apply the rule: return each batch's size (B,), computed from the `sizes` of its samples (B, N).

        The attribute `rule` must not be "unknown".
        """
        if self.rule == LONGEST:
            return sizes.amax(dim=1)
        return sizes.sum(dim=1) - self.shared * (sizes.shape[1] - 1)


def find_growth(probes: Sequence[Probe]) -> Growth:
    """Return the rule that these batches follow; "unknown" if there is none or no batch has several
    samples."""
    if any(len(alone) > 1 for alone, _ in probes) and all(size == max(alone) for alone, size in probes):
        return Growth(LONGEST)
    shared = {divmod(sum(alone) - size, len(alone) - 1) for alone, size in probes if len(alone) > 1}
    if len(shared) == 1 and all(rest == 0 for _, rest in shared):
        return Growth(SUM, shared.pop()[0])
    return Growth(UNKNOWN)


def list_leaves(value: Any) -> list[Tensor | int]:
    """Return the tensors and integers inside tuples, lists and dicts, in order."""
    leaves: list[Tensor | int] = []

    def add(leaf: Tensor | int) -> Tensor | int:
        leaves.append(leaf)
        return leaf  # unchanged: map_leaves rebuilds containers, whose classes may check values

    map_leaves(value, add)
    return leaves


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the structure `value` with `change` applied to every tensor and integer."""
    return map_tensors(value, lambda leaf: leaf if isinstance(leaf, bool) else change(leaf), (Tensor, int))


def sizes_of(leaf: Tensor | int) -> tuple[int, ...]:
    """Return the shape of a tensor leaf; for a number, the number itself."""
    return tuple(leaf.shape) if isinstance(leaf, Tensor) else (leaf,)


def num_elements(leaves: Sequence[Tensor | int]) -> int:
    return sum(leaf.numel() for leaf in leaves if isinstance(leaf, Tensor))


def resize_leaf(leaf: Any, sizes: Sequence[int]) -> Any:
    """Return a zero tensor of the leaf's dtype with these sizes; for a number, return its new value,
    `sizes[0]`."""
    return torch.zeros(tuple(sizes), dtype=leaf.dtype) if isinstance(leaf, Tensor) else sizes[0]
