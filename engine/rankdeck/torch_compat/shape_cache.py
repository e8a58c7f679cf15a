"""Operations on fake tensors that need not be computed: the same one on the same shapes was before.

torch remembers them too, under keys that take longer to make than all else that a pass does. Here a key is
made only where it is certain: for operations of aten, on fake tensors of plain memory and on plain values.
The first result of each is torch's own. Of it are kept the shapes, strides and types, and for a view its
place in the storage of the first argument; whatever else an operation may do (hand an argument back, put two
results into one storage) is left to torch each time. A plan is made in two thirds of the time with it, and
a torch that has moved what `_rebuild_outputs` needs computes always. Read fake_tensors.py before.
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
    """One tensor that comes back."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    state: dict[str, object]
    """What torch keeps in Python about a fake tensor."""


@dataclass(frozen=True, slots=True)
class _Outputs:
    """All that comes back. `list_type` is the type of the list around it, None where there is none.

    `is_view`: it shares the storage of the first argument.
    """

    results: tuple[_Output | None, ...]
    is_view: bool
    list_type: type | None


KnownOutputs = dict[tuple[Any, ...], _Outputs | None]
"""Results by all that they depend on: data that any process may be told."""


class ShapeCache:
    """Results of operations, from memory where it can. `known` may be shared by threads and passes."""

    def __init__(self, known: KnownOutputs | None = None) -> None:
        self._known: KnownOutputs = {} if known is None else known

    def __call__(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Kwargs | None) -> Any:
        """What `func(*args, **kwargs)` returns, which may be wrapped in fake mode."""
        key = _key(func, args, kwargs)
        known = None if key is None else self._known.get(key)
        if known is not None and (again := _rebuild_outputs(known, args)) is not None:
            return again
        out = call_operation(func, args, kwargs)
        if key is not None and key not in self._known:
            self._known[key] = _describe_outputs(func, out, args, kwargs)
        return out


def serialize_outputs(known: KnownOutputs, since: int) -> bytes:
    """What came after the first `since` results, for another process; b"" where one of them cannot travel."""
    file = io.BytesIO()
    try:
        _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(dict(itertools.islice(known.items(), since, None)))
    except (TypeError, AttributeError, RuntimeError, pickle.PicklingError):
        return b""
    return file.getvalue()


def deserialize_outputs(told: bytes) -> KnownOutputs:
    known: KnownOutputs = pickle.loads(told) if told else {}
    return known


class _Pickler(pickle.Pickler):
    """Operations travel by their names."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, OpOverload):
            return _find_operation, (value.namespace, overload_packet(value).__name__, value._overloadname)
        return NotImplemented


def _find_operation(namespace: str, name: str, overload: str) -> Any:
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def _key(func: Any, args: tuple[Any, ...], kwargs: Kwargs | None) -> tuple[Any, ...] | None:
    """All that a result depends on; None where that is not certain."""
    if func.namespace != "aten" or not args or in_kernel is None:
        return None
    first = _first_tensor(args)
    active = active_fake_mode()
    if first is None or (active is not None and active is not first.fake_mode):
        return None  # to a mode that a tensor is not of, torch copies it first
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
    """The fake tensor that an operation is about; None for one that makes something from nothing."""
    first = args[0]
    if type(first) in (list, tuple) and first:
        first = first[0]
    return first if type(first) is FakeTensor else None


def _add_to_key(key: list[Any], arg: Any, mode: Any) -> bool:
    """Add an argument to a key; False where it is not plain, or of another fake mode."""
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
        key += (kind, arg)
        return True
    return False


def _is_plain(tensor: FakeTensor) -> bool:
    """Whether shape, strides and type say all: no value is known, no sign or conjugate lies in between, and
    sizes are numbers.
    """
    if tensor.constant is not None or has_symbols(tensor):
        return False
    return tensor.layout is torch.strided and not tensor.dtype.is_complex and not tensor.is_neg()


def _describe_outputs(func: Any, out: Any, args: tuple[Any, ...], kwargs: Kwargs | None) -> _Outputs | None:
    """What to keep of a result of torch's; None where torch has to compute each time."""
    outputs: Sequence[Any] = out if isinstance(out, (list, tuple)) else (out,)
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    taken = {_storage(tensor) for tensor in given}
    results: list[_Output | None] = []
    for output in outputs:
        if output is None:  # a gradient that nobody wants
            results.append(None)
            continue
        if type(output) is not FakeTensor or not _is_plain(output):
            return None
        if func.is_view:
            is_known = _storage(output) == _storage(given[0]) and output.dtype == given[0].dtype
        else:
            is_known = _storage(output) not in taken and _fills_storage(output)
            taken.add(_storage(output))
        if not is_known:
            return None
        shape, stride, offset = tuple(output.shape), output.stride(), int(output.storage_offset())
        state = {name: value for name, value in vars(output).items() if name != "fake_mode"}
        results.append(_Output(shape, stride, offset, output.dtype, output.fake_device, state))
    is_listed = isinstance(out, (list, tuple))
    known = any(result is not None for result in results)
    return _Outputs(tuple(results), func.is_view, type(out) if is_listed else None) if known else None


def _storage(tensor: Tensor) -> int:
    return storage_key(tensor.untyped_storage())


def _fills_storage(tensor: Tensor) -> bool:
    """Whether its storage is what `empty_strided` makes for its shape."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    num_bytes = (last + 1) * tensor.element_size() if tensor.numel() else 0
    return tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() == num_bytes


def _rebuild_outputs(known: _Outputs, args: tuple[Any, ...]) -> Any:
    """New fake tensors, as is known; None where a view would not lie inside its storage: FSDP's are
    empty at times, and torch makes views of them all the same.
    """
    first = _first_tensor(args)
    assert first is not None and in_kernel is not None
    with in_kernel(first.fake_mode) if known.is_view else no_dispatch():
        try:
            made = [_rebuild_output(result, first, is_view=known.is_view) for result in known.results]
        except RuntimeError:
            return None
    return made[0] if known.list_type is None else known.list_type(made)


def _rebuild_output(result: _Output | None, owner: FakeTensor, *, is_view: bool) -> Tensor | None:
    """A fake tensor with the shape and, for a view, in the storage that it has to have.

    Raises:
        RuntimeError: a view would not lie inside its storage.
    """
    if result is None:
        return None
    if is_view:
        blank = torch.as_strided(owner, result.shape, result.stride, result.offset)
    else:
        blank = torch.empty_strided(result.shape, result.stride, dtype=result.dtype, device="meta")
    return make_fake_tensor(blank, owner.fake_mode, result.device, result.state)
