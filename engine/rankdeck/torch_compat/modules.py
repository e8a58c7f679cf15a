"""A module's own tables of weights, buffers and children, to be changed without calling the module's code."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX

from rankdeck.torch_compat.dispatch import tree_leaves
from rankdeck.torch_compat.private_api import PrivateApi

M = TypeVar("M", bound=nn.Module)

Dropout = _DropoutNd
"""Base class of every dropout."""
BatchNorm = _BatchNorm
"""Base class of every batch norm."""
NormBase = _NormBase
"""Base class of every norm with running statistics."""
_NO_STAGES = "pipelines cannot build stages, and dp cannot make replicas"
PRIVATE_APIS = (
    PrivateApi("the _parameters of a module", _NO_STAGES, lookup=lambda: vars(nn.Module())["_parameters"]),
    PrivateApi("the _buffers of a module", _NO_STAGES, lookup=lambda: vars(nn.Module())["_buffers"]),
    PrivateApi("the _modules of a module", _NO_STAGES, lookup=lambda: vars(nn.Module())["_modules"]),
    PrivateApi(
        "the _forward_hooks of a module",
        "dp cannot make replicas",
        lookup=lambda: vars(nn.Module())["_forward_hooks"],
    ),
    PrivateApi(
        "torch.nn:Module._replicate_for_data_parallel", "dp cannot make replicas", parameters=("self",)
    ),
    PrivateApi("torch.nn:Module._apply", "plans and fp64 runs fail", parameters=("self", "fn", "recurse")),
    PrivateApi(
        "torch.nn:BatchNorm1d._check_input_dim", "synchronized batch norm fails", parameters=("self", "input")
    ),
    PrivateApi("torch.nn.modules.batchnorm:_BatchNorm", "synchronized batch norm fails"),
    PrivateApi(
        "torch.nn.modules.dropout:_DropoutNd", "tensor checks splits of models with dropout only in eval mode"
    ),
    PrivateApi("torch.nn.modules.batchnorm:_NormBase", "activation checkpointing fails"),
    PrivateApi(
        "torch.nn.modules.module:_EXTRA_STATE_KEY_SUFFIX", "checkpoints omit the extra state of modules"
    ),
    PrivateApi(
        "the _qkv_same_embed_dim of nn.MultiheadAttention",
        "tensor cannot split attention",
        lookup=lambda: nn.MultiheadAttention(2, 1)._qkv_same_embed_dim,
    ),
)


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Return the module's own table of weights by name, which callers may change in place."""
    return module._parameters


def own_buffers(module: nn.Module) -> dict[str, Tensor | None]:
    """Return the module's own table of buffers by name, which callers may change in place."""
    return module._buffers


def own_tensors(module: nn.Module) -> tuple[dict[str, Tensor | None], dict[str, Tensor | None]]:
    """Return the module's own dicts of weights and buffers, not copies; new weights must be Parameters."""
    weights: Any = module._parameters
    return weights, module._buffers


def parameter_names(module: nn.Module) -> dict[nn.Parameter, list[str]]:
    """Return all names of each weight, in the module's order; a tied weight has several."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        names.setdefault(weight, []).append(name)
    return names


def own_children(module: nn.Module) -> dict[str, nn.Module | None]:
    """Return the module's own table of children by name, which callers may change in place."""
    return module._modules


def split_state_dict(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, object]]:
    """Split the module's state into tensors and extra state.

    Weights and persistent buffers are not copied. The extra state is whatever `get_extra_state` and state
    hooks add.
    """
    state = module.state_dict(keep_vars=True)
    tensors = {
        name: value
        for name, value in state.items()
        if isinstance(value, Tensor) and name.rpartition(".")[2] != _EXTRA_STATE_KEY_SUFFIX
    }
    return tensors, {name: value for name, value in state.items() if name not in tensors}


def apply_to_tensors(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Convert all weights and buffers with `change`, as `Module.to` converts them; unlike `Module.to`, this
    can give them different dtypes."""
    module._apply(change)


def make_contiguous(weights: Iterable[Tensor]) -> None:
    """Make weights contiguous in place, because torch shards only contiguous weights."""
    for weight in weights:
        if not weight.is_contiguous():
            weight.data = weight.data.contiguous()


def is_expanded(tensor: Tensor) -> bool:
    """Check whether several elements of the tensor share one memory location."""
    if tensor.layout is not torch.strided:
        return False
    return any(size > 1 and not step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def deep_copy(module: M, instead: Mapping[int, Any]) -> M:
    """Deep-copy a module tree.

    `instead` maps a tensor's id to its replacement. A non-leaf tensor that is stored in a module (torch's old
    weight norm and its pruning store such tensors) is copied without its autograd history.
    """
    memo, values = dict(instead), list[Any]()
    for each in module.modules():
        for name, value in vars(each).items():
            if name in _TABLES and not value:
                # copy.deepcopy spends most of its time on empty tables of hooks: 82 modules take 8.8 ms,
                # without them 2.9 ms.
                memo.setdefault(id(value), copy.copy(value))
            else:
                values.append(value)
    for value in tree_leaves(values):
        if isinstance(value, Tensor) and not value.is_leaf:
            memo.setdefault(id(value), value.detach().clone())
    return copy.deepcopy(module, memo)


_TABLES = frozenset(name for name, value in vars(nn.Module()).items() if isinstance(value, dict | set))


def shallow_copy(module: nn.Module) -> Any:
    """Copy a module for a replica of the strategy `dp`; the copy has its own tables, in which weights need
    not be autograd leaves.

    Hooks that the copy's forward method registers are added to the copy only; Hugging Face models register
    hooks in this way, once per model.
    """
    replica: Any = module._replicate_for_data_parallel()
    # As torch.nn.parallel.replicate does; some modules of torch look their weights up there.
    replica._former_parameters = {}
    replica._forward_hooks = replica._forward_hooks.copy()
    return replica


def record_weight(replica: Any, name: str, weight: Tensor) -> None:
    """Record the weight `name` of the shallow copy `replica`, because some of torch's modules look up weights
    by name."""
    replica._former_parameters[name] = weight


def check_batch_norm_input(norm: Any, inputs: Tensor) -> None:
    """Check the number of dims of a batch norm's input.

    Raises: ValueError if the batch norm does not accept it.
    """
    norm._check_input_dim(inputs)


def has_packed_projection(attention: nn.MultiheadAttention) -> bool:
    """Check whether a single weight projects queries, keys and values."""
    return bool(attention._qkv_same_embed_dim)
