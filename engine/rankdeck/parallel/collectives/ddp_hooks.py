"""Use DistributedDataParallel's own compression hooks and its timings of backward passes.

Two of these hooks have problems: `bf16_compress_hook` refuses to run without NCCL, so the function that it
wraps, which does not need NCCL, is registered instead; PowerSGD's hook hangs with more than one bucket,
because ranks run its collectives in different orders, so all gradients go into one bucket
(`single_bucket_mb`). Read strategies/ddp.py next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from rankdeck.parallel.collectives.compress import HALF_DTYPES
from rankdeck.parallel.collectives.grad_sync import SyncTimes
from rankdeck.torch_compat import ddp as torch_ddp

if TYPE_CHECKING:
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

_STATE_DICTS = ("error_dict", "p_memory_dict", "q_memory_dict")
_MIB = 2**20
_NS_TO_S = 1e-9
FIRST_POWERSGD_STEP = 2
"""First step whose gradients PowerSGD compresses: torch's minimum, because DDP rebuilds its buckets after the
first step."""


def register_compression_hook(
    ddp: DistributedDataParallel, compress: str, powersgd_rank: int
) -> PowerSGDState | None:
    """Register torch's hook for `compress` (fp16 | bf16 | powersgd); return PowerSGD's state, or None."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    if compress == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=powersgd_rank, start_powerSGD_iter=FIRST_POWERSGD_STEP
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return state
    dtype = HALF_DTYPES[compress]

    def hook(state: Any, bucket: Any) -> Any:
        return torch_ddp.compress_bucket(dtype, state, bucket)

    hook.__annotations__.clear()  # torch compares them with classes; here they are strings
    ddp.register_comm_hook(dist.group.WORLD, hook)
    return None


def powersgd_tensors(state: PowerSGDState) -> dict[str, Tensor]:
    """Return the tensors from which torch's PowerSGD starts the next step."""
    tensors = {f"{name}.{bucket}": t for name in _STATE_DICTS for bucket, t in getattr(state, name).items()}
    return {"iter": torch.tensor([state.iter]), **tensors}


def load_powersgd_tensors(state: PowerSGDState, tensors: Mapping[str, Tensor], device: torch.device) -> None:
    """Load the tensors that `powersgd_tensors` returned."""
    for name, tensor in tensors.items():
        memory, _, bucket = name.partition(".")
        if memory == "iter":
            state.iter = int(tensor)
        else:
            # A copy, because the hook changes these tensors in place.
            getattr(state, memory)[int(bucket)] = tensor.to(device, copy=True)


def single_bucket_mb(module: Module) -> float:
    """Return a bucket size in MiB that is large enough for all gradients of a module."""
    num_bytes = sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
    return num_bytes / _MIB + 1


def mean_sync_times(ddp: DistributedDataParallel) -> SyncTimes | None:
    """Return the mean sync time and overlap of the steps that torch timed (first ten, then every hundredth).

    The sync time runs from the first bucket's start to the last bucket's end; the overlap is the part of it
    during which the backward pass was still computing. Return None before the third step, or if this version
    of torch does not report the times.
    """
    log = torch_ddp.ddp_log(ddp)
    seconds = log.get("avg_backward_comm_time", 0) * _NS_TO_S
    overlapped_s = log.get("avg_backward_compute_comm_overlap_time", 0) * _NS_TO_S
    return SyncTimes(seconds, min(overlapped_s, seconds)) if seconds > 0 else None


def set_backward_timing(ddp: DistributedDataParallel, is_enabled: bool) -> None:
    """Make torch time every backward pass or, if `is_enabled` is False, every hundredth (torch's default).

    Do nothing on GPUs, where torch would wait for the device.
    """
    if next(ddp.parameters()).device.type == "cpu":
        torch_ddp.set_timing_rate(ddp, is_enabled)


def last_sync_interval(ddp: DistributedDataParallel) -> tuple[float, float] | None:
    """Return the Unix time at which a gradient sync started, and its duration in seconds.

    The sync is that of the backward pass before the last forward pass, from the first bucket's start to the
    last bucket's end. Return None on GPUs, where torch's log has no timestamps, or if torch did not time that
    backward pass.
    """
    log = torch_ddp.ddp_log(ddp)
    start_ns, end_ns = log.get("backward_comm_time_start", 0), log.get("backward_comm_time_end", 0)
    return (start_ns * _NS_TO_S, (end_ns - start_ns) * _NS_TO_S) if 0 < start_ns < end_ns else None
