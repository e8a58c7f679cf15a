"""Save training state other than weights, persistent buffers and per-weight optimizer state.

This covers values in an optimizer's `param_groups` and attributes, non-persistent buffers, and tensors,
numbers and lists of them that a module keeps as plain attributes.

Most such values never change during training: the configuration or the code sets them, and the user may edit
either before a resume. So only values that differ from those before the first step are saved. Names are
<where>/<key>, with <where> one of

    group/<index>    optimizer    state    buffer/<module>    attribute/<module>

An optimizer may contain another optimizer (Lookahead, SAM). The inner optimizer's entries are
group/<path>:<index>, optimizer/<path> and state/<path>, where <path> is the attribute that holds the inner
optimizer. Read training_state.py next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rankdeck.checkpoint.json_values import from_json_value, to_json_value
from rankdeck.parallel.state.slots import CONTAINERS, LARGE_STATE_BYTES, MODULE_ATTRIBUTES, is_small_value
from rankdeck.torch_compat.dtensors import is_dtensor
from rankdeck.torch_compat.modules import own_buffers, split_state_dict

_Owner = MutableMapping[Any, Any]
_TORCH_KEYS = {
    "group": {"params", "lr", "initial_lr"},  # the loop sets the rate in each step
    "optimizer": {"state", "defaults", "param_groups"},
    "attribute": MODULE_ATTRIBUTES,
}
_HOOKS_PREFIX = "_optimizer_"
"""Prefix of the attributes in which torch stores an optimizer's hooks."""


class ExtraState:
    """Extra state of a model and its optimizer, compared with their state before the first step.

    Create it before the first step, once model and optimizer are on their final devices.
    """

    def __init__(self, module: nn.Module, optimizer: Optimizer) -> None:
        self._module = module
        self.optimizers = find_optimizers(optimizer)
        # Copies, because steps change these tensors in place.
        self._first_tensors = {name: _to_host(value) for name, value in self._iter_entries(Tensor)}
        self._first_values = dict(self._iter_json_values())

    def changed_entries(self) -> tuple[dict[str, Tensor], dict[str, object], list[str]]:
        """Return the changed tensors, the changed values as JSON, and the names of the changed entries that
        are not saved."""
        tensors = {
            name: value
            for name, value in self._iter_entries(Tensor)
            if not _is_same(self._first_tensors.get(name), value)
        }
        now = {
            name: plain
            for name, plain in self._iter_json_values()
            if name not in self._first_values or self._first_values[name] != plain
        }
        large = [name for name, value in tensors.items() if self._is_large_and_new(name, value)]
        lost = [*large, *(name for name, plain in now.items() if isinstance(plain, _Opaque))]
        return (
            {name: value for name, value in tensors.items() if name not in lost},
            {name: plain for name, plain in now.items() if name not in lost},
            lost,
        )

    def _is_large_and_new(self, name: str, value: Tensor) -> bool:
        """Return whether an entry is a large attribute that is new or has a new shape: probably an activation
        that the module's forward method stored for inspection."""
        first = self._first_tensors.get(name)
        grown = first is None or first.shape != _local(value).shape
        return name.startswith("attribute/") and grown and value.nbytes > LARGE_STATE_BYTES

    def load(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> list[str]:
        """Restore the tensors and values that `changed_entries` returned; return the names of the entries for
        which this run has no buffer, attribute, parameter group or optimizer."""
        owners = dict(self._iter_owners())
        homeless = []
        device = next(self._module.parameters()).device
        for name in [*tensors, *values]:
            where, _, key = name.rpartition("/")
            owner = owners.get(where)
            if owner is None or (where.startswith(("buffer", "attribute")) and key not in owner):
                homeless.append(name)
            elif name in values:
                owner[key] = from_json_value(values[name], device)
            else:
                _put_tensor(owner, key, tensors[name], device)
        return homeless

    def _iter_owners(self) -> Iterator[tuple[str, _Owner]]:
        visited_ids: set[int] = set()
        for path, optimizer in self.optimizers.items():
            groups = enumerate(optimizer.param_groups)
            owners: list[tuple[str, _Owner]]
            owners = [(f"group/{join_path(path, index)}", group) for index, group in groups]
            of_it = f"/{path}" if path else ""
            owners += [(f"optimizer{of_it}", vars(optimizer)), (f"state{of_it}", optimizer.state)]
            yield from (owner for owner in owners if id(owner[1]) not in visited_ids)
            visited_ids |= {id(owner) for _, owner in owners}
        for path, module in self._module.named_modules():
            yield f"buffer/{path}", own_buffers(module)
            yield f"attribute/{path}", vars(module)

    def _iter_entries(self, kind: Any) -> Iterator[tuple[str, Any]]:
        """Yield (name, value) of entries of type `kind` that no other part of a checkpoint covers."""
        saved = split_state_dict(self._module)[0] if kind is Tensor else {}
        for where, owner in self._iter_owners():
            of_whom, _, path = where.partition("/")
            for key, value in list(owner.items()):
                if not isinstance(key, str) or not isinstance(value, kind):
                    continue
                if key in _TORCH_KEYS.get(of_whom, ()) or key.startswith(_HOOKS_PREFIX):
                    continue
                if of_whom != "buffer" or (f"{path}.{key}" if path else key) not in saved:
                    yield f"{where}/{key}", value

    def _iter_json_values(self) -> Iterator[tuple[str, Any]]:
        states = [optimizer.state for optimizer in self.optimizers.values()]
        for name, value in self._iter_entries(object):
            of_a_module = name.startswith(("buffer/", "attribute/"))
            # The value is an optimizer's state dictionary, which training_state.py saves by weight.
            if not of_a_module and any(value is state for state in states):
                continue
            if not isinstance(value, Tensor) and (is_small_value(value) or not of_a_module):
                yield name, _json_or_opaque(value)


def join_path(path: str, name: object) -> str:
    """Return the name of an optimizer's entry, prefixed with `path` if another optimizer contains that
    optimizer."""
    return f"{path}:{name}" if path else str(name)


def find_optimizers(optimizer: Optimizer) -> dict[str, Optimizer]:
    """Return an optimizer and, recursively, the optimizers among its attributes, by path; its own path is
    ""."""
    optimizers = {"": optimizer}
    queue = deque(optimizers.items())
    while queue:
        path, holder = queue.popleft()
        for key, value in vars(holder).items():
            if isinstance(value, Optimizer) and all(value is not other for other in optimizers.values()):
                queue.append((join_path(path, key), value))
                optimizers[join_path(path, key)] = value
    return optimizers


class _Opaque:
    """A value that no file can store.

    Two instances are equal if they wrap the same object and, if that is a container, no tensor in it was
    modified between the creation of the two instances.
    """

    def __init__(self, value: object) -> None:
        self._value = value
        self._versions = _versions(value)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Opaque) and self._value is other._value and self._versions == other._versions
        )

    __hash__: Callable[[], int] = None  # type: ignore[assignment]


