"""Buckets of tensors: each is flattened into one tensor, sent as one message, and split again.

One message of 25 MiB is faster than a thousand small ones, and the size of a bucket limits the memory for the
copy. See grad_sync.py for the main user of buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rankdeck.torch_compat.dispatch import storage_key

DEFAULT_BUCKET_BYTES = 25 * 2**20


def assign_buckets(tensors: Sequence[Tensor], limit_bytes: int) -> list[list[int]]:
    """Group neighbouring tensors of the same dtype into buckets of up to `limit_bytes`; return each bucket's
    tensor indices."""
    buckets: list[list[int]] = []
    filled_bytes, dtype = 0, None
    for index, tensor in enumerate(tensors):
        num_bytes = tensor.numel() * tensor.element_size()
        if not buckets or tensor.dtype != dtype or filled_bytes + num_bytes > limit_bytes:
            buckets.append([])
            filled_bytes, dtype = 0, tensor.dtype
        buckets[-1].append(index)
        filled_bytes += num_bytes
    return buckets


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors into a 1-dim tensor; for a single contiguous tensor, return a view of it."""
    flat_tensors = [tensor.reshape(-1) for tensor in tensors]
    return flat_tensors[0] if len(flat_tensors) == 1 else torch.cat(flat_tensors)


def unflatten(flat: Tensor, likes: Sequence[Tensor]) -> list[Tensor]:
    """Return views of a flat tensor, with the shapes of the tensors in `likes`."""
    chunks = flat.split([like.numel() for like in likes])
    return [chunk.view(like.shape) for chunk, like in zip(chunks, likes, strict=True)]


def apply_in_buckets(
    tensors: Sequence[Tensor],
    change: Callable[[Tensor], object],
    limit_bytes: int = DEFAULT_BUCKET_BYTES,
    *,
    dtype: torch.dtype | None = None,
) -> None:
    """Apply `change` in place to one flat bucket after another and write the results back to the tensors.

    `dtype` is the dtype in which a bucket is sent, by default that of its tensors.
    """
    for bucket in assign_buckets(tensors, limit_bytes):
        bucket_tensors = [tensors[index] for index in bucket]
        flat = flatten(bucket_tensors)
        travelling = flat if dtype is None else flat.to(dtype)
        change(travelling)
        for tensor, view in zip(bucket_tensors, unflatten(travelling, bucket_tensors), strict=True):
            # Compare storages, because a planned tensor has no address.
            if storage_key(view.untyped_storage()) != storage_key(tensor.untyped_storage()):
                tensor.copy_(view)
