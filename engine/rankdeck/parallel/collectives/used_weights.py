"""Which weights took part in a step on any rank, so that those that took part nowhere keep no gradient.

A rank that did not use a weight gives zeros where another one did. Where none did, there is no gradient, as
on one device: an optimizer leaves such a weight alone, and would let a gradient of zeros decay it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def used_anywhere(
    is_used: Sequence[bool], device: torch.device, group: dist.ProcessGroup | None = None
) -> list[bool]:
    """Of each weight whether any rank of the group used it. All of them call this with as many weights.

    A rank that used all of them knows the answer without waiting for it.
    """
    flags = torch.tensor(is_used, dtype=torch.uint8, device=device)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=group)
    return list(is_used) if all(is_used) else [bool(flag) for flag in flags.tolist()]


def all_equal(number: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Whether all ranks of the group have the same whole number, as a tensor without dims."""
    both = torch.stack([number, -number])
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=group)
    return both[0] == -both[1]
