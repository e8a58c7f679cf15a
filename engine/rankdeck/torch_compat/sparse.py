"""Sparse fake tensors: the number of elements of a result, which torch cannot derive from shapes alone.

    operation                                 number of elements of the result
    make a tensor from indices and values     the number of values
    copy, negate, multiply by a number        that of the source
    mask                                      that of the mask
    copy into another tensor                  that of the copied tensor
    add two tensors                           the sum of both, because CPUs and GPUs concatenate the elements
    coalesce                                  that of the source, an upper bound: duplicates are unknown

The number of elements of a gradient of `Embedding(sparse=True)` is therefore known from the gradient's
indices and values. Read fake_tensors.py first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rankdeck.torch_compat.dispatch import Kwargs
from rankdeck.torch_compat.fake_tensors import in_kernel
from rankdeck.torch_compat.private_api import PrivateApi

_WRONG_COUNTS = "plans miscount sparse gradients"
PRIVATE_APIS = (
    PrivateApi("torch.ops:aten._sparse_coo_tensor_with_dims_and_tensors.default", _WRONG_COUNTS),
    PrivateApi("torch.ops:aten.copy_sparse_to_sparse_.default", _WRONG_COUNTS),
    PrivateApi("torch.ops:aten._coalesce.default", _WRONG_COUNTS),
)
_aten = torch.ops.aten
_MAKE = _aten._sparse_coo_tensor_with_dims_and_tensors.default


def _like(source: Any, *_: Any, **__: Any) -> Tensor:
    return _make_like(source, source._nnz())


def _masked(_: Any, mask: Any, *__: Any) -> Tensor:
    return _make_like(mask, mask._nnz())


def _sum(first: Any, second: Any, **_: Any) -> Tensor:
    return _make_like(first, first._nnz() + second._nnz())


def _sum_in_place(first: Any, second: Any, **_: Any) -> Tensor:
    return _copied(first, _sum(first, second))


def _copied(target: Any, source: Any, *_: Any, **__: Any) -> Tensor:
    assert in_kernel is not None
    # Run on the underlying meta tensors: the fake mode would dispatch the operation again.
    with in_kernel(target.fake_mode):
        _aten.copy_sparse_to_sparse_(target, source)
    result: Tensor = target
    return result


_RESULT_FUNCTIONS: dict[Any, Callable[..., Tensor]] = {
    _aten.clone.default: _like,
    _aten.neg.default: _like,
    _aten.mul.Tensor: _like,
    _aten.mul.Scalar: _like,
    _aten.div.Tensor: _like,
    _aten.div.Scalar: _like,
    # An upper bound: only values would show which indices are equal.
    _aten._coalesce.default: _like,
    _aten.sparse_mask.default: _masked,
    _aten.add.Tensor: _sum,
    _aten.sub.Tensor: _sum,
    _aten.copy_.default: _copied,
    _aten.add_.Tensor: _sum_in_place,
    _aten.sub_.Tensor: _sum_in_place,
}
_COUNT_PRESERVING = (
    _MAKE,
    _aten.detach.default,
    _aten.mul_.Tensor,
    _aten.mul_.Scalar,
    _aten.div_.Tensor,
    _aten.neg_.default,
)


def sparse_result(func: Any, args: tuple[Any, ...], kwargs: Kwargs | None) -> Tensor | None:
    """Return the result of an operation on sparse tensors; None for other operations, and for operations that
    torch computes correctly."""
    result = _RESULT_FUNCTIONS.get(func)
    if result is None or not _is_sparse(args[1] if result is _masked else args[0]):
        return None
    return result(*args, **(kwargs or {}))


def sum_over_ranks(gradient: Tensor, num_ranks: int) -> Tensor:
    """Return gloo's sum of a sparse gradient over ranks, with the largest possible number of elements:
    coalesced, as if no two ranks had an index in common."""
    num_places = math.prod(gradient.shape[: gradient.sparse_dim()])
    return _make_like(gradient, min(num_ranks * gradient._nnz(), num_places))


def loses_num_elements(func: Any, out: Any) -> bool:
    """Check whether a result's number of elements is unknown."""
    return isinstance(out, Tensor) and out.layout is not torch.strided and func not in _COUNT_PRESERVING


def _is_sparse(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.sparse_coo


def _make_like(like: Any, num_elements: int) -> Tensor:
    """Make a sparse tensor with `num_elements` elements and the layout of `like`."""
    values = torch.empty((num_elements, *like._values().shape[1:]), dtype=like.dtype)
    indices = torch.empty((like.sparse_dim(), num_elements), dtype=torch.int64)
    tensor: Tensor = _MAKE(
        like.sparse_dim(), like.dense_dim(), like.shape, indices, values,
        dtype=like.dtype, layout=torch.sparse_coo, device=like.device,
    )  # fmt: skip
    return tensor
