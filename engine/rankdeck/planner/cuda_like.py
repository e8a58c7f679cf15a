"""What CUDA's kernels allocate where a CPU's do otherwise, made by fake tensors on "cpu".

    dropout        keeps a byte per element, not a mask in the input's type
    attention      flash or memory-efficient: no matrix of scores, but the sums of each row
    autocast       layer norms, softmax, losses and a few more compute in fp32

Functions are exchanged, not followed by a TorchFunctionMode: that one is off inside backward(), where
activation checkpointing computes again. Read planned_torch.py before, allocator.py after.

Source: torch's ATen/autocast_mode.h (the lists) and transformers/cuda/sdp_utils.cpp (which attention).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rankdeck.torch_compat.replaced import Replaced

_aten = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)
_FLASH_HEAD_WIDTH = 256
_IN_FP32: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (
        F,
        (
            "layer_norm",
            "group_norm",
            "rms_norm",
            "softmax",
            "log_softmax",
            "nll_loss",
            "cross_entropy",
            "mse_loss",
            "l1_loss",
            "smooth_l1_loss",
            "binary_cross_entropy_with_logits",
        ),
    ),
    (torch, ("softmax", "log_softmax", "exp", "log", "pow", "rsqrt", "sum", "cumsum", "prod", "norm")),
    (Tensor, ("softmax", "log_softmax", "exp", "log", "pow", "rsqrt", "sum", "cumsum", "prod", "norm")),
)


@contextlib.contextmanager
def like_cuda(precision: str, *, on: bool = True) -> Iterator[None]:
    """A context in which fake tensors need what they would need on a GPU. `precision` is the run's."""
    if not on:
        yield
        return
    replaced = Replaced()
    try:
        replaced.put(F, "dropout", _dropout_of(F.dropout))
        replaced.put(F, "scaled_dot_product_attention", _attention())
        if precision in ("bf16", "fp16"):
            for owner, names in _IN_FP32:
                for name in names:
                    replaced.put(owner, name, _in_fp32(getattr(owner, name)))
        yield
    finally:
        replaced.put_back()


def _dropout_of(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002
        if not training or p == 0 or inplace:
            return original(input, p, training, inplace)
        return torch.native_dropout(input, p, True)[0]

    return dropout


def _attention() -> Callable[..., Tensor]:
    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if torch.is_autocast_enabled("cpu"):
            half = torch.get_autocast_dtype("cpu")
            query, key, value = query.to(half), key.to(half), value.to(half)
        kernel = attention_kernel(query, attn_mask, enable_gqa=enable_gqa)
        if query.dim() != 4 or kernel == "math":
            results = _aten._scaled_dot_product_attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        elif kernel == "flash":
            results = _aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, False, scale=scale
            )
        else:
            bias = _bias_of(attn_mask, query, key)
            results = _aten._scaled_dot_product_efficient_attention(
                query, key, value, bias, query.requires_grad, dropout_p, is_causal, scale=scale
            )
        attended: Tensor = results[0]
        return attended

    return attention


def attention_kernel(query: Tensor, mask: Tensor | None, *, enable_gqa: bool = False) -> str:
    """flash | efficient | math: which of torch's kernels a GPU of 2020 or newer would take.

    Flash wants 16 bits and no mask, the efficient one whole 16-byte rows.
    """
    width, is_half = query.shape[-1], query.dtype in _HALVES
    if is_half and mask is None and width <= _FLASH_HEAD_WIDTH:
        return "flash"
    whole_rows = width * query.element_size() % 16 == 0
    if query.dtype in (*_HALVES, torch.float32) and whole_rows and not enable_gqa:
        return "efficient"
    return "math"


def _bias_of(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """A mask as the efficient kernel takes it: numbers to add, spread over batch and heads."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    return mask.to(query.dtype).expand(*query.shape[:-1], key.shape[-2])


def _in_fp32(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def computed(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_autocast_enabled("cpu"):
            return function(*args, **kwargs)
        args = tuple(_wide(value) for value in args)
        kwargs = {name: _wide(value) for name, value in kwargs.items()}
        with torch.autocast("cpu", enabled=False):
            return function(*args, **kwargs)

    return computed


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _HALVES else value
