"""Convert a model and its optimizer to checkpoint entries, under names that all strategies share.

    model.<name>               parameters and persistent buffers under the model's original names
    optimizer.<name>.<key>     optimizer state of a parameter (exp_avg, momentum_buffer, ...)
    scalar.<name>.<key>        optimizer state that is a 0-dim tensor (Adam's step)
    slice.<name>.<key>         plain tensor in a sharded parameter's optimizer state, one per rank
    values                     non-tensor state, the extra state of modules, and what extra_state.py adds

If an optimizer contains another optimizer, the inner optimizer's <key> is <path>:<key>, as in
base_optimizer:exp_avg. A tied weight appears under each of its names on this rank: the first and the last
stage of a pipeline may use different names for it. Sharded tensors stay DTensors; each rank reads its own
shards. Learning rates and other hyperparameters are not saved: they come from the configuration, which may
change before a resume. Read store.py next.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rankdeck.base.parsing import decode_json
from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.checkpoint.extra_state import ExtraState, join_path
from rankdeck.checkpoint.json_values import from_json_value, to_json_value
from rankdeck.checkpoint_files import CheckpointError
from rankdeck.torch_compat.dtensors import is_dtensor
from rankdeck.torch_compat.modules import is_expanded, parameter_names, split_state_dict

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

_T = TypeVar("_T")
_EXTRA_PREFIX = "model/"
"""Prefix of the names of modules' extra state among a checkpoint's values."""
_OPTIMIZER_TEXT = tr_noop("the optimizer's per-parameter state {name} contains {inside}")
_MODEL_TEXT = tr_noop("the model's extra state {name} contains {inside}")


class TrainingState:
    """A model and its optimizer, with the extra state that they had before the first step.

    `stages` are the pipeline stages that this rank runs; empty if it runs the whole model.
    """

    def __init__(self, module: nn.Module, optimizer: Optimizer, stages: Sequence[nn.Module] = ()) -> None:
        self.module = module
        self.optimizer = optimizer
        self.stages = stages
        self.extra_state = ExtraState(module, optimizer)


@dataclass
class RankSnapshot:
    """One rank's contribution to a checkpoint.

    `tensors` have names that all ranks share; `per_rank` are tensors of this rank alone. `json_values` are
    this rank's values as JSON, `remote_values` those of modules that other ranks run. `unsaved` names the
    state that is not saved.
    """

    tensors: dict[str, Tensor]
    per_rank: dict[str, Tensor]
    json_values: dict[str, object]
    remote_values: dict[str, object]
    unsaved: list[str]


def capture_state(state: TrainingState) -> RankSnapshot:
    """Collect this rank's state for a checkpoint.

    Raises:
        CheckpointError: the model or the optimizer has state that no file can store.
    """
    tensors = {f"model.{name}": tensor for name, tensor in split_state_dict(state.module)[0].items()}
    per_rank, values, lost = state.extra_state.changed_entries()
    extra, elsewhere = module_extra_state(state.module, state.stages)
    for parameter, names in parameter_names(state.module).items():
        for what, value in _optimizer_entries(parameter, state.extra_state.optimizers):
            if isinstance(value, Tensor):
                kind = _entry_kind(value, parameter)
                where = per_rank if kind == "slice" else tensors
                where |= {f"{kind}.{name}.{what}": value for name in names}
            elif value is not None:
                plain = _to_json(value, _OPTIMIZER_TEXT, what)
                values |= {f"{name}.{what}": plain for name in names}
    return RankSnapshot(tensors, per_rank, values | extra, elsewhere, [format_name(name) for name in lost])


def _optimizer_entries(
    parameter: nn.Parameter, optimizers: Mapping[str, Optimizer]
) -> Iterator[tuple[str, Any]]:
    """Yield the optimizers' state entries for a parameter; a state dictionary shared by two optimizers is
    read once."""
    state_ids: set[int] = set()
    for path, optimizer in optimizers.items():
        entries = optimizer.state.get(parameter, {}) if id(optimizer.state) not in state_ids else {}
        state_ids.add(id(optimizer.state))
        yield from ((join_path(path, what), value) for what, value in entries.items())


def _find_optimizer(what: str, optimizers: Mapping[str, Optimizer]) -> tuple[Optimizer | None, str]:
    """Split `what`, a state key that may start with an optimizer's path, into (optimizer, key without the
    path); the optimizer is None if this run has none at that path."""
    path, _, inner_key = what.rpartition(":")
    return (optimizers.get(path), inner_key) if path else (optimizers[""], what)


def _entry_kind(value: Tensor, parameter: nn.Parameter) -> str:
    if not value.dim():
        return "scalar"
    return "slice" if is_dtensor(parameter) and not is_dtensor(value) else "optimizer"


def module_extra_state(
    module: nn.Module, stages: Sequence[nn.Module]
) -> tuple[dict[str, object], dict[str, object]]:
    """Return the extra state of the modules that this rank runs, and of those that other ranks run.

    Raises: CheckpointError for extra state that no file can store.
    """
    everything = {
        _EXTRA_PREFIX + name: _to_json(value, _MODEL_TEXT, name)
        for name, value in split_state_dict(module)[1].items()
    }
    run_here = {submodule for stage in stages for submodule in stage.modules()}
    not_here = {path for path, submodule in module.named_modules() if stages and submodule not in run_here}
    elsewhere = {
        name: plain
        for name, plain in everything.items()
        if name.removeprefix(_EXTRA_PREFIX).rpartition(".")[0] in not_here
    }
    return {name: plain for name, plain in everything.items() if name not in elsewhere}, elsewhere


def format_name(name: str) -> str:
    """Describe a checkpoint entry for messages."""
    where, _, key = name.rpartition("/")
    kind, _, path = where.partition("/")
    match kind:
        case "":
            return f"the optimizer's {name.rpartition('.')[2]} for each weight"
        case "group":
            return f"{key} in the optimizer's param_groups[{path}]"
        case "optimizer" | "state":
            return f"the optimizer's {join_path(path, key)}"
    return f"{path}.{key} of the model" if path else f"the model's {key}"


def _to_json(value: Any, cannot: str, name: str) -> Any:
    try:
        return to_json_value(value)
    except TypeError as error:
        raise CheckpointError(phrase(cannot, name=name, inside=error.args[0])) from None


def merge_values(rank_values: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> dict[str, object]:
    """Merge the ranks' values; a value comes from the first rank that runs its module. `rank_values` has a
    pair for each rank: the values of modules that it runs, and those of other modules."""
    shared: dict[str, object] = {}
    # In reverse, so that the first rank's values overwrite those of later ranks.
    for _, elsewhere in reversed(rank_values):
        shared |= elsewhere
    for values, _ in reversed(rank_values):
        shared |= values
    return shared


def unshare_storages(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert the tensors to a form that a file can store: no shared storage, at least one dim,
    contiguous."""
    addresses: set[int] = set()
    alone: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach()
        address = _storage_address(tensor)
        alone[name] = _at_least_1d(tensor.clone() if address in addresses else tensor).contiguous()
        addresses.add(address)
    return alone


