"""Tensors that travel together: laid end to end into one flat tensor, sent as one, cut up again.

One message of 25 MiB is faster than a thousand small ones, and a bucket bounds what the copy costs. Read
grad_sync.py for who fills them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rankdeck.torch_compat.dispatch import storage_key

DEFAULT_BUCKET_BYTES = 25 * 2**20


def assign_buckets(tensors: Sequence[Tensor], limit_bytes: int) -> list[list[int]]:
    """Which tensors travel together: the places of neighbours of one dtype, up to `limit_bytes`."""
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
    """The tensors end to end, (sum of numel,); a single contiguous tensor as a view of itself."""
    parts = [tensor.reshape(-1) for tensor in tensors]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def unflatten(flat: Tensor, likes: Sequence[Tensor]) -> list[Tensor]:
    """Views of a flat tensor in the shapes of `likes`."""
    parts = flat.split([like.numel() for like in likes])
    return [part.view(like.shape) for part, like in zip(parts, likes, strict=True)]


def apply_in_buckets(
    tensors: Sequence[Tensor],
    change: Callable[[Tensor], object],
    limit_bytes: int = DEFAULT_BUCKET_BYTES,
    *,
    dtype: torch.dtype | None = None,
) -> None:
    """Let `change` work in place on one flat bucket after another; the tensors end with what it left.

    `dtype` is what a bucket travels in, by default that of its tensors.
    """
    for bucket in assign_buckets(tensors, limit_bytes):
        own = [tensors[index] for index in bucket]
        flat = flatten(own)
        travelling = flat if dtype is None else flat.to(dtype)
        change(travelling)
        for tensor, part in zip(own, unflatten(travelling, own), strict=True):
            # By storage: a planned tensor has no address.
            if storage_key(part.untyped_storage()) != storage_key(tensor.untyped_storage()):
                tensor.copy_(part)
