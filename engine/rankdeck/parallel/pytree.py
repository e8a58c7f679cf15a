"""Batches and outputs as they come: a tensor, or tuples, lists, dicts and data classes of tensors, nested as
a person likes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import phrase


def call_model(module: Callable[..., Any], inputs: Any) -> Any:
    """The model on its inputs: a dict becomes keyword arguments, a tuple positional ones."""
    if isinstance(inputs, dict):
        return module(**inputs)
    if isinstance(inputs, tuple | list):
        return module(*inputs)
    return module(inputs)


def map_tensors(value: Any, change: Callable[[Any], Any], kinds: type | tuple[type, ...] = Tensor) -> Any:
    """The same structure with every tensor changed, or every value of other `kinds`."""
    if isinstance(value, kinds):
        return change(value)
    if type(value) is dict:
        return {key: map_tensors(inner, change, kinds) for key, inner in value.items()}
    if isinstance(value, dict):
        return replace_items(value, [map_tensors(inner, change, kinds) for inner in value.values()])
    if isinstance(value, tuple | list):
        return replace_items(value, [map_tensors(inner, change, kinds) for inner in value])
    if is_dataclass(value) and not isinstance(value, type):
        given = [field.name for field in fields(value) if field.init]
        return replace(value, **{name: map_tensors(getattr(value, name), change, kinds) for name in given})
    return value


def is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_make")


def replace_items(value: Any, items: Iterable[Any]) -> Any:
    """A mapping, tuple or list of the class of `value` with other items, in its order."""
    kind: Any = type(value)
    if isinstance(value, tuple | list):
        return kind._make(items) if is_named_tuple(value) else kind(items)
    own = copy.copy(value)
    for key, item in zip(value, items, strict=True):
        own[key] = item
    return own


def tensor_leaves(value: Any) -> list[Tensor]:
    """Every tensor inside tuples, lists, dicts and data classes."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    elif is_dataclass(value) and not isinstance(value, type):
        names = vars(value) if hasattr(value, "__dict__") else [field.name for field in fields(value)]
        value = [getattr(value, name) for name in names]
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in tensor_leaves(item)]
    return []


def num_samples(batch: Any) -> int:
    """The length of the first tensor in a batch."""
    tensors = tensor_leaves(batch)
    return len(tensors[0]) if tensors else 0


def check_sample_dim(batch: Any, num_samples: int, strategy: str) -> None:
    """Before a batch is cut along its first dim.

    Raises: ModelError where that of a tensor does not count the samples: graphs or sentences behind each
    other, or a number for all samples.
    """
    for tensor in tensor_leaves(batch):
        if tensor.shape[:1] != (num_samples,):
            raise ModelError(
                phrase(
                    "A batch of {num_samples} samples holds a tensor of shape {shape}: strategy.use = "
                    "{strategy} cuts batches along their first dim, which does not count samples there.",
                    num_samples=num_samples,
                    shape=tuple(tensor.shape),
                    strategy=strategy,
                ),
                path="strategy.use",
                advice=phrase('Use strategy.use = "ddp" or "fsdp", which give each rank samples of its own.'),
            )


def pad_batch(value: Any, size: int) -> Any:
    """A batch of `size` samples: the last one repeated."""

    def fill_up(tensor: Tensor) -> Tensor:
        missing = size - len(tensor)
        return torch.cat([tensor, tensor[-1:].expand(missing, *tensor.shape[1:])]) if missing else tensor

    return map_tensors(value, fill_up)


def first_samples(value: Any, num_samples: int) -> Any:
    """The first samples of a batch, whatever it is made of."""
    return map_tensors(value, lambda tensor: tensor[:num_samples])


def split_batch(value: Any, size: int, num_samples: int) -> list[Any]:
    """A batch in microbatches of `size` samples, up to the sample `num_samples`; the last may be shorter."""
    return [
        map_tensors(value, lambda tensor, start=start: tensor[start : min(start + size, num_samples)])  # type: ignore[misc]
        for start in range(0, num_samples, size)
    ]


def cast_to(value: Any, dtype: torch.dtype) -> Any:
    """Floating and complex tensors in the run's precision.

    Only fp64 asks for it: what is fp32 or less stays as it came.
    """
    if dtype is not torch.float64:
        return value
    return map_tensors(value, lambda tensor: tensor.to(fp64_dtype(tensor.dtype)))


def fp64_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the same kind of numbers in fp64; that of whole numbers as it is."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype
