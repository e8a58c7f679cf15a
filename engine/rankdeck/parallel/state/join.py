"""What one device has after a batch, from what the batch's parts have left.

Read slots.py before, over_ranks.py next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rankdeck.parallel.state.slots import same

_FEWEST = 4
"""A part's samples that cannot be a number of forwards: a layer is used twice, or computed again."""


def joined(before: Any, values: Sequence[Any], samples: Sequence[int]) -> Any:
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
    if all(same(first, value) for value in values):
        return first
    if isinstance(first, float) and all(isinstance(value, float) for value in values):
        return sum(value * n for value, n in pairs) / total
    if all(is_averaged(value) and value.shape == first.shape for value in values):
        weighted = [wide(value) * n for value, n in pairs]
        return torch.stack(weighted).sum(0).div(total).to(first.dtype)
    return first


def counts_samples(before: Any, value: Any, samples: int) -> bool:
    """Whether a number has grown by so many samples. Where they are few, it may as well count forwards."""
    return samples >= _FEWEST and _is_number(before) and _is_number(value) and bool(value - before == samples)


def _is_number(value: Any) -> bool:
    """A count may be a tensor."""
    if isinstance(value, Tensor):
        return value.numel() == 1 and value.dtype != torch.bool
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_averaged(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def wide(tensor: Tensor) -> Tensor:
    """A tensor in which sums keep their digits."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
