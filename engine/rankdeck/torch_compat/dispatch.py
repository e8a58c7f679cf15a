"""Operations below autograd: modes that intercept operations, their effects according to their schemas, and
keys for storages.

Source: torch.utils._python_dispatch, torch.utils._pytree, torch's operator schemas (native_functions.yaml).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload as OpOverload
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode,
)
from torch.utils._pytree import TreeSpec as TreeSpec
from torch.utils._pytree import tree_flatten as tree_flatten
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map
from torch.utils._pytree import tree_unflatten as tree_unflatten

from .private_api import PrivateApi

Kwargs = dict[str, Any]
"""Keyword arguments of a call."""
VIEWS, WRITES, CREATES, RESIZES, PER_ITEM = range(5)
EFFECTS: dict[OpOverload, int] = {}
"""Cached results of `classify_effect`, for hot paths."""
_NO_BACKWARD = -1
_METADATA_OPS = ("resize_", "resize_as_", "set_", "detach_")

_WRONG_MEMORY = "plans, and memory by kind in rehearsals, are unreliable"
PRIVATE_APIS = (
    PrivateApi("torch.utils._python_dispatch:TorchDispatchMode._should_skip_dynamo", _WRONG_MEMORY),
    # Plans build device meshes outside fake mode (fake_mode_patches.py).
    PrivateApi(
        "torch.utils._python_dispatch:_disable_current_modes",
        "plans of fsdp, tensor and hybrid fail",
        parameters=(),
    ),
    PrivateApi(
        "torch.utils._python_dispatch:_get_current_dispatch_mode",
        "--observe full measures no tensors",
        parameters=(),
    ),
    PrivateApi("torch.utils._pytree:tree_leaves", _WRONG_MEMORY, parameters=("tree",)),
    PrivateApi("torch.utils._pytree:tree_flatten", "dp cannot scatter batches", parameters=("tree",)),
    PrivateApi(
        "torch.utils._pytree:tree_unflatten", "dp cannot scatter batches", parameters=("leaves", "treespec")
    ),
    PrivateApi("torch.utils._pytree:TreeSpec.num_leaves", "dp cannot gather the outputs of replicas"),
    PrivateApi(
        "torch.utils._pytree:tree_map",
        "pipelines cannot split models into stages",
        parameters=("func", "tree"),
    ),
    PrivateApi(
        "the _indices and _values of a sparse tensor",
        _WRONG_MEMORY,
        lookup=lambda: [getattr(torch.eye(1).to_sparse(), name) for name in ("_indices", "_values")],
    ),
    PrivateApi("torch._C:_current_graph_task_id", _WRONG_MEMORY),
    PrivateApi("torch._C:_disabled_torch_dispatch_impl", _WRONG_MEMORY),
    PrivateApi(
        "the _cdata of a storage", _WRONG_MEMORY, lookup=lambda: torch.empty(1).untyped_storage()._cdata
    ),
    PrivateApi(
        "the _schema of an operation",
        _WRONG_MEMORY,
        lookup=lambda: torch.ops.aten.add_.Tensor._schema.returns,
    ),
    PrivateApi(
        "the _overloadname of an operation",
        _WRONG_MEMORY,
        lookup=lambda: torch.ops.aten.add.out._overloadname,
    ),
    PrivateApi(
        "the _overloadpacket of an operation",
        _WRONG_MEMORY,
        lookup=lambda: torch.ops.aten.add.out._overloadpacket,
    ),
)


class DispatchMode(TorchDispatchMode):
    """A dispatch mode that torch's compiler does not wrap."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would wrap the hot path in a call that imports torch._dynamo: seconds, and never used here.
        return False

    def worker_mode(self) -> DispatchMode | None:
        """Return the mode to enter in a worker thread that works on behalf of this mode's thread.

        None if the worker's operations do not belong to this mode, or if the worker enters a mode on its own.
        """
        return None


storage_key: Callable[[torch.UntypedStorage], int] = operator.attrgetter("_cdata")
"""Function that returns a storage's C++ address, which is the same for all tensors that share the storage,
even if the storage has no memory."""


