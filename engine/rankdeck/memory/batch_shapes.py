"""Remember which batches the ledger has tracked, by the sizes of their tensors.

A batch that exceeds each tracked batch in at least one dimension may need more memory than any of them. The
step of such a batch is tracked even if the step is not due to be sampled, as the reported peak would
otherwise be too low. Read training/sampling_budget.py first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from rankdeck.torch_compat.dispatch import storage_tensors

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[tuple[object, ...], tuple[int, ...]]
"""(dtype, layout and number of dimensions of each tensor; the sizes of all tensors, concatenated)."""


def shape_of(tensors: Iterable[Tensor]) -> Shape:
    """Return the shape of a batch with these tensors. The sizes of a sparse tensor also include its number of
    stored elements."""
    kinds: list[object] = []
    sizes: list[int] = []
    for tensor in tensors:
        kinds.append((tensor.dtype, tensor.layout, tensor.dim()))
        # A nested tensor has no regular shape.
        sizes += [tensor.numel()] if tensor.is_nested else tensor.shape
        if tensor.layout is not torch.strided:
            sizes.append(sum(component.numel() for component in storage_tensors(tensor)))
    return tuple(kinds), tuple(sizes)


class TrackedBatches:
    """The shapes of the batches that were tracked."""

    def __init__(self) -> None:
        self._known: set[Shape] = set()
        self._largest: dict[tuple[object, ...], list[tuple[int, ...]]] = {}
        """(dtype, layout, number of dimensions of each tensor) -> sizes of the largest batches. No entry of a
        list is at least as large as another in every dimension."""

    def __contains__(self, shape: Shape) -> bool:
        return shape in self._known

    def covers(self, shape: Shape) -> bool:
        """Check whether some tracked batch is at least as large as `shape` in every dimension."""
        kinds, sizes = shape
        return any(_covers(tracked, sizes) for tracked in self._largest.get(kinds, ()))

    def add(self, shape: Shape) -> None:
        if not self.covers(shape):
            kinds, sizes = shape
            others = self._largest.get(kinds, ())
            self._largest[kinds] = [*(other for other in others if not _covers(sizes, other)), sizes]
        self._known.add(shape)


def _covers(large: tuple[int, ...], small: tuple[int, ...]) -> bool:
    return all(size >= other for size, other in zip(large, small, strict=True))
