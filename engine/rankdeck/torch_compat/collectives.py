"""The kind, bytes and group of collectives, their timeouts, and the collectives in torch's flight recorder.

Layers that are split by tensor parallelism run functional collectives; all other code runs c10d's
collectives.

Source: torch.distributed._functional_collectives; torch/csrc/distributed/c10d/Functional.cpp, Ops.cpp and
FlightRecorder.hpp; torch/distributed/distributed_c10d.py.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch import Tensor
from torch._C import _distributed_c10d

from rankdeck.base.parsing import parse_json
from rankdeck.torch_compat.private_api import PrivateApi

FUNCTIONAL_NAMESPACE = "_c10d_functional"
_BYTES_UNKNOWN = "the bytes sent under tensor and hybrid are unknown"
_TIMEOUT_MISSED = "a run may fail if a rank is suspended or paused in a debugger for 30 minutes"
_KINDS = {
    "allreduce_": "all-reduce",
    "allreduce_coalesced_": "all-reduce",
    "all_reduce": "all-reduce",
    "allgather_": "all-gather",
    "_allgather_base_": "all-gather",
    "allgather_into_tensor_coalesced_": "all-gather",
    "all_gather_into_tensor": "all-gather",
    "reduce_scatter_": "reduce-scatter",
    "_reduce_scatter_base_": "reduce-scatter",
    "reduce_scatter_tensor_coalesced_": "reduce-scatter",
    "reduce_scatter_tensor": "reduce-scatter",
    "alltoall_": "all-to-all",
    "alltoall_base_": "all-to-all",
    "all_to_all_single": "all-to-all",
    "broadcast_": "broadcast",
    "broadcast": "broadcast",
    "send": "send",
    "recv_": "receive",
}
_DUMP_FUNCTIONS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""Functions that dump the flight recorder of gloo, and of NCCL in builds that include NCCL."""
_MAX_RECORDED = 64
PRIVATE_APIS = (
    PrivateApi(
        f"torch._C._distributed_c10d:{_DUMP_FUNCTIONS[0]}",
        "reports of a hang do not name the collectives that ranks are in",
    ),
    PrivateApi(
        "torch.distributed.distributed_c10d:_set_pg_timeout", _TIMEOUT_MISSED, parameters=("timeout", "group")
    ),
    PrivateApi("torch.distributed.distributed_c10d:_world.pg_map", _TIMEOUT_MISSED),
    PrivateApi("torch.distributed.distributed_c10d:_resolve_process_group", _BYTES_UNKNOWN),
    PrivateApi("torch.distributed:ProcessGroup.unbox", "the communication of a step is unknown"),
    *(
        PrivateApi(f"torch.ops:{FUNCTIONAL_NAMESPACE}.{name}.default", _BYTES_UNKNOWN)
        for name in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")
    ),
    PrivateApi(
        "torch.ops._c10d_functional.wait_tensor",
        "plans of tensor overstate memory",
        lookup=lambda: torch.ops._c10d_functional.wait_tensor.default,
    ),
)


def is_wait(func: Any) -> bool:
    """Check whether an operation does nothing but wait for a collective."""
    return bool(func.namespace == FUNCTIONAL_NAMESPACE and func.__name__ == "wait_tensor.default")


@dataclass(frozen=True)
class Collective:
    """An operation between ranks.

    `num_bytes` is the size of this rank's input, `group` lists the run's ranks that take part, and `peer` is
    the rank that a send goes to or a receive comes from.
    """

    kind: str
    num_bytes: int
    group: tuple[int, ...]
    peer: int | None = None


def parse_collective(func: Any, args: tuple[Any, ...]) -> Collective | None:
    """Return the collective that an operation runs; None for any other operation."""
    kind = (
        _KINDS.get(func.__name__.partition(".")[0])
        if func.namespace in (FUNCTIONAL_NAMESPACE, "c10d")
        else None
    )
    if kind is None:
        return None
    arguments = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)}
    name = next(
        name
        for name in ("input_tensor", "input_tensors", "inputs", "input", "tensors", "self")
        if name in arguments
    )
    group: Any = arguments.get("process_group")
    if group is None:
        group = c10d._resolve_process_group(arguments["group_name"])  # type: ignore[attr-defined]  # nothing public
    else:
        group = dist.ProcessGroup.unbox(group)
    ranks = tuple(dist.get_process_group_ranks(group))
    at = arguments.get("dst", arguments.get("src"))
    return Collective(kind, _num_bytes(arguments[name]), ranks, None if at is None else ranks[at])


def _num_bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    return sum(map(_num_bytes, value))


def set_timeouts(seconds: float) -> None:
    """Set the timeout of every process group that this process belongs to now.

    This includes groups that other code created without an explicit timeout.
    """
    for group in list(c10d._world.pg_map) if dist.is_initialized() else ():
        c10d._set_pg_timeout(datetime.timedelta(seconds=seconds), group)


def recorded_collectives() -> str:
    """Return the newest entries of torch's flight recorder as JSON.

    This never blocks on another rank, nor on a thread of this process that is waiting for another rank.
    """
    entries: list[Any] = []
    # The recorder is on by default and costs nothing measurable. It numbers gloo's collectives too, but no
    # messages between two ranks.
    for name in _DUMP_FUNCTIONS:
        dump = getattr(_distributed_c10d, name, None)
        if dump is not None:
            # Finished collectives too: the second argument is `onlyActive`.
            entries += parse_json(dump(True, False)).get("entries") or []
    return json.dumps({"entries": entries[-_MAX_RECORDED:]})
