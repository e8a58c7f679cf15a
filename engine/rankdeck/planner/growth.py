"""How the sizes of a batch follow from the sizes that its samples have alone, found by reading both.

    longest    as the largest of them: padded batches, and what is the same in all
    sum        as all of them together: stacked samples, graphs and packed sequences that are laid end to end.
               Of each sample `shared` is counted once for all, as in offsets (1 + samples)
    unknown    neither, in one of the batches that were read

A size is that of one dim of one tensor, or a number beside the tensors (`max_length`, `num_graphs`). Read
samples.py next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
import torch
from torch import Tensor

LONGEST: Literal["longest"] = "longest"
SUM: Literal["sum"] = "sum"
UNKNOWN: Literal["unknown"] = "unknown"

Probe = tuple[Sequence[int], int]
"""A size of each sample of a batch alone, and that of the batch."""


class Growth(msgspec.Struct, frozen=True):
    """The rule of one size."""

    rule: Literal["longest", "sum", "unknown"]
    shared: int = 0

    def together(self, sizes: Tensor) -> Tensor:
        """What batches with samples of these sizes (B, N) have: (B,). Not of an unknown one."""
        if self.rule == LONGEST:
            return sizes.amax(dim=1)
        return sizes.sum(dim=1) - self.shared * (sizes.shape[1] - 1)


def growth_of(probes: Sequence[Probe]) -> Growth:
    """The rule that all these batches follow; unknown where none has several samples."""
    if any(len(alone) > 1 for alone, _ in probes) and all(size == max(alone) for alone, size in probes):
        return Growth(LONGEST)
    shared = {divmod(sum(alone) - size, len(alone) - 1) for alone, size in probes if len(alone) > 1}
    if len(shared) == 1 and all(rest == 0 for _, rest in shared):
        return Growth(SUM, shared.pop()[0])
    return Growth(UNKNOWN)


def leaves_of(value: Any) -> list[Tensor | int]:
    """The tensors and whole numbers inside tuples, lists and dicts, in order."""
    found: list[Tensor | int] = []
    each_leaf(value, found.append)
    return found


def each_leaf(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure with every tensor and whole number changed."""
    if isinstance(value, Tensor) or (isinstance(value, int) and not isinstance(value, bool)):
        return change(value)
    if isinstance(value, dict):
        return {key: each_leaf(inner, change) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(each_leaf(inner, change) for inner in value)
    return value


def sizes_of(leaf: Tensor | int) -> tuple[int, ...]:
    """Every size of a leaf; the number itself of one that is no tensor."""
    return tuple(leaf.shape) if isinstance(leaf, Tensor) else (leaf,)


def num_elements(leaves: Sequence[Tensor | int]) -> int:
    return sum(leaf.numel() for leaf in leaves if isinstance(leaf, Tensor))


def resized(leaf: Any, sizes: Sequence[int]) -> Any:
    """A leaf of these sizes; what is in it is not kept."""
    return torch.zeros(tuple(sizes), dtype=leaf.dtype) if isinstance(leaf, Tensor) else sizes[0]
