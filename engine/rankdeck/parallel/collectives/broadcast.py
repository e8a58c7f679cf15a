"""Broadcasts from rank 0: initial weights, buffers, and results of inspecting a model.

Each rank computes batch norm's running statistics from its own slice of the batch. As in
DistributedDataParallel, all replicas continue with rank 0's statistics, and only these are saved.
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
    """Overwrite each tensor in place with the values on the group's rank 0. All ranks call this together."""
    group = group if group is not None else dist.group.WORLD
    assert group is not None
    first = dist.get_process_group_ranks(group)[0]
    local_tensors = [local_part(tensor.detach()) for tensor in tensors]
    apply_in_buckets(local_tensors, lambda flat: dist.broadcast(flat, first, group=group))


def run_on_rank_0(function: Callable[[], T]) -> T | None:
    """Call `function` on rank 0 and return its result on every rank. All ranks call this together."""
    # The fake backend delivers nothing, so every rank of a plan has to compute the result itself.
    should_call = not dist.is_initialized() or dist.get_rank() == 0 or dist.get_backend() == "fake"
    shared = [function() if should_call else None]
    if dist.is_initialized():
        dist.broadcast_object_list(shared, src=0)
    return shared[0]


def run_on_rank_0_or_all(function: Callable[[], T]) -> T:
    """Call `function` on rank 0 and return its result on every rank. All ranks call this together.

    If `function` raises on rank 0, every rank calls it, so that all of them fail with the same error.

    Raises: whatever `function` raises.
    """

    def call_for_all() -> tuple[T] | None:
        with contextlib.suppress(Exception):
            return (function(),)
        return None

    result = run_on_rank_0(call_for_all)
    return function() if result is None else result[0]
