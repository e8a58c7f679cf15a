"""Where a module keeps state that its forward may change: buffers, frozen weights (an EMA teacher), and plain
attributes that are numbers, words, rows of them, or small tensors.

A slot names one value and everywhere it is held, because a buffer may be two modules'. It finds it in the
module's own tables, and in those of any copy of it. Read rank_state.py next.
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
"""Of each module of a tree, by kind: buffer, weight, attribute."""
Values = dict[str, Any]
"""State by the names of slots."""
MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
"""Attributes that torch gives every module."""
CONTAINERS = (list, tuple, set, deque)
_SCALARS = (bool, int, float, str, type(None))
_MAX_ITEMS = 1000
LARGE_STATE_BYTES = 1 << 20
"""An attribute above it is rather left behind to be looked at."""
_MAX_FROZEN_BYTES = 1 << 28
"""Frozen weights above it are a base model's, not a teacher's: no copy is made to see whether they change."""


@dataclass(eq=False)
class Slot:
    """`holders` are (number of the module in its tree, kind of table, key)."""

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
    """Of a replica under dp, whose weights are plain attributes."""
    return [{**module_tables(module), "weight": vars(module)} for module in root.modules()]


def find_slots(root: nn.Module, tables: Tables, skipped: frozenset[nn.Module]) -> dict[str, Slot]:
    """Slots by name; none where a plan knows no values. Buffers of the `skipped` modules are left out."""
    found: dict[int, Slot] = {}
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
                # One number may be in many places; a tensor or a list in two places is the same one.
                shared = id(slot) if isinstance(value, _SCALARS) else id(value)
                found.setdefault(shared, slot)
                if found[shared] is not slot:
                    found[shared].holders += slot.holders
    return {slot.name: slot for slot in found.values()}


def is_state(value: Any, slot: Slot, samples: int | None = None) -> bool:
    """Whether a value in this slot is state, and not a result: what has a gradient, a row for each sample, or
    is large. What stands for another stage's tensors (see ../pipelining/observed.py) is neither."""
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
    """A number, a word, or not too many of them: what else a module holds is rarely state."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, CONTAINERS):
        return len(value) <= _MAX_ITEMS and all(isinstance(item, _SCALARS) for item in value)
    return isinstance(value, _SCALARS)


def copy_value(value: Any) -> Any:
    """A value that can be changed without the other."""
    if isinstance(value, Tensor):
        own = value.detach().clone()
        return nn.Parameter(own, requires_grad=False) if isinstance(value, nn.Parameter) else own
    return value if isinstance(value, _SCALARS) else copy.copy(value)


def is_same(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return (left.shape, left.dtype) == (right.shape, right.dtype) and torch.equal(left, right)
    return type(left) is type(right) and not isinstance(left, Tensor) and bool(left == right)


def save_state(root: nn.Module) -> Callable[[], None]:
    """A function that gives the module back the state that it has now, in the tensors that hold it now, and
    what its modules' `get_extra_state` gives."""
    extra = [
        (module, copy.deepcopy(module.get_extra_state()))
        for module in root.modules()
        if type(module).get_extra_state is not nn.Module.get_extra_state
    ]
    tables = [module_tables(module) for module in root.modules()]
    slots = list(find_slots(root, tables, frozenset()).values())
    kept = [(slot, slot.value(tables), copy_value(slot.value(tables))) for slot in slots]

    def put_back() -> None:
        for slot, holder, value in kept:
            if isinstance(holder, Tensor):
                holder.data.copy_(value)
            slot.set_value(tables, holder if isinstance(holder, Tensor) else copy_value(value))
        for module, state in extra:
            module.set_extra_state(copy.deepcopy(state))

    return put_back


def _as_real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def weight_sums(modules: Sequence[nn.Module]) -> dict[int, float]:
    """Of each module with trained weights of its own, by its number: a sum that shows whether they change,
    also past autograd."""
    sums: dict[int, float] = {}
    for number, module in enumerate(modules):
        weights = [weight for weight in own_parameters(module).values() if weight is not None]
        trained = [weight for weight in weights if weight.requires_grad and not is_dtensor(weight)]
        if trained:
            sums[number] = sum(
                float(_as_real(weight.detach()).sum(dtype=torch.float64)) for weight in trained
            )
    return sums
