"""What replicas return, taken apart into tensors and put together again.

Tensors may stand in tuples, named tuples, lists, dicts of any class (Hugging Face's ModelOutput) and
dataclasses, with numbers, text and None between them. All else has no first dim along which it could be
joined.

Read parallel_apply.py and fan_out.py next.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import phrase
from rankdeck.parallel.nested import with_items

_CONSTANTS = (bool, int, float, str, type(None))
_LONGEST = 80


@dataclass(frozen=True)
class _Position:
    """Stands in a shell for a tensor, by its number."""

    index: int


@dataclass(frozen=True)
class Shell:
    """What a replica returned without its tensors; `leaves` say where each stands and what else there is."""

    structure: Any
    leaves: tuple[tuple[str, Any], ...]

    def filled(self, tensors: Sequence[Tensor]) -> Any:
        """The structure with other tensors."""
        return _mapped(
            self.structure, lambda leaf, _: tensors[leaf.index] if isinstance(leaf, _Position) else leaf, ""
        )


def taken_apart(output: Any) -> tuple[list[Tensor], Shell]:
    """
    Raises: ModelError where something in it is neither a tensor nor a constant, or no tensor is.
    """
    tensors: list[Tensor] = []
    leaves: list[tuple[str, Any]] = []

    def take(leaf: Any, where: str) -> Any:
        if isinstance(leaf, Tensor):
            tensors.append(leaf)
            leaf = _Position(len(tensors) - 1)
        elif not isinstance(leaf, _CONSTANTS):
            raise _cannot_be_gathered(leaf, where)
        leaves.append((where, leaf))
        return leaf

    structure = _mapped(output, take, "")
    if not tensors:
        raise _cannot_be_gathered(output, "")
    return tensors, Shell(structure, tuple(leaves))


def one_shell(shells: Sequence[Shell]) -> Shell:
    """
    Raises: ModelError where replicas returned different structures.
    """
    if any(shell.leaves != shells[0].leaves for shell in shells):
        raise ModelError(
            phrase("The replicas returned different structures, which cannot be gathered."),
            path="strategy.parallel_loss",
            advice=_ADVICE,
            cure={"strategy.parallel_loss": True},
        )
    return shells[0]


def _mapped(value: Any, change: Callable[[Any, str], Any], where: str) -> Any:
    """The same structure with every leaf changed; `where` is how code gets to it."""
    if isinstance(value, Mapping):
        return with_items(value, [_mapped(value[key], change, f"{where}[{key!r}]") for key in value])
    if isinstance(value, tuple | list):
        names = getattr(value, "_fields", None)
        places = [f".{name}" for name in names] if names else [f"[{index}]" for index in range(len(value))]
        items = [_mapped(item, change, where + place) for item, place in zip(value, places, strict=True)]
        return with_items(value, items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type | _Position):
        own = copy.copy(value)
        for field in dataclasses.fields(value):
            changed = _mapped(getattr(value, field.name), change, f"{where}.{field.name}")
            object.__setattr__(own, field.name, changed)
        return own
    return change(value, where)


_ADVICE = phrase(
    "Set strategy.parallel_loss = true, which gathers losses only, or return tensors, or tuples, dicts or "
    "dataclasses of them."
)


def _cannot_be_gathered(leaf: Any, where: str) -> ModelError:
    shown = repr(leaf)
    return ModelError(
        phrase(
            "The model returned {where}, an object of class {kind}: {shown}, which cannot be gathered from "
            "several devices.",
            where=f"output{where}",
            kind=type(leaf).__name__,
            shown=shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}...",
        ),
        path="strategy.parallel_loss",
        advice=_ADVICE,
        cure={"strategy.parallel_loss": True},
    )
