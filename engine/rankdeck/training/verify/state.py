"""State of a model on one device, kept and put back without the code by which strategies handle it.

Read reference.py next.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

_OF_TORCH = frozenset(vars(nn.Module()))


def keep_state(model: nn.Module) -> Callable[[], None]:
    """A function that gives the model back the buffers, frozen weights and attributes that it has now."""
    modules = list(model.modules())
    tensors = [*model.buffers(), *(weight for weight in model.parameters() if not weight.requires_grad)]
    values = [tensor.detach().clone() for tensor in tensors]
    tables = [dict(module._buffers) for module in modules]
    attributes = [_attributes(module) for module in modules]

    @torch.no_grad()
    def put_back() -> None:
        for tensor, value in zip(tensors, values, strict=True):
            tensor.data.copy_(value)
        for module, table, own in zip(modules, tables, attributes, strict=True):
            module._buffers.update(table)
            vars(module).update(copy.deepcopy(own))

    return put_back


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Copies of what a module keeps beside torch's own tables, as far as that can be copied."""
    found = {}
    for name, value in vars(module).items():
        is_result = isinstance(value, Tensor) and value.requires_grad
        if name in _OF_TORCH or isinstance(value, nn.Module) or is_result:
            continue
        try:
            found[name] = copy.deepcopy(value)
        except Exception:  # a lock, a file, a result with a graph: no state that a forward is told by
            continue
    return found
