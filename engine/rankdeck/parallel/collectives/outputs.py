"""Flatten replicas' outputs into tensors, and rebuild outputs from tensors.

Tensors may be in tuples, named tuples, lists, dicts of any class (such as Hugging Face's ModelOutput) and
dataclasses, alongside numbers, strings and None. Other objects cannot be joined: they have no first dim.

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
from rankdeck.parallel.pytree import replace_items

_CONSTANTS = (bool, int, float, str, type(None))
_MAX_REPR_LENGTH = 80


@dataclass(frozen=True)
class _TensorSlot:
    """Placeholder for a tensor in an output structure, with the tensor's index."""

    index: int


@dataclass(frozen=True)
class OutputStructure:
    """A replica's output without its tensors. `leaves` pairs each access path with a tensor slot or a
    constant."""

    structure: Any
    leaves: tuple[tuple[str, Any], ...]

    def unflatten(self, tensors: Sequence[Tensor]) -> Any:
        """Return the structure with `tensors` in its slots."""
        return _map_leaves(
            self.structure, lambda leaf, _: tensors[leaf.index] if isinstance(leaf, _TensorSlot) else leaf, ""
        )


def flatten_output(output: Any) -> tuple[list[Tensor], OutputStructure]:
    """Split an output into its tensors and its structure.

    Raises: ModelError if a leaf is neither a tensor nor a constant, or if there is no tensor.
    """
    tensors: list[Tensor] = []
    leaves: list[tuple[str, Any]] = []

    def take(leaf: Any, where: str) -> Any:
        if isinstance(leaf, Tensor):
            tensors.append(leaf)
            leaf = _TensorSlot(len(tensors) - 1)
        elif not isinstance(leaf, _CONSTANTS):
            raise _gather_error(leaf, where)
        leaves.append((where, leaf))
        return leaf

    structure = _map_leaves(output, take, "")
    if not tensors:
        raise _gather_error(output, "")
    return tensors, OutputStructure(structure, tuple(leaves))


def common_structure(shells: Sequence[OutputStructure]) -> OutputStructure:
    """Return the structure that all replicas share.

    Raises: ModelError if replicas returned different structures.
    """
    # Leaves include constants: replicas that return different numbers or text differ too.
    if any(shell.leaves != shells[0].leaves for shell in shells):
        raise ModelError(
            phrase("The replicas returned different structures, which cannot be gathered."),
            path="strategy.parallel_loss",
            advice=_ADVICE,
            changes={"strategy.parallel_loss": True},
        )
    return shells[0]


def _map_leaves(value: Any, change: Callable[[Any, str], Any], where: str) -> Any:
    """Return the structure of `value` with `change` applied to every leaf and its access path; `where` is the
    access path of `value`, as Python code."""
    if isinstance(value, Mapping):
        return replace_items(value, [_map_leaves(value[key], change, f"{where}[{key!r}]") for key in value])
    if isinstance(value, tuple | list):
        names = getattr(value, "_fields", None)
        suffixes = [f".{name}" for name in names] if names else [f"[{index}]" for index in range(len(value))]
        items = [
            _map_leaves(item, change, where + suffix) for item, suffix in zip(value, suffixes, strict=True)
        ]
        return replace_items(value, items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type | _TensorSlot):
        clone = copy.copy(value)
        for field in dataclasses.fields(value):
            # Set through `object`, because the dataclass may be frozen.
            changed = _map_leaves(getattr(value, field.name), change, f"{where}.{field.name}")
            object.__setattr__(clone, field.name, changed)
        return clone
    return change(value, where)


_ADVICE = phrase(
    "Return tensors, or tuples, dicts or dataclasses of tensors. Or set strategy.parallel_loss "
    "= true, which gathers only losses."
)


def _gather_error(leaf: Any, where: str) -> ModelError:
    text = repr(leaf)
    return ModelError(
        phrase(
            "The model returned {where} of class {kind}, which cannot be gathered from several "
            "devices: {shown}.",
            where=f"output{where}",
            kind=type(leaf).__name__,
            shown=text if len(text) <= _MAX_REPR_LENGTH else f"{text[:_MAX_REPR_LENGTH]}...",
        ),
        path="strategy.parallel_loss",
        advice=_ADVICE,
        changes={"strategy.parallel_loss": True},
    )
