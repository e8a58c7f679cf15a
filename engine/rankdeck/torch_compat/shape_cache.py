"""Cached results of operations on fake tensors: the same operation on the same shapes is computed once.

torch has such a cache too, but making its keys takes longer than the rest of a pass over fake tensors. Here a
key is made only if it is certain to be complete: for aten operations on plain fake tensors (see `_is_plain`)
and plain values. The first result of each operation is torch's own. The cache stores the result's shapes,
strides and dtypes, and for a view the offset in the storage of the first argument. Operations that return an
argument, or put two results into one storage, are not cached. The cache cuts planning time by a third. If
torch has moved a function that `_rebuild_outputs` needs, torch computes every result. Read fake_tensors.py
first.
"""

from __future__ import annotations

import io
import itertools
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankdeck.torch_compat.dispatch import (
    Kwargs,
    OpOverload,
    call_operation,
    overload_packet,
    storage_key,
    tree_leaves,
)
from rankdeck.torch_compat.fake_tensors import (
    FakeTensor,
    active_fake_mode,
    has_symbols,
    in_kernel,
    make_fake_tensor,
    no_dispatch,
)

_PLAIN_TYPES = (
    int,
    float,
    bool,
    str,
    type(None),
    torch.dtype,
    torch.layout,
    torch.memory_format,
    torch.device,
)


@dataclass(frozen=True, slots=True)
class _Output:
    """One output tensor of an operation."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    state: dict[str, object]
    """Python attributes that torch keeps on a fake tensor."""


@dataclass(frozen=True, slots=True)
class _Outputs:
    """All outputs of an operation.

    `list_type` is the type of the list that holds the outputs (None if there is no list); `is_view` means
    that the outputs share the storage of the first argument.
    """

    results: tuple[_Output | None, ...]
    is_view: bool
    list_type: type | None


KnownOutputs = dict[tuple[Any, ...], _Outputs | None]
"""Outputs, keyed by everything that they depend on; keys and outputs are plain data that can be sent to other
processes."""


class ShapeCache:
    """Cache of operations' results. Several threads and passes over fake tensors can share
    `known_outputs`."""

    def __init__(self, known_outputs: KnownOutputs | None = None) -> None:
        self._known: KnownOutputs = {} if known_outputs is None else known_outputs

    def __call__(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Kwargs | None) -> Any:
        """Return the result of `func(*args, **kwargs)`, cached where possible; works inside fake mode."""
        key = _key(func, args, kwargs)
        cached = None if key is None else self._known.get(key)
        if cached is not None and (again := _rebuild_outputs(cached, args)) is not None:
            return again
        out = call_operation(func, args, kwargs)
        if key is not None and key not in self._known:
            self._known[key] = _describe_outputs(func, out, args, kwargs)
        return out


def serialize_outputs(known_outputs: KnownOutputs, since: int) -> bytes:
    """Serialize all results except the first `since`, for another process; b"" if one of them cannot be
    pickled."""
    file = io.BytesIO()
    try:
        _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(
            dict(itertools.islice(known_outputs.items(), since, None))
        )
    except (TypeError, AttributeError, RuntimeError, pickle.PicklingError):
        return b""
    return file.getvalue()


def deserialize_outputs(data: bytes) -> KnownOutputs:
    known_outputs: KnownOutputs = pickle.loads(data) if data else {}
    return known_outputs


class _Pickler(pickle.Pickler):
    """Pickler that stores operations by name."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, OpOverload):
            return _find_operation, (value.namespace, overload_packet(value).__name__, value._overloadname)
        return NotImplemented


def _find_operation(namespace: str, name: str, overload: str) -> Any:
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def _key(func: Any, args: tuple[Any, ...], kwargs: Kwargs | None) -> tuple[Any, ...] | None:
    """Return everything that a result depends on; None if that cannot be determined with certainty."""
    if func.namespace != "aten" or not args or in_kernel is None:
        return None
    first = _first_tensor(args)
    active = active_fake_mode()
    if first is None or (active is not None and active is not first.fake_mode):
        return None  # torch copies a tensor of another mode first
    # Division of integers and the like return the default dtype.
    key: list[Any] = [func, torch.get_default_dtype()]
    for arg in args:
        if not _add_to_key(key, arg, first.fake_mode):
            return None
    for name, arg in (kwargs or {}).items():
        key.append(name)
        if not _add_to_key(key, arg, first.fake_mode):
            return None
    return tuple(key)


