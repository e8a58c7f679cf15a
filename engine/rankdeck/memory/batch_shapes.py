"""Which batches the ledger has followed, by the sizes of their tensors.

A batch that is longer in one dimension than every followed one may need more memory than any of them: such a
step is followed, or the peak of a run would be that of its usual steps. Read samplers.py before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from rankdeck.torch_compat.dispatch import storage_tensors

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[tuple[object, ...], tuple[int, ...]]
"""What kind of tensor each is, and the sizes of all of them in a row."""


def shape_of(tensors: Iterable[Tensor]) -> Shape:
    """The shape of a batch with these tensors; how much a sparse one holds counts as one size more."""
    kinds: list[object] = []
    sizes: list[int] = []
    for tensor in tensors:
        kinds.append((tensor.dtype, tensor.layout, tensor.dim()))
        sizes += [tensor.numel()] if tensor.is_nested else tensor.shape
        if tensor.layout is not torch.strided:
            sizes.append(sum(part.numel() for part in storage_tensors(tensor)))
    return tuple(kinds), tuple(sizes)


class TrackedBatches:
    """The shapes of the batches that were followed."""

    def __init__(self) -> None:
        self._known: set[Shape] = set()
        self._largest: dict[tuple[object, ...], list[tuple[int, ...]]] = {}
        """By the kinds of tensors: sizes of which none covers another."""

    def __contains__(self, shape: Shape) -> bool:
        return shape in self._known

    def covers(self, shape: Shape) -> bool:
        """Whether one of them is at least as large in every dimension."""
        kinds, sizes = shape
        return any(_covers(known, sizes) for known in self._largest.get(kinds, ()))

    def add(self, shape: Shape) -> None:
        if not self.covers(shape):
            kinds, sizes = shape
            others = self._largest.get(kinds, ())
            self._largest[kinds] = [*(known for known in others if not _covers(sizes, known)), sizes]
        self._known.add(shape)


def _covers(large: tuple[int, ...], small: tuple[int, ...]) -> bool:
    return all(one >= other for one, other in zip(large, small, strict=True))
