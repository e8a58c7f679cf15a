"""Which marked tensors a result was computed from, whatever went through autograd or around it.

A stage has blanks in place of what it lacks: weights of other stages, and results of modules that ran before
it. What it computes with a blank must be dropped before it hands anything on. Values cannot show that: a
blank may be multiplied by a gate that is zero today, and a plan's tensors have none. So every operation hands
the marks of its arguments on to its results. Read equality.py next.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from rankdeck.torch_compat.dispatch import DispatchMode, OpOverload, computed, storage_key, tree_leaves


class Origins(DispatchMode):
    """While it is active, operations pass marks on. Marked storages live as long as this."""

    def __init__(self) -> None:
        super().__init__()
        self._marks: dict[int, frozenset[str]] = {}
        self._alive: list[Tensor] = []

    def mark(self, tensor: Tensor, names: Iterable[str]) -> None:
        key = _key(tensor)
        self._marks[key] = self._marks.get(key, frozenset()).union(names)
        self._alive.append(tensor.detach())

    def of(self, tensors: Iterable[Tensor]) -> frozenset[str]:
        """The marks of everything that these tensors were computed from."""
        marks = [self._marks[key] for key in map(_key, tensors) if key in self._marks]
        return frozenset[str]().union(*marks)

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = computed(func, args, kwargs)
        if self._marks and not _reads_shapes_only(func):
            names = self.of(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
            if names:
                for leaf in tree_leaves(result):
                    if isinstance(leaf, Tensor):
                        self.mark(leaf, names)
        return result


def _key(tensor: Tensor) -> int:
    try:
        return storage_key(tensor.untyped_storage())
    except (NotImplementedError, RuntimeError):  # sparse, say
        return id(tensor)


def _reads_shapes_only(func: OpOverload) -> bool:
    """Whether values of its arguments do not matter: `zeros_like`, `new_empty` and their kind."""
    name = func.__name__.partition(".")[0]
    return name.startswith("new_") or name.endswith("_like")
