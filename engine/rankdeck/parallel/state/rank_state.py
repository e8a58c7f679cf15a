"""Merge the state after a batch across the ranks that process slices of the batch.

Ranks find out together which parts of their changed state differ between them. These are few, because a
counter or an EMA teacher changes in the same way on every rank. From then on only the differing parts are
sent: tensors to be averaged are all-reduced, numbers and text are gathered; for all other values, the
first rank's value is used. Read slots.py first, forward.py next.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rankdeck.parallel.collectives.broadcast import broadcast_from_rank_0
from rankdeck.parallel.collectives.buckets import apply_in_buckets
from rankdeck.parallel.state.slots import Values, is_same

Groups = Sequence[dist.ProcessGroup | None]
"""Groups of ranks that process different samples of the batch, one per mesh axis; None means all ranks."""


class CrossRankState:
    """Record of the state values that differ between ranks, by name; it also merges these values."""

    def __init__(self) -> None:
        self.differing_names: list[str] = []

    def find_differences(
        self, groups: Groups, changed: Mapping[str, bool], value_of: Callable[[str], Any]
    ) -> None:
        """Add to `differing_names` the state values that changed on any rank and differ between ranks.

        `changed` maps the name of each changed value to whether the value counts samples; such counts are
        always treated as different. All ranks call this together.
        """
        changed_by_rank = _all_gather(dict(changed), groups)
        names = sorted({name for entries in changed_by_rank for name in entries})
        prints = _all_gather([_fingerprint(value_of(name)) for name in names], groups) if names else []
        for name, entries in zip(names, zip(*prints, strict=True), strict=False):
            is_one_kind = len({kind for kind, _ in entries}) == 1
            is_other = any(content != entries[0][1] for _, content in entries[1:])
            if is_one_kind and (is_other or any(of_rank.get(name) for of_rank in changed_by_rank)):
                self.differing_names = sorted({*self.differing_names, name})

    @torch.no_grad()
    def merge(
        self, groups: Groups, values: Mapping[str, Any], before: Mapping[str, Any], samples: int
    ) -> Values:
        """Return the items of `values` that differ between ranks, merged into the values that one device
        would have. All ranks call this together."""
        names = [name for name in self.differing_names if name in values]
        large = [name for name in names if isinstance(values[name], Tensor) and values[name].numel() != 1]
        small = [name for name in names if name not in large]
        merged = self._merge_small(groups, values, before, small, samples) if small else {}
        averaged = [name for name in large if is_averaged(values[name])]
        sums = [widen(values[name]) * samples for name in averaged]
        rest = {name: values[name].clone() for name in large if name not in averaged}
        if averaged:
            # The count is sent with the sums, without a message of its own.
            sums.append(sums[0].new_full((1,), samples))
        for group in groups:
            apply_in_buckets(sums, functools.partial(dist.all_reduce, group=group))
            broadcast_from_rank_0(rest.values(), group)
        for name, total in zip(averaged, sums, strict=False):
            merged[name] = (total / sums[-1].to(total)).to(values[name].dtype)
        return merged | rest

    @staticmethod
    def _merge_small(
        groups: Groups, values: Mapping[str, Any], before: Mapping[str, Any], names: list[str], samples: int
    ) -> Values:
        local_values = [
            (_to_number(before.get(name, values[name])), _to_number(values[name])) for name in names
        ]
        gathered = _all_gather((local_values, samples), groups)
        merged: Values = {}
        for index, name in enumerate(names):
            first = gathered[0][0][index][0]
            value = merge_values(
                first, [rank_values[index][1] for rank_values, _ in gathered], [n for _, n in gathered]
            )
            like = values[name]
            merged[name] = torch.full_like(like, value) if isinstance(like, Tensor) else value
        return merged


def _to_number(value: Any) -> Any:
    # As plain numbers, they travel in one object gather.
    return value.item() if isinstance(value, Tensor) else value


def _fingerprint(value: Any) -> tuple[Any, Any]:
    """Return a value's kind and content (two sums for a tensor), which are the same for equal values."""
    if not isinstance(value, Tensor):
        return None, value
    # Two sums in fp64 stand for the tensor: equal tensors give equal sums.
    wider = value.detach().to(torch.complex128 if value.is_complex() else torch.float64)
    return (str(value.dtype), tuple(value.shape)), (wider.sum().item(), wider.abs().square().sum().item())


def _all_gather(local_object: Any, groups: Groups) -> list[Any]:
    """Return every rank's object, in rank order."""
    objects = [local_object]
    for group in groups:
        gathered: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(gathered, objects, group=group)
        objects = [item for several in gathered for item in several]
    return objects


# The state that one device would have after a batch, merged from the states of the batch's chunks.

_MIN_COUNTED_SAMPLES = 4
"""Minimum chunk size for detecting counts of samples: growth by a smaller number may come from counting
forward passes, if a layer is used twice or recomputed."""


def merge_values(before: Any, values: Sequence[Any], samples: Sequence[int]) -> Any:
    """Merge the final values of chunks that all started from `before`; chunk i has `samples[i]` samples.

    If every chunk has increased the value by its number of samples, the increases are added up. Otherwise, if
    the values differ, floating-point values are averaged, weighted by samples, and for other types the first
    value is used. Chunks of 0 samples are ignored.
    """
    pairs = [(value, n) for value, n in zip(values, samples, strict=True) if n] or [(values[0], 1)]
    values, samples = [value for value, _ in pairs], [n for _, n in pairs]
    first, total = values[0], sum(samples)
    if len(values) == 1:
        return first
    if all(counts_samples(before, *pair) for pair in pairs):
        return before + total
    if all(is_same(first, value) for value in values):
        return first
    if isinstance(first, float) and all(isinstance(value, float) for value in values):
        return sum(value * n for value, n in pairs) / total
    if all(is_averaged(value) and value.shape == first.shape for value in values):
        weighted = [widen(value) * n for value, n in pairs]
        return torch.stack(weighted).sum(0).div(total).to(first.dtype)
    return first


def counts_samples(before: Any, value: Any, samples: int) -> bool:
    """Check whether a number has grown by `samples`.

    Return False for small chunks, whose number of samples might equal a number of forward passes.
    """
    return (
        samples >= _MIN_COUNTED_SAMPLES
        and _is_number(before)
        and _is_number(value)
        and bool(value - before == samples)
    )


def _is_number(value: Any) -> bool:
    """Check whether a value is a number or a one-element tensor; a count may be either."""
    if isinstance(value, Tensor):
        return value.numel() == 1 and value.dtype != torch.bool
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_averaged(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def widen(tensor: Tensor) -> Tensor:
    """Return the tensor in a dtype in which sums keep their precision: fp32 instead of fp16 or bf16."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
