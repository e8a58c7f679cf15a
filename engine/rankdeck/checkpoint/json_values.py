"""Convert Python values to JSON and back. Nothing is unpickled, so reading a file cannot run any code.

Numbers, strings, lists and dictionaries stay as they are; values that JSON lacks become {"$kind": ...}.
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

_MAX_EXACT_INT = 2**53
"""Magnitude above which integers lose precision in JSON readers that parse numbers as floats."""
_TYPES_BY_TAG: dict[str, type] = {"$tuple": tuple, "$set": set, "$frozenset": frozenset}
_TAGS_BY_TYPE = {kind: name for name, kind in _TYPES_BY_TAG.items()}


def to_json_value(value: Any) -> Any:
    """Return the value in a form that msgspec can encode as JSON.

    Raises: TypeError for an object that could only be restored by running its class's code.
    """
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return value if abs(value) < _MAX_EXACT_INT else {"$int": str(value)}
    if kind is float:
        # JSON has neither NaN nor infinity.
        return value if math.isfinite(value) else {"$float": str(value)}
    if kind is list:
        return [to_json_value(item) for item in value]
    if kind in _TAGS_BY_TYPE:
        return {_TAGS_BY_TYPE[kind]: [to_json_value(item) for item in value]}
    if kind is deque:
        return {"$deque": [to_json_value(list(value)), value.maxlen]}
    if kind in (dict, OrderedDict):
        return _dict_to_json(value)
    if kind is bytes:
        return {"$bytes": _to_base64(value)}
    if isinstance(value, Tensor):
        return _tensor_to_json(value)
    # Object arrays are refused: only pickle could restore their elements.
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        shape = value.shape if isinstance(value, np.ndarray) else None
        return {"$numpy": [value.dtype.str, shape, _to_base64(value.tobytes())]}
    raise TypeError(phrase("{kind}, an object that only pickle could save", kind=kind.__name__))


def from_json_value(plain: Any, device: torch.device | None = None) -> Any:
    """Reverse `to_json_value`. Unless `device` is None, move tensors that were saved from a GPU to it."""
    if isinstance(plain, list):
        return [from_json_value(item, device) for item in plain]
    if not isinstance(plain, dict):
        return plain
    pair: tuple[str, Any] = next(iter(plain.items()), ("", None))
    name, inside = pair
    if name in _TYPES_BY_TAG:
        return _TYPES_BY_TAG[name](from_json_value(inside, device))
    match name:
        case "$int":
            return int(inside)
        case "$float":
            return float(inside)
        case "$deque":
            return deque(from_json_value(inside[0], device), maxlen=inside[1])
        case "$dict" | "$ordered":
            pairs = [(from_json_value(key, device), from_json_value(value, device)) for key, value in inside]
            return dict(pairs) if name == "$dict" else OrderedDict(pairs)
        case "$bytes":
            return base64.b64decode(inside)
        case "$tensor":
            (tensor,) = decode_complex(safetensors.torch.load(base64.b64decode(inside))).values()
            return tensor.to(device) if device is not None and not plain["on_host"] else tensor
        case "$numpy":
            dtype, shape, text = inside
            # A bytearray, because an array over bytes would be read-only.
            array = np.frombuffer(bytearray(base64.b64decode(text)), dtype=np.dtype(dtype))
            return array[0] if shape is None else array.reshape(shape)
    return {key: from_json_value(value, device) for key, value in plain.items()}


def _dict_to_json(value: dict[Any, Any]) -> dict[str, object]:
    # A key that starts with $ would be read back as the name of a type.
    if type(value) is dict and all(type(key) is str and not key.startswith("$") for key in value):
        return {key: to_json_value(item) for key, item in value.items()}
    name = "$dict" if type(value) is dict else "$ordered"
    return {name: [[to_json_value(key), to_json_value(item)] for key, item in value.items()]}


def _tensor_to_json(tensor: Tensor) -> dict[str, object]:
    full = tensor.full_tensor() if is_dtensor(tensor) else tensor
    if full.layout is not torch.strided:
        raise TypeError(phrase("a tensor with layout {layout}", layout=full.layout))
    data = safetensors.torch.save(encode_complex({"": full.detach().cpu().contiguous()}))
    return {"$tensor": _to_base64(data), "on_host": full.device.type == "cpu"}


def _to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


# Complex numbers in safetensors files: pairs of real numbers, under a name with a suffix.
#
# The format has no complex128, and no complex type at all before version 0.6. A pair is a view of the same
# memory, (..., 2) in the real dtype.

_COMPLEX_SUFFIX = "$complex"
"""Suffix of the name of a complex tensor that is stored as pairs of real numbers."""


def encode_complex(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors as a file stores them: complex tensors as pairs of real numbers, under a suffixed
    name."""
    return {_stored_name(name, tensor): real_view(tensor) for name, tensor in tensors.items()}


def decode_complex(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Reverse `encode_complex`."""
    return {
        name.removesuffix(_COMPLEX_SUFFIX): torch.view_as_complex(tensor)
        if name.endswith(_COMPLEX_SUFFIX)
        else tensor
        for name, tensor in stored.items()
    }


def real_view(tensor: Tensor) -> Tensor:
    """Return a complex tensor as a view of its real and imaginary parts, with shape (..., 2), in the same
    memory; return any other tensor unchanged."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _stored_name(name: str, tensor: Tensor) -> str:
    return name + _COMPLEX_SUFFIX if tensor.is_complex() else name


def tensor_metadata(stored: Mapping[str, Any]) -> dict[str, TensorStorageMetadata]:
    """Return torch.distributed.checkpoint's metadata for a file's tensors, in which pairs of real numbers
    appear as complex tensors."""
    return {
        name.removesuffix(_COMPLEX_SUFFIX): _complex_metadata(name, metadata)
        for name, metadata in stored.items()
    }


def _complex_metadata(name: str, metadata: TensorStorageMetadata) -> TensorStorageMetadata:
    if not name.endswith(_COMPLEX_SUFFIX):
        return metadata
    properties = dataclasses.replace(metadata.properties, dtype=metadata.properties.dtype.to_complex())
    return dataclasses.replace(metadata, size=metadata.size[:-1], properties=properties)


def read_views(tensors: Mapping[str, Tensor], stored: Collection[str]) -> dict[str, Tensor]:
    """Return the tensors to read a file into, by their names in the file; `stored` has all names in the file.

    A complex tensor that the file stores as pairs of real numbers is returned as a real view, (..., 2).

    Raises:
        ValueError: the file has complex numbers for a real tensor.
    """
    views = {}
    for name, tensor in tensors.items():
        is_pairs = name + _COMPLEX_SUFFIX in stored
        if is_pairs and not tensor.is_complex():
            raise ValueError(f"{name} is complex in the checkpoint, but real here")
        views[name + _COMPLEX_SUFFIX if is_pairs else name] = real_view(tensor) if is_pairs else tensor
    return views