def one_element_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return, for each tensor, a one-element tensor with the same dtype and layout, because only
    these determine whether a file can store the tensor."""
    return {
        name: torch.zeros(1, dtype=tensor.dtype, layout=tensor.layout) for name, tensor in tensors.items()
    }


def _storage_address(tensor: Tensor) -> int:
    local = getattr(tensor, "to_local", None)
    # Empty tensors all have address 0, but share no memory.
    return int((tensor if local is None else local()).untyped_storage().data_ptr()) or id(tensor)


def _at_least_1d(tensor: Tensor) -> Tensor:
    return tensor if tensor.dim() else tensor.reshape(1)


@dataclass
class LoadTargets:
    """Tensors to read a checkpoint into.

    `optimizer` maps parameter -> key -> checkpoint name; `unexpected` describes saved state that has no
    target in this run.
    """

    tensors: dict[str, Tensor]
    optimizer: dict[nn.Parameter, dict[str, str]] = field(default_factory=dict)
    unexpected: set[str] = field(default_factory=set)


def model_targets(module: nn.Module, there: Mapping[str, TensorStorageMetadata]) -> dict[str, Tensor]:
    """Return the tensors to read weights and buffers into: views of the module's own memory.

    `there` maps the checkpoint's names to torch's metadata for each tensor.
    """
    tensors, extra = split_state_dict(module)
    for tensor in tensors.values():
        if is_expanded(tensor):  # its elements share memory, so none can be read alone
            tensor.data = tensor.detach().contiguous()
    blank = {f"model.{name}": _at_least_1d(tensor.detach()) for name, tensor in tensors.items()}
    # Older checkpoints, without values, have tensors of extra state among the weights.
    older = [name for name in extra if f"model.{name}" in there]
    return blank | {f"model.{name}": _zeros_like_saved(there[f"model.{name}"]) for name in older}


def state_targets(state: TrainingState, there: Mapping[str, TensorStorageMetadata]) -> LoadTargets:
    """Return the tensors to read the checkpoint into; `there` maps the checkpoint's names to torch's
    metadata.

    A parameter that the optimizer had not updated before the save has no state in `there`, and gets none.
    """
    blank = LoadTargets(model_targets(state.module, there))
    by_owner: dict[str, list[tuple[str, str]]] = {}
    for name in there:
        kind, _, rest = name.partition(".")
        if kind in ("optimizer", "scalar"):
            owner, _, what = rest.rpartition(".")
            by_owner.setdefault(owner, []).append((what, name))
    optimizers = state.extra_state.optimizers
    groups = {
        (optimizer, parameter): group
        for optimizer in optimizers.values()
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for parameter, names in parameter_names(state.module).items():
        saved_name = next((name for name in names if name in by_owner), None)
        if saved_name is None or (state.optimizer, parameter) not in groups:
            continue
        weights_dtype = there[f"model.{saved_name}"].properties.dtype
        for what, name in by_owner[saved_name]:
            keeper, _ = _find_optimizer(what, optimizers)
            group = None if keeper is None else groups.get((keeper, parameter))
            room = None if group is None else _make_target(name, there[name], parameter, group, weights_dtype)
            if room is None:
                blank.unexpected.add(format_name(name))
                continue
            blank.tensors[name] = room
            blank.optimizer.setdefault(parameter, {})[what] = name
    return blank


def _make_target(
    name: str,
    saved: TensorStorageMetadata,
    parameter: nn.Parameter,
    group: Mapping[str, Any],
    weights_dtype: torch.dtype,
) -> Tensor | None:
    """Return a tensor like the one that the optimizer would create for a parameter's state entry `name`.

    Return None if this rank's shard of the saved tensor cannot be determined. State saved in `weights_dtype`,
    the dtype of the saved weight, gets the parameter's dtype.
    """
    if name.startswith("scalar."):
        # Optimizers count steps on the CPU, unless one of their kernels reads the count.
        on_device = group.get("capturable") or group.get("fused")
        return _zeros_like_saved(saved, parameter.device if on_device else "cpu")
    if saved.size == parameter.shape:
        dtype = saved.properties.dtype
        dtype = parameter.dtype if dtype == weights_dtype else dtype
        return torch.zeros_like(parameter, dtype=dtype, requires_grad=False).detach()
    return None if is_dtensor(parameter) else _zeros_like_saved(saved, parameter.device)


def _zeros_like_saved(saved: TensorStorageMetadata, device: torch.device | str = "cpu") -> Tensor:
    return torch.zeros(saved.size, dtype=saved.properties.dtype, device=device)


def load_state(
    state: TrainingState, blank: LoadTargets, values: Mapping[str, Any], local_values: Mapping[str, Tensor]
) -> list[str]:
    """Load the checkpoint's data, which is in `values`, `local_values` and the tensors of `blank`, into the
    model and its optimizer; return descriptions of state that only the checkpoint or only this run has."""
    missing = load_weights(state.module, blank.tensors, values)
    plain_of, slices_of = _group_by_owner(values), _group_by_owner(local_values)
    homeless = set(blank.unexpected)
    for parameter, names in parameter_names(state.module).items():
        entries: dict[str, object] = {
            what: blank.tensors[name].reshape(()) if name.startswith("scalar.") else blank.tensors[name]
            for what, name in blank.optimizer.get(parameter, {}).items()
        }
        for name in reversed(names):
            slices = slices_of.get(f"slice.{name}", {})
            entries |= {what: tensor.to(parameter.device) for what, tensor in slices.items()}
            plain = plain_of.get(name, {})
            entries |= {what: from_json_value(value, parameter.device) for what, value in plain.items()}
        by_keeper: dict[Optimizer, dict[str, object]] = {}
        for what, value in entries.items():
            keeper, own_name = _find_optimizer(what, state.extra_state.optimizers)
            if keeper is None:
                homeless.add(format_name(f"optimizer.{what}"))
            else:
                by_keeper.setdefault(keeper, {})[own_name] = value
        for keeper, of_it in by_keeper.items():
            keeper.state[parameter] = of_it
    elsewhere = state.extra_state.load(
        {name: tensor for name, tensor in local_values.items() if not name.startswith("slice.")},
        {name: value for name, value in values.items() if "/" in name and not name.startswith(_EXTRA_PREFIX)},
    )
    return [*homeless, *map(format_name, [*missing, *elsewhere])]


def _group_by_owner(values: Mapping[str, _T]) -> dict[str, dict[str, _T]]:
    """Regroup <owner>.<key> -> value as owner -> key -> value."""
    by_owner: dict[str, dict[str, _T]] = {}
    for name, value in values.items():
        owner, _, what = name.rpartition(".")
        by_owner.setdefault(owner, {})[what] = value
    return by_owner


def load_weights(module: nn.Module, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> list[str]:
    """Load a checkpoint's `tensors` and `values` into the model; return the names that they lack."""
    # The dictionary is torch's own, because it carries versions: without them batch norms add entries that
    # they lack.
    state_dict = module.state_dict()
    missing = []
    device = next((tensor.device for tensor in module.parameters()), None)
    for name, value in state_dict.items():
        if f"model.{name}" in tensors:
            read = tensors[f"model.{name}"]
            fits = isinstance(value, Tensor) and value.numel() == read.numel()
            # torch does not copy a view of a tensor, with other strides, into that tensor.
            state_dict[name] = read.reshape(value.shape) if fits and read.shape != value.shape else read
        elif _EXTRA_PREFIX + name in values:
            state_dict[name] = from_json_value(values[_EXTRA_PREFIX + name], device)
        else:
            missing.append(_EXTRA_PREFIX + name)
    module.load_state_dict(state_dict)
    return missing


