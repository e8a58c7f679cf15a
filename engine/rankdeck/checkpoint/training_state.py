"""What of a model and its optimizer is in a checkpoint, by names that every strategy shares.

    model.<name>               parameters and persistent buffers under the model's original names
    optimizer.<name>.<what>    what the optimizer keeps for a parameter (exp_avg, momentum_buffer, ...)
    scalar.<name>.<what>       the same where it has no dims (Adam's step)

A tied weight stands under every name that this rank knows it by: a pipeline's last stage may know another one
than its first. Sharded tensors are DTensors and stay so; whoever reads them takes what it holds. Rates and
the like are not kept: they come from the configuration, which a resume may change. Read store.py next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rankdeck.checkpoint_files import CheckpointError

_PLAIN = (bool, int, float, str)


def state_of(module: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, each with dims and memory of its own, and the optimizer's values that are no tensors.

    Raises:
        CheckpointError: the model or the optimizer keeps something that no file can hold.
    """
    tensors: dict[str, Tensor] = {f"model.{name}": tensor for name, tensor in _model_state(module).items()}
    values: dict[str, Any] = {}
    for names, parameter in _parameters(module):
        for what, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                kind = "optimizer" if value.dim() else "scalar"
                tensors |= {f"{kind}.{name}.{what}": value for name in names}
            elif isinstance(value, _PLAIN):
                values |= {f"{name}.{what}": value for name in names}
            elif value is not None:
                raise CheckpointError(
                    f"The optimizer keeps {what}, a {type(value).__name__}, for each parameter."
                )
    return _each_alone(tensors), values


def _model_state(module: nn.Module) -> dict[str, Tensor]:
    state: dict[str, Any] = module.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(f"The model keeps {name}, a {type(value).__name__}, as its state.")
    return state


def _parameters(module: nn.Module) -> Iterator[tuple[list[str], nn.Parameter]]:
    """Every parameter once, with all its names."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return ((names, parameter) for parameter, names in names.items())


def _each_alone(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A file of tensors holds no memory twice, and shards have dims."""
    seen: set[int] = set()
    alone: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach()
        address = _address(tensor)
        alone[name] = _with_dim(tensor.clone() if address in seen else tensor)
        seen.add(address)
    return alone


def _address(tensor: Tensor) -> int:
    local = getattr(tensor, "to_local", None)
    return int((tensor if local is None else local()).untyped_storage().data_ptr()) or id(tensor)


def _with_dim(tensor: Tensor) -> Tensor:
    return tensor if tensor.dim() else tensor.reshape(1)


@dataclass
class Blank:
    """Tensors to read into. `optimizer` says which of them are whose: parameter -> what -> name."""

    tensors: dict[str, Tensor]
    optimizer: dict[nn.Parameter, dict[str, str]] = field(default_factory=dict)


def blank_model(module: nn.Module) -> dict[str, Tensor]:
    """Where to read the weights and buffers of a checkpoint to: the module's own memory."""
    return {f"model.{name}": _with_dim(tensor.detach()) for name, tensor in _model_state(module).items()}


def blank_state(module: nn.Module, optimizer: Optimizer, there: Mapping[str, Any]) -> Blank:
    """Where to read a checkpoint to. `there` has the names in it with what torch knows of each (its size).

    A parameter that the optimizer had never stepped has no state there, and gets none.
    """
    blank = Blank(blank_model(module))
    by_owner: dict[str, list[tuple[str, str]]] = {}
    for name in there:
        kind, _, rest = name.partition(".")
        if kind in ("optimizer", "scalar"):
            owner, _, what = rest.rpartition(".")
            by_owner.setdefault(owner, []).append((what, name))
    groups = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    for names, parameter in _parameters(module):
        known = next((name for name in names if name in by_owner), None)
        if known is None or parameter not in groups:
            continue
        for what, name in by_owner[known]:
            blank.tensors[name] = _room_for(name, there[name], parameter, groups[parameter])
            blank.optimizer.setdefault(parameter, {})[what] = name
    return blank


def _room_for(name: str, saved: Any, parameter: nn.Parameter, group: Mapping[str, Any]) -> Tensor:
    """A tensor as the optimizer would have made it for this parameter."""
    if name.startswith("scalar."):
        # Optimizers count steps on the host, unless a kernel of theirs reads the count.
        on_device = group.get("capturable") or group.get("fused")
        return torch.zeros(1, dtype=saved.properties.dtype, device=parameter.device if on_device else "cpu")
    if saved.size == parameter.shape:
        return torch.zeros_like(parameter, requires_grad=False).detach()
    return torch.zeros(saved.size, dtype=saved.properties.dtype, device=parameter.device)


def put_state(module: nn.Module, optimizer: Optimizer, blank: Blank, values: Mapping[str, Any]) -> None:
    """Make what was read the state of the model and of its optimizer."""
    own = _model_state(module)
    for name, tensor in own.items():
        own[name] = blank.tensors[f"model.{name}"].reshape(tensor.shape)
    # The dictionary is torch's own: without the versions that it carries batch norms add what they lack.
    module.load_state_dict(own)
    optimizer.state.clear()
    for names, parameter in _parameters(module):
        state = {
            what: blank.tensors[name].reshape(()) if name.startswith("scalar.") else blank.tensors[name]
            for what, name in blank.optimizer.get(parameter, {}).items()
        }
        for name, value in values.items():
            owner, _, what = name.rpartition(".")
            if owner == names[0] or (owner in names and what not in state):
                state[what] = value
        if state:
            optimizer.state[parameter] = state
