"""Complex numbers in files of safetensors, each as a pair of real numbers under a name that says so.

The format has no complex128, and none of it before version 0.6. A pair is a view of the same memory:
(..., 2) in the real dtype.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

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


def described(stored: Mapping[str, Any]) -> dict[str, Any]:
    """What torch.distributed.checkpoint knows of a file's tensors, of pairs as of the complex tensors."""
    return {name.removesuffix(_PAIRS): _of_complex(name, known) for name, known in stored.items()}


def _of_complex(name: str, known: Any) -> Any:
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
