"""Values of Python as JSON and back. Nothing is unpickled: what is read can run no code.

Numbers, words, lists and dictionaries stand as they are; what JSON lacks stands as {"$kind": ...}.
"""

from __future__ import annotations

import base64
import dataclasses
import math
from collections import OrderedDict, deque
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from rankdeck.base.phrases import phrase
from rankdeck.torch_compat.dtensors import is_dtensor

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

_EXACT = 2**53
"""Readers of JSON may take larger integers for floats."""
_KINDS: dict[str, type] = {"$tuple": tuple, "$set": set, "$frozenset": frozenset}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def to_plain(value: Any) -> Any:
    """What msgspec writes as JSON.

    Raises: TypeError for an object whose class only code could restore.
    """
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return value if abs(value) < _EXACT else {"$int": str(value)}
    if kind is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if kind is list:
        return [to_plain(item) for item in value]
    if kind in _NAMES:
        return {_NAMES[kind]: [to_plain(item) for item in value]}
    if kind is deque:
        return {"$deque": [to_plain(list(value)), value.maxlen]}
    if kind in (dict, OrderedDict):
        return _plain_dict(value)
    if kind is bytes:
        return {"$bytes": _text(value)}
    if isinstance(value, Tensor):
        return _plain_tensor(value)
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        shape = value.shape if isinstance(value, np.ndarray) else None
        return {"$numpy": [value.dtype.str, shape, _text(value.tobytes())]}
    raise TypeError(phrase("{kind}, an object that no file holds without code", kind=kind.__name__))


def from_plain(plain: Any, device: torch.device | None = None) -> Any:
    """What `to_plain` took; tensors that were not the host's come to `device`."""
    if isinstance(plain, list):
        return [from_plain(item, device) for item in plain]
    if not isinstance(plain, dict):
        return plain
    pair: tuple[str, Any] = next(iter(plain.items()), ("", None))
    name, inside = pair
    if name in _KINDS:
        return _KINDS[name](from_plain(inside, device))
    match name:
        case "$int":
            return int(inside)
        case "$float":
            return float(inside)
        case "$deque":
            return deque(from_plain(inside[0], device), maxlen=inside[1])
        case "$dict" | "$ordered":
            pairs = [(from_plain(key, device), from_plain(value, device)) for key, value in inside]
            return dict(pairs) if name == "$dict" else OrderedDict(pairs)
        case "$bytes":
            return base64.b64decode(inside)
        case "$tensor":
            (tensor,) = from_pairs(safetensors.torch.load(base64.b64decode(inside))).values()
            return tensor.to(device) if device is not None and not plain["on_host"] else tensor
        case "$numpy":
            dtype, shape, text = inside
            array = np.frombuffer(bytearray(base64.b64decode(text)), dtype=np.dtype(dtype))
            return array[0] if shape is None else array.reshape(shape)
    return {key: from_plain(value, device) for key, value in plain.items()}


def _plain_dict(value: dict[Any, Any]) -> dict[str, object]:
    if type(value) is dict and all(type(key) is str and not key.startswith("$") for key in value):
        return {key: to_plain(item) for key, item in value.items()}
    name = "$dict" if type(value) is dict else "$ordered"
    return {name: [[to_plain(key), to_plain(item)] for key, item in value.items()]}


def _plain_tensor(tensor: Tensor) -> dict[str, object]:
    own = tensor.full_tensor() if is_dtensor(tensor) else tensor
    if own.layout is not torch.strided:
        raise TypeError(phrase("a tensor of layout {layout}", layout=own.layout))
    data = safetensors.torch.save(as_pairs({"": own.detach().cpu().contiguous()}))
    return {"$tensor": _text(data), "on_host": own.device.type == "cpu"}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


# Complex numbers in files of safetensors, each as a pair of real numbers under a name that says so.
#
# The format has no complex128, and none of it before version 0.6. A pair is a view of the same memory:
# (..., 2) in the real dtype.

_PAIRS = "$complex"
"""Behind the name of a tensor that is stored so."""


def as_pairs(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as a file holds them."""
    return {_stored_name(name, tensor): real_view(tensor) for name, tensor in tensors.items()}


def from_pairs(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file that `as_pairs` made."""
    return {
        name.removesuffix(_PAIRS): torch.view_as_complex(tensor) if name.endswith(_PAIRS) else tensor
        for name, tensor in stored.items()
    }


def real_view(tensor: Tensor) -> Tensor:
    """A complex tensor as (..., 2) real numbers in the same memory; any other tensor itself."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _stored_name(name: str, tensor: Tensor) -> str:
    return name + _PAIRS if tensor.is_complex() else name


def described(stored: Mapping[str, Any]) -> dict[str, TensorStorageMetadata]:
    """What torch.distributed.checkpoint knows of a file's tensors, of pairs as of the complex tensors."""
    return {name.removesuffix(_PAIRS): _of_complex(name, known) for name, known in stored.items()}


def _of_complex(name: str, known: TensorStorageMetadata) -> TensorStorageMetadata:
    if not name.endswith(_PAIRS):
        return known
    properties = dataclasses.replace(known.properties, dtype=known.properties.dtype.to_complex())
    return dataclasses.replace(known, size=known.size[:-1], properties=properties)


def to_read_into(tensors: Mapping[str, Tensor], stored: Collection[str]) -> dict[str, Tensor]:
    """Views of the tensors, under the names that a file stores them by.

    Raises:
        ValueError: the file has complex numbers where a tensor is real.
    """
    views = {}
    for name, tensor in tensors.items():
        is_pairs = name + _PAIRS in stored
        if is_pairs and not tensor.is_complex():
            raise ValueError(f"{name} has complex numbers in it, and here it is real")
        views[name + _PAIRS if is_pairs else name] = real_view(tensor) if is_pairs else tensor
    return views
