"""State of one batch over the ranks that have its slices.

Ranks find out together what of their changed state differs between them, which is little: a counter and a
teacher advance alike everywhere. From then on only that is sent: averages by all-reduce, numbers and words
gathered, of all else the first rank's. Read slots.py before, forward.py next.
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
"""Ranks that have other samples of the batch, axis by axis of a mesh; None is all ranks."""


class CrossRankState:
    """Knows what differs between ranks."""

    def __init__(self) -> None:
        self.differing_names: list[str] = []

    def find_differences(
        self, groups: Groups, changed: Mapping[str, bool], value_of: Callable[[str], Any]
    ) -> None:
        """Find out what of that which has changed on any rank differs; `changed` says of each whether it
        counts samples, which differ. All ranks call this together."""
        known = _all_gather(dict(changed), groups)
        names = sorted({name for own in known for name in own})
        prints = _all_gather([_fingerprint(value_of(name)) for name in names], groups) if names else []
        for name, own in zip(names, zip(*prints, strict=True), strict=False):
            is_one_kind = len({kind for kind, _ in own}) == 1
            is_other = any(content != own[0][1] for _, content in own[1:])
            if is_one_kind and (is_other or any(of_rank.get(name) for of_rank in known)):
                self.differing_names = sorted({*self.differing_names, name})

    @torch.no_grad()
    def merge(
        self, groups: Groups, values: Mapping[str, Any], before: Mapping[str, Any], samples: int
    ) -> Values:
        """What differs between ranks, as one device has it. All ranks call this together."""
        names = [name for name in self.differing_names if name in values]
        large = [name for name in names if isinstance(values[name], Tensor) and values[name].numel() != 1]
        small = [name for name in names if name not in large]
        found = self._merge_small(groups, values, before, small, samples) if small else {}
        averaged = [name for name in large if is_averaged(values[name])]
        sums = [widen(values[name]) * samples for name in averaged]
        rest = {name: values[name].clone() for name in large if name not in averaged}
        if averaged:
            sums.append(sums[0].new_full((1,), samples))
        for group in groups:
            apply_in_buckets(sums, functools.partial(dist.all_reduce, group=group))
            broadcast_from_rank_0(rest.values(), group)
        for name, total in zip(averaged, sums, strict=False):
            found[name] = (total / sums[-1].to(total)).to(values[name].dtype)
        return found | rest

    @staticmethod
    def _merge_small(
        groups: Groups, values: Mapping[str, Any], before: Mapping[str, Any], names: list[str], samples: int
    ) -> Values:
        own = [(_to_number(before.get(name, values[name])), _to_number(values[name])) for name in names]
        parts = _all_gather((own, samples), groups)
        found: Values = {}
        for index, name in enumerate(names):
            first = parts[0][0][index][0]
            value = merge_values(first, [part[index][1] for part, _ in parts], [n for _, n in parts])
            like = values[name]
            found[name] = torch.full_like(like, value) if isinstance(like, Tensor) else value
        return found


def _to_number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def _fingerprint(value: Any) -> tuple[Any, Any]:
    """What a value is, and its content: equal on two ranks where the values are."""
    if not isinstance(value, Tensor):
        return None, value
    wider = value.detach().to(torch.complex128 if value.is_complex() else torch.float64)
    return (str(value.dtype), tuple(value.shape)), (wider.sum().item(), wider.abs().square().sum().item())


def _all_gather(own: Any, groups: Groups) -> list[Any]:
    """One of each rank's, in the order of the ranks."""
    parts = [own]
    for group in groups:
        found: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(found, parts, group=group)
        parts = [part for several in found for part in several]
    return parts


# What one device has after a batch, from what the batch's parts have left.

_MIN_COUNTED_SAMPLES = 4
"""A part's samples that cannot be a number of forwards: a layer is used twice, or computed again."""


def merge_values(before: Any, values: Sequence[Any], samples: Sequence[int]) -> Any:
    """One value of those that parts with so many samples have left, all of which began with `before`.

    Equal ones count once, unless each part has added the number of its samples. Floating ones are averaged by
    samples; of all others that differ the first stays. Parts of 0 samples count nothing.
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
    """Whether a number has grown by so many samples. Where they are few, it may as well count forwards."""
    return (
        samples >= _MIN_COUNTED_SAMPLES
        and _is_number(before)
        and _is_number(value)
        and bool(value - before == samples)
    )


def _is_number(value: Any) -> bool:
    """A count may be a tensor."""
    if isinstance(value, Tensor):
        return value.numel() == 1 and value.dtype != torch.bool
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_averaged(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def widen(tensor: Tensor) -> Tensor:
    """A tensor in which sums keep their digits."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
