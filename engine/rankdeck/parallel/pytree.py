"""Nested batches and outputs: a tensor, or tuples, lists, dicts and dataclasses of tensors at any depth."""

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
    """Call the model on its inputs: a dict becomes keyword arguments, a tuple or list positional ones."""
    if isinstance(inputs, dict):
        return module(**inputs)
    if isinstance(inputs, tuple | list):
        return module(*inputs)
    return module(inputs)


def map_tensors(value: Any, change: Callable[[Any], Any], kinds: type | tuple[type, ...] = Tensor) -> Any:
    """Return the structure `value` with `change` applied to every tensor or every value of type `kinds`."""
    if isinstance(value, kinds):
        return change(value)
    if type(value) is dict:
        return {key: map_tensors(inner, change, kinds) for key, inner in value.items()}
    if isinstance(value, dict):
        return replace_items(value, [map_tensors(inner, change, kinds) for inner in value.values()])
    if isinstance(value, tuple | list):
        return replace_items(value, [map_tensors(inner, change, kinds) for inner in value])
    if is_dataclass(value) and not isinstance(value, type):
        init_names = [field.name for field in fields(value) if field.init]
        return replace(
            value, **{name: map_tensors(getattr(value, name), change, kinds) for name in init_names}
        )
    return value


def is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_make")


def replace_items(value: Any, items: Iterable[Any]) -> Any:
    """Return a mapping, tuple or list of the same class as `value`, with its items replaced in order."""
    kind: Any = type(value)
    if isinstance(value, tuple | list):
        return kind._make(items) if is_named_tuple(value) else kind(items)
    clone = copy.copy(value)
    # Fill a copy, because subclasses such as ModelOutput and defaultdict have constructors of their own.
    for key, item in zip(value, items, strict=True):
        clone[key] = item
    return clone


def tensor_leaves(value: Any) -> list[Tensor]:
    """Return every tensor inside tuples, lists, dicts and dataclasses."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    elif is_dataclass(value) and not isinstance(value, type):
        # Attributes that are not fields count too; a dataclass with slots has fields only.
        names = vars(value) if hasattr(value, "__dict__") else [field.name for field in fields(value)]
        value = [getattr(value, name) for name in names]
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in tensor_leaves(item)]
    return []


def num_samples(batch: Any) -> int:
    """Return the length of the first tensor in a batch."""
    tensors = tensor_leaves(batch)
    return len(tensors[0]) if tensors else 0


def check_sample_dim(batch: Any, num_samples: int, strategy: str) -> None:
    """Check that a batch can be split along its first dim.

    Raises: ModelError if the size of a tensor's first dim is not `num_samples`, as with concatenated graphs
    or sentences, or if a tensor has no dims, as with a number shared by all samples.
    """
    for tensor in tensor_leaves(batch):
        if tensor.shape[:1] != (num_samples,):
            raise ModelError(
                phrase(
                    "A batch of {num_samples} samples contains a tensor of shape {shape}, but "
                    "with strategy.use = {strategy}, tensors are split along their first dim, "
                    "which must be the batch dim.",
                    num_samples=num_samples,
                    shape=tuple(tensor.shape),
                    strategy=strategy,
                ),
                path="strategy.use",
                advice=phrase('Set strategy.use = "ddp" or "fsdp": each rank then gets its own samples.'),
            )


def pad_batch(value: Any, size: int) -> Any:
    """Pad a batch to `size` samples by repeating its last sample."""

    def fill_up(tensor: Tensor) -> Tensor:
        missing = size - len(tensor)
        return torch.cat([tensor, tensor[-1:].expand(missing, *tensor.shape[1:])]) if missing else tensor

    return map_tensors(value, fill_up)


def first_samples(value: Any, num_samples: int) -> Any:
    """Return the first `num_samples` samples of a batch of any structure."""
    return map_tensors(value, lambda tensor: tensor[:num_samples])


def split_batch(value: Any, size: int, num_samples: int) -> list[Any]:
    """Split the first `num_samples` samples into microbatches of `size` samples; the last may be shorter."""
    return [
        map_tensors(value, lambda tensor, start=start: tensor[start : min(start + size, num_samples)])  # type: ignore[misc]
        for start in range(0, num_samples, size)
    ]


def cast_to(value: Any, dtype: torch.dtype) -> Any:
    """Cast floating-point and complex tensors to double precision if `dtype` is fp64; else return `value`
    unchanged."""
    if dtype is not torch.float64:
        return value
    return map_tensors(value, lambda tensor: tensor.to(fp64_dtype(tensor.dtype)))


def fp64_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the fp64 counterpart of a floating-point or complex dtype; integer dtypes stay as they are."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype
