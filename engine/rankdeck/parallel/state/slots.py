"""Find where a module stores state that its forward pass may change.

Such state is stored in buffers, frozen weights (an EMA teacher), and plain attributes that are numbers, text,
containers of these, or small tensors. A slot is one value with every (module, table, key) that holds it,
because two modules may share a buffer. A slot's value can be looked up in the tables of the module itself,
and in the tables of any copy of the module. Read
rank_state.py next.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rankdeck.torch_compat.dtensors import is_dtensor, local_part
from rankdeck.torch_compat.fake_tensors import FakeTensor
from rankdeck.torch_compat.modules import is_expanded, own_buffers, own_parameters

Tables = Sequence[Mapping[str, MutableMapping[str, Any]]]
"""The dicts in which each module of a tree keeps its values, by kind: buffer, weight, attribute."""
Values = dict[str, Any]
"""State by slot name."""
MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
"""Attributes that torch gives every module."""
CONTAINERS = (list, tuple, set, deque)
_SCALARS = (bool, int, float, str, type(None))
_MAX_ITEMS = 1000
LARGE_STATE_BYTES = 1 << 20
"""Size limit of state: a larger attribute is more likely a result that is stored for inspection."""
_MAX_FROZEN_BYTES = 1 << 28
"""Maximum size of frozen weights that are copied to detect changes: larger weights are assumed to be a base
model's, not an EMA teacher's."""


@dataclass(eq=False)
class Slot:
    """One value of a module tree. `holders` are (index of the module in its tree, kind of table, key)."""

    name: str
    holders: list[tuple[int, str, str]] = field(default_factory=list)

    def value(self, tables: Tables) -> Any:
        module, kind, key = self.holders[0]
        return tables[module][kind].get(key)

    def set_value(self, tables: Tables, value: Any) -> None:
        for module, kind, key in self.holders:
            tables[module][kind][key] = value


def module_tables(module: nn.Module) -> dict[str, MutableMapping[str, Any]]:
    return {"buffer": own_buffers(module), "weight": own_parameters(module), "attribute": vars(module)}


def replica_tables(root: nn.Module) -> Tables:
    """Return the tables of a dp replica, whose weights are plain attributes."""
    return [{**module_tables(module), "weight": vars(module)} for module in root.modules()]


def find_slots(root: nn.Module, tables: Tables, skipped: frozenset[nn.Module]) -> dict[str, Slot]:
    """Return slots by name, except buffers of the `skipped` modules; return an empty dict in planning, where
    tensors have no values."""
    slots: dict[int, Slot] = {}
    if any(isinstance(local_part(weight), FakeTensor) for weight in root.parameters()):
        return {}
    frozen = sum(weight.nbytes for weight in root.parameters() if not weight.requires_grad)
    kinds = ("buffer", "weight", "attribute") if frozen <= _MAX_FROZEN_BYTES else ("buffer", "attribute")
    for number, (path, module) in enumerate(root.named_modules()):
        for kind in kinds:
            if kind == "buffer" and module in skipped:
                continue
            for key, value in tables[number][kind].items():
                slot = Slot(f"{kind}/{path}.{key}", [(number, kind, key)])
                if (kind == "attribute" and key in MODULE_ATTRIBUTES) or not is_state(value, slot):
                    continue
                # Equal numbers may be unrelated values; a tensor or a list in two places is one value.
                shared = id(slot) if isinstance(value, _SCALARS) else id(value)
                slots.setdefault(shared, slot)
                if slots[shared] is not slot:
                    slots[shared].holders += slot.holders
    return {slot.name: slot for slot in slots.values()}


def is_state(value: Any, slot: Slot, samples: int | None = None) -> bool:
    """Check whether a value in this slot is state and not a result.

    A tensor is a result if it requires a gradient, has a row per sample, or is large. Placeholders for
    another stage's tensors (see ../pipelining/observed.py) are not state either.
    """
    is_attribute = slot.holders[0][1] == "attribute"
    if not isinstance(value, Tensor):
        return is_small_value(value)
    if is_dtensor(value) or value.layout != torch.strided:
        return False
    if is_expanded(value) or value.requires_grad or value.is_meta:
        return False
    has_samples = value.dim() > 1 and len(value) == samples
    return not is_attribute or (value.nbytes <= LARGE_STATE_BYTES and not has_samples)


def is_small_value(value: Any) -> bool:
    """Check whether a value is a number, text, or a small container of these; other objects are rarely
    state."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, CONTAINERS):
        return len(value) <= _MAX_ITEMS and all(isinstance(item, _SCALARS) for item in value)
    return isinstance(value, _SCALARS)


def copy_value(value: Any) -> Any:
    """Copy a value so that the original and the copy can change independently."""
    if isinstance(value, Tensor):
        clone = value.detach().clone()
        return nn.Parameter(clone, requires_grad=False) if isinstance(value, nn.Parameter) else clone
    return value if isinstance(value, _SCALARS) else copy.copy(value)


def is_same(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return (left.shape, left.dtype) == (right.shape, right.dtype) and torch.equal(left, right)
    return type(left) is type(right) and not isinstance(left, Tensor) and bool(left == right)


def save_state(root: nn.Module) -> Callable[[], None]:
    """Save the module's current state; return a function that restores it.

    That function writes the values back into the tensors from which they were saved, and passes the saved
    results of `get_extra_state` back to the modules.
    """
    extra = [
        (module, copy.deepcopy(module.get_extra_state()))
        for module in root.modules()
        if type(module).get_extra_state is not nn.Module.get_extra_state
    ]
    tables = [module_tables(module) for module in root.modules()]
    slots = list(find_slots(root, tables, frozenset()).values())
    saved = [(slot, slot.value(tables), copy_value(slot.value(tables))) for slot in slots]

    def put_back() -> None:
        for slot, holder, value in saved:
            if isinstance(holder, Tensor):
                holder.data.copy_(value)
            slot.set_value(tables, holder if isinstance(holder, Tensor) else copy_value(value))
        for module, state in extra:
            module.set_extra_state(copy.deepcopy(state))

    return put_back


def _as_real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def weight_sums(modules: Sequence[nn.Module]) -> dict[int, float]:
    """Return the sum of each module's own trainable weights, by module index; omit modules without any.

    The sums show whether weights change, even if they are changed through `.data`.
    """
    sums: dict[int, float] = {}
    for number, module in enumerate(modules):
        weights = [weight for weight in own_parameters(module).values() if weight is not None]
        trained = [weight for weight in weights if weight.requires_grad and not is_dtensor(weight)]
        if trained:
            sums[number] = sum(
                float(_as_real(weight.detach()).sum(dtype=torch.float64)) for weight in trained
            )
    return sums