# The random states of a process as tensors: Python's, NumPy's, torch's, and every CUDA device's.
#
# Tensors, so that they are stored and read back without unpickling anything.


def random_states() -> dict[str, Tensor]:
    """Return the random states of Python, NumPy, torch and every CUDA device as tensors."""
    states = {"torch": torch.get_rng_state(), "python": _as_tensor(random.getstate())}
    kind, keys, *rest = np.random.get_state(legacy=True)
    states["numpy"] = _as_tensor([kind, [int(key) for key in keys], *rest])
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            states[f"cuda.{index}"] = torch.cuda.get_rng_state(index)
    return states


def load_random_states(states: Mapping[str, Tensor]) -> None:
    """Restore the random states that `random_states` returned, on a machine with the same CUDA devices.

    Raises: KeyError if a state is missing.
    """
    torch.set_rng_state(states["torch"])
    version, internal, gauss = _from_tensor(states["python"])
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = _from_tensor(states["numpy"])
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    for name, state in states.items():
        if name.startswith("cuda."):
            torch.cuda.set_rng_state(state, int(name[5:]))


def _as_tensor(value: Any) -> Tensor:
    return torch.frombuffer(bytearray(msgspec.json.encode(value)), dtype=torch.uint8)


def _from_tensor(tensor: Tensor) -> Any:
    return decode_json(msgspec.json.decode, bytes(tensor.tolist()))
