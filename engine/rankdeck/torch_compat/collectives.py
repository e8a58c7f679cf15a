"""Functional collectives, which split layers send through: how a mode knows them and the size of their group.

Source: torch.distributed._functional_collectives; torch/csrc/distributed/c10d/Functional.cpp.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d

from rankdeck.torch_compat.places import Private

NAMESPACE = "_c10d_functional"
_BYTES = "bytes that tensor and hybrid send are unknown"
PLACES = (
    Private("torch.distributed.distributed_c10d:_resolve_process_group", _BYTES),
    *(
        Private(f"torch.ops:{NAMESPACE}.{name}.default", _BYTES)
        for name in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")
    ),
    Private(
        "torch.ops._c10d_functional.wait_tensor",
        "plans of tensor are too large",
        look=lambda: torch.ops._c10d_functional.wait_tensor.default,
    ),
)


def is_wait(func: Any) -> bool:
    """Whether an operation only waits for a collective."""
    return bool(func.namespace == NAMESPACE and func.__name__ == "wait_tensor.default")


def size_of_group(name: Any) -> int:
    """Ranks of a group, by the name that it has inside an operation."""
    group: Any = c10d._resolve_process_group(name)  # type: ignore[attr-defined]  # torch has no public way
    return int(group.size())
