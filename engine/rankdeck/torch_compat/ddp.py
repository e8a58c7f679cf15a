"""DistributedDataParallel: its log, its gradient compression, and a subclass that runs on fake tensors.

Source: torch.nn.parallel.distributed; torch/csrc/distributed/c10d/logger.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from rankdeck.torch_compat.private_api import PrivateApi
from rankdeck.torch_compat.sparse import sum_over_ranks

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

_DDP_PATH = "torch.nn.parallel:DistributedDataParallel"
_NO_SYNC_TIMES = "the times of gradient syncs under ddp are unknown"
_NO_COMPRESSION = "ddp cannot compress gradients to 16 bits"
_WRONG_PLANS = "plans of ddp are estimated as single plus gradient buckets"
PRIVATE_APIS = (
    PrivateApi(f"{_DDP_PATH}._get_ddp_logging_data", _NO_SYNC_TIMES, parameters=("self",)),
    PrivateApi(
        f"{_DDP_PATH}._set_ddp_runtime_logging_sample_rate",
        _NO_SYNC_TIMES,
        parameters=("self", "sample_rate"),
    ),
    PrivateApi(f"{_DDP_PATH}.register_comm_hook", _NO_COMPRESSION, parameters=("self", "state", "hook")),
    PrivateApi("torch.distributed:Reducer._rebuild_buckets", _WRONG_PLANS),
    PrivateApi(
        "torch.distributed.algorithms.ddp_comm_hooks.default_hooks:_compress_hook",
        _NO_COMPRESSION,
        parameters=("dtype", "process_group", "bucket"),
    ),
)
_DEFAULT_SAMPLE_RATE = 100


def ddp_log(ddp: DistributedDataParallel) -> dict[str, int]:
    """Return the numbers in DDP's log of the last backward pass, with times in nanoseconds; empty if there is
    no log."""
    try:
        log = ddp._get_ddp_logging_data()
    except (AttributeError, AssertionError, TypeError):
        return {}
    return {name: value for name, value in log.items() if isinstance(value, int)}


def set_timing_rate(ddp: DistributedDataParallel, is_enabled: bool) -> None:
    """Make DDP log the times of every backward pass if `is_enabled` is True, otherwise of every hundredth."""
    ddp._set_ddp_runtime_logging_sample_rate(1 if is_enabled else _DEFAULT_SAMPLE_RATE)


def compress_bucket(dtype: torch.dtype, group: Any, bucket: GradBucket) -> Future[Tensor]:
    """Compress a bucket to `dtype` and average it across ranks, as torch's fp16 and bf16 compression hooks
    do."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    future: Future[Tensor] = default_hooks._compress_hook(dtype, group, bucket)
    return future


class PlannedDdp(DistributedDataParallel):
    """Subclass of torch's DDP wrapper that runs on fake tensors.

    It skips the initial sync and never rebuilds buckets. The all-reduce finishes at once and leaves gradients
    as they are.
    """

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__(module, init_sync=False, **options)
        # Unannotated: torch compares a hook's annotations with classes of its own.
        super().register_comm_hook(None, lambda _, bucket: self._all_reduce(bucket))
        reducer: Any = _FixedBucketReducer(self.reducer)
        self.reducer = reducer

    def _all_reduce(self, bucket: Any) -> Future[Tensor]:
        done: Future[Tensor] = Future()
        gradients = bucket.buffer()
        if gradients.is_sparse:
            gradients = sum_over_ranks(gradients, dist.get_world_size(self.process_group))
        else:
            dist.all_reduce(gradients, group=self.process_group)
        done.set_result(gradients)
        return done

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Ignore the hook: compressed gradients need extra tensors, which the plan leaves out."""


class _FixedBucketReducer:
    """Reducer that never rebuilds buckets, because that would require messages to other ranks."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return (lambda: False) if name == "_rebuild_buckets" else getattr(self._reducer, name)
