"""DistributedDataParallel's own compression, and what its own log knows of a backward.

Two traps of torch are met here: `bf16_compress_hook` refuses to run without NCCL although the function below
it does not need it; PowerSGD's hook hangs with more than one bucket, because ranks chain its rounds in
different orders. Read strategies/ddp.py next.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from rankdeck.collectives.compress import HALVES
from rankdeck.collectives.grad_sync import SyncTimes

_MIB = 2**20
_NS = 1e-9
FIRST_POWERSGD_STEP = 2
"""Torch's least: the buckets are made anew after the first step."""


def compress_with_hook(
    ddp: DistributedDataParallel, compress: str, group: dist.ProcessGroup | None, powersgd_rank: int
) -> None:
    """Register torch's hook for `compress` (fp16 | bf16 | powersgd)."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if compress == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            group, matrix_approximation_rank=powersgd_rank, start_powerSGD_iter=FIRST_POWERSGD_STEP
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return
    dtype = HALVES[compress]

    def hook(state: Any, bucket: Any) -> Any:
        return default_hooks._compress_hook(dtype, state, bucket)

    hook.__annotations__.clear()  # torch compares them with classes, and here they are words
    ddp.register_comm_hook(group if group is not None else dist.group.WORLD, hook)


def one_bucket_mb(module: Module) -> float:
    """A bucket size that holds all gradients of a module."""
    num_bytes = sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
    return num_bytes / _MIB + 1


def backward_times(ddp: DistributedDataParallel) -> SyncTimes | None:
    """The mean over the steps that torch itself timed (the first ten, then every hundredth).

    From the first bucket's start to the last one's end, and how much of that lay under backward's computing.
    None before the third step, or where this version of torch does not tell.
    """
    try:
        told = ddp._get_ddp_logging_data()
        seconds = told["avg_backward_comm_time"] * _NS
        overlapped_s = told["avg_backward_compute_comm_overlap_time"] * _NS
    except (AttributeError, AssertionError, KeyError, TypeError):
        return None
    return SyncTimes(seconds, min(overlapped_s, seconds)) if seconds > 0 else None
