"""What all ranks take from the first one: initial weights, buffers that each rank's own data changed, and
what it finds out about a model.

Batch norm's running statistics follow each rank's own slice of the batch. As DistributedDataParallel does,
replicas go on with those of rank 0, which are also what is saved.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from rankdeck.parallel.collectives.buckets import apply_in_buckets
from rankdeck.torch_compat.dtensors import local_part

T = TypeVar("T")


@torch.no_grad()
def broadcast_from_rank_0(tensors: Iterable[Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Give each tensor the values that rank 0 of the group holds, in place. Every rank calls it."""
    group = group if group is not None else dist.group.WORLD
    assert group is not None
    first = dist.get_process_group_ranks(group)[0]
    own = [local_part(tensor.detach()) for tensor in tensors]
    apply_in_buckets(own, lambda flat: dist.broadcast(flat, first, group=group))


def run_on_rank_0(look: Callable[[], T]) -> T | None:
    """What rank 0 finds out, for all ranks of a run; they call this together."""
    looks = not dist.is_initialized() or dist.get_rank() == 0 or dist.get_backend() == "fake"
    shared = [look() if looks else None]
    if dist.is_initialized():
        dist.broadcast_object_list(shared, src=0)
    return shared[0]


def run_on_rank_0_or_all(look: Callable[[], T]) -> T:
    """What rank 0 finds out, for all ranks of a run; they call this together. Where it fails, every rank
    looks for itself, and fails like it.

    Raises: whatever `look` raises.
    """

    def look_for_all() -> tuple[T] | None:
        with contextlib.suppress(Exception):
            return (look(),)
        return None

    found = run_on_rank_0(look_for_all)
    return look() if found is None else found[0]