def _versions(value: object, depth: int = 3) -> Any:
    """Return the ids and version counters of a container's tensors, in lists that are nested like the
    container; None in place of weights, which the checkpoint saves anyway, and of other values."""
    if isinstance(value, Tensor):
        return None if isinstance(value, nn.Parameter) else (id(value), value._version)
    if depth and isinstance(value, Mapping):
        return [_versions(item, depth - 1) for item in value.values()]
    if depth and isinstance(value, CONTAINERS):
        return [_versions(item, depth - 1) for item in value]
    return None


def _contains_weights(value: object, depth: int = 3) -> bool:
    """Return whether a container has weights as values or keys. If it does, it cannot be saved, because
    loading it would replace the weights with other objects."""
    if isinstance(value, nn.Parameter):
        return True
    rows = [*value, *value.values()] if isinstance(value, Mapping) else value
    return (
        depth > 0
        and isinstance(rows, CONTAINERS)
        and any(_contains_weights(item, depth - 1) for item in rows)
    )


def _json_or_opaque(value: object) -> Any:
    if _contains_weights(value):
        return _Opaque(value)
    try:
        return to_json_value(value)
    except TypeError:
        return _Opaque(value)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if is_dtensor(tensor) else tensor.detach()


def _to_host(tensor: Tensor) -> Tensor:
    return _local(tensor).cpu().clone()


def _is_same(first: Tensor | None, tensor: Tensor) -> bool:
    if first is None or first.dtype != tensor.dtype:
        return False
    return torch.equal(first, _local(tensor).cpu())


def _put_tensor(owner: _Owner, key: str, saved: Tensor, device: torch.device) -> None:
    """Copy `saved` into the owner's tensor named `key`, which other objects may share; if the shapes differ,
    replace that tensor."""
    present = owner.get(key)
    with torch.no_grad():
        if isinstance(present, Tensor) and _local(present).shape == saved.shape:
            _local(present).copy_(saved)
        else:
            owner[key] = saved.to(present.device if isinstance(present, Tensor) else device)