def _first_tensor(args: tuple[Any, ...]) -> FakeTensor | None:
    """Return an operation's first argument, or that argument's first item, whichever is a fake tensor; None
    if neither is."""
    first = args[0]
    if type(first) in (list, tuple) and first:
        first = first[0]
    return first if type(first) is FakeTensor else None


def _add_to_key(key: list[Any], arg: Any, mode: Any) -> bool:
    """Add an argument to a key; return False if the argument is not plain, or belongs to another fake
    mode."""
    kind = type(arg)
    if kind is FakeTensor:
        if arg.fake_mode is not mode or not _is_plain(arg):
            return False
        key += (arg.shape, arg.stride(), arg.storage_offset(), arg.dtype, arg.fake_device)
        return True
    if kind is list or kind is tuple:
        key += (kind, len(arg))
        return all(_add_to_key(key, item, mode) for item in arg)
    if kind in _PLAIN_TYPES:
        # With the type, because 1, 1.0 and True are equal as keys.
        key += (kind, arg)
        return True
    return False


def _is_plain(tensor: FakeTensor) -> bool:
    """Check whether shape, strides and dtype describe the tensor completely.

    A tensor with a known value, a lazy negation or conjugation, or symbolic sizes is not plain.
    """
    if tensor.constant is not None or has_symbols(tensor):
        return False
    return tensor.layout is torch.strided and not tensor.dtype.is_complex and not tensor.is_neg()


def _describe_outputs(func: Any, out: Any, args: tuple[Any, ...], kwargs: Kwargs | None) -> _Outputs | None:
    """Return what the cache stores about a result; None if torch has to compute the result each time."""
    outputs: Sequence[Any] = out if isinstance(out, (list, tuple)) else (out,)
    inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    taken = {_storage(tensor) for tensor in inputs}
    results: list[_Output | None] = []
    for output in outputs:
        if output is None:  # a gradient that was not requested
            results.append(None)
            continue
        if type(output) is not FakeTensor or not _is_plain(output):
            return None
        if func.is_view:
            is_known = _storage(output) == _storage(inputs[0]) and output.dtype == inputs[0].dtype
        else:
            is_known = _storage(output) not in taken and _fills_storage(output)
            taken.add(_storage(output))
        if not is_known:
            return None
        shape, stride, offset = tuple(output.shape), output.stride(), int(output.storage_offset())
        state = {name: value for name, value in vars(output).items() if name != "fake_mode"}
        results.append(_Output(shape, stride, offset, output.dtype, output.fake_device, state))
    is_listed = isinstance(out, (list, tuple))
    has_tensors = any(result is not None for result in results)
    return _Outputs(tuple(results), func.is_view, type(out) if is_listed else None) if has_tensors else None


def _storage(tensor: Tensor) -> int:
    return storage_key(tensor.untyped_storage())


def _fills_storage(tensor: Tensor) -> bool:
    """Check whether a tensor fills its storage, as a tensor from `empty_strided` does."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    num_bytes = (last + 1) * tensor.element_size() if tensor.numel() else 0
    return tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() == num_bytes


def _rebuild_outputs(cached: _Outputs, args: tuple[Any, ...]) -> Any:
    """Make new fake tensors from a cached result; None if a view would exceed its storage.

    FSDP's storages are empty at times, and torch makes views of them even then.
    """
    first = _first_tensor(args)
    assert first is not None and in_kernel is not None
    with in_kernel(first.fake_mode) if cached.is_view else no_dispatch():
        try:
            outputs = [_rebuild_output(result, first, is_view=cached.is_view) for result in cached.results]
        except RuntimeError:
            return None
    return outputs[0] if cached.list_type is None else cached.list_type(outputs)


def _rebuild_output(result: _Output | None, owner: FakeTensor, *, is_view: bool) -> Tensor | None:
    """Make a fake tensor of the cached shape; a view shares the storage of `owner`.

    Raises:
        RuntimeError: a view would exceed its storage.
    """
    if result is None:
        return None
    if is_view:
        blank = torch.as_strided(owner, result.shape, result.stride, result.offset)
    else:
        blank = torch.empty_strided(result.shape, result.stride, dtype=result.dtype, device="meta")
    return make_fake_tensor(blank, owner.fake_mode, result.device, result.state)