def storage_tensors(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the owners of a tensor's storages: a sparse tensor's indices and values, or the tensor itself.

    Empty for a tensor without memory, or with memory that torch does not expose (MKL-DNN's).
    """
    if is_meta(tensor):
        return ()
    match tensor.layout:
        case torch.strided:
            return (tensor,)
        case torch.sparse_coo:
            return tensor._indices(), tensor._values()
        case torch.sparse_csr | torch.sparse_bsr:
            return tensor.crow_indices(), tensor.col_indices(), tensor.values()
        case torch.sparse_csc | torch.sparse_bsc:
            return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return ()


def is_meta(tensor: Tensor) -> bool:
    """Check whether a tensor is on the meta device; a fake tensor is not, unless it represents a meta tensor.

    A fake tensor's device is read from its Python attribute: otherwise torch would dispatch the query through
    every mode.
    """
    device = getattr(tensor, "fake_device", None)
    return tensor.is_meta if device is None else bool(device.type == "meta")


def call_operation(func: Any, args: tuple[Any, ...], kwargs: Kwargs | None) -> Any:
    """Call an operation, with or without keyword arguments."""
    return func(*args, **kwargs) if kwargs else func(*args)


def top_mode() -> Any:
    """Return the mode that intercepts this thread's operations first; None if there is no mode."""
    return _get_current_dispatch_mode()


def without_modes() -> AbstractContextManager[Any]:
    """Return a context in which this thread's modes do not intercept operations."""
    context: AbstractContextManager[Any] = _disable_current_modes()
    return context


def in_backward() -> bool:
    """Check whether the calling thread is running an autograd backward pass."""
    return backward_id() != _NO_BACKWARD


def backward_id() -> int:
    """Return an id that is unique to each autograd backward pass; outside a backward pass, a fixed number."""
    return int(torch._C._current_graph_task_id())


def has_wrappers(types: Sequence[type]) -> bool:
    """Check whether any of the arguments' types wraps other tensors (DTensor, or the type of a collective's
    result that is not yet awaited).

    The modes observe the wrapped tensors once the wrapper unwraps itself. Plain subclasses (Parameter) wrap
    nothing, and a fake tensor is treated as plain because its own storage is what the modes track.
    """
    return any(is_wrapper(cls) for cls in types)


@functools.cache
def is_wrapper(cls: type) -> bool:
    """Check whether this class's tensors wrap other tensors; a wrapper's storage has a size but no memory."""
    # Plain subclasses such as Parameter have this one: they wrap nothing.
    plain = torch._C._disabled_torch_dispatch_impl
    return cls.__name__ != "FakeTensor" and getattr(cls, "__torch_dispatch__", plain) is not plain


def overload_packet(func: Any) -> Any:
    """Return the overload packet of `func`."""
    return func._overloadpacket


def classify_effect(func: OpOverload) -> int:
    """Return the kind of an operation's effect on storages, according to the operation's schema.

    VIEWS: returns aliases, or nothing. WRITES: writes in place. CREATES: may return new storages. RESIZES:
    may change the size of an argument's storage. PER_ITEM: works through lists item by item, so items may be
    on different devices.
    """
    schema = func._schema
    if func.__name__.startswith("_foreach_") or _is_fused_step(func):
        effect = PER_ITEM if schema.returns else VIEWS
    elif "out" in func._overloadname.split("_") or func.__name__.startswith(("resize_", "set_")):
        effect = RESIZES
    elif func.__name__.startswith("lift_fresh") or any(out.alias_info is None for out in schema.returns):
        # torch.tensor(...) fills its storage without an operation; it appears here first, as a view.
        effect = CREATES
    elif any(
        argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments
    ):
        effect = WRITES
    else:
        effect = VIEWS
    EFFECTS[func] = effect
    return effect


def _is_fused_step(func: Any) -> bool:
    """Check whether an operation is a fused optimizer step, which changes tensor lists in place, as foreach
    operations do."""
    return bool(func.__name__.startswith("_fused_")) and not func._schema.returns


def inplace_result(func: Any, args: tuple[Any, ...]) -> Any:
    """Return the result of an operation that only writes in place: its first argument, or None."""
    return args[0] if func._schema.returns else None


def is_inplace_write(func: Any) -> bool:
    """Check whether an operation only changes values in place, and so has no effect on tensors that have a
    shape but no memory."""
    schema = func._schema
    name = func.__name__.partition(".")[0]
    if func.namespace != "aten" or torch.Tag.inplace_view in func.tags or not name.endswith("_"):
        return False
    if not schema.returns:
        return bool(name.startswith("_foreach_")) or _is_fused_step(func)
    alias = schema.returns[0].alias_info
    writes = len(schema.returns) == 1 and alias is not None and bool(alias.is_write)
    return writes and name not in _METADATA_OPS
