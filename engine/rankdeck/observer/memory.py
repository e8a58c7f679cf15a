"""Measures a rank's memory by kind: parameters, gradients, buffers and optimizer state.

The owners of this memory are the optimizers that have stepped and the known modules, all referenced weakly;
other owners are not searched for. On GPUs torch's allocator reports the total, and memory without an owner is
"unattributed". The allocator's peaks are read and never reset, because they belong to the script. On a CPU
only the owners' memory can be measured. A measurement takes some microseconds per tensor; the longer it
takes, the later the next one happens.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .session import RankSession

PART = "memory"
OWNERS_SEEN = "owners seen on CPU"
MEASURED_ON_GPU = "measured on GPU"
UNATTRIBUTED = "unattributed"
"""This text and the two above it are the same as in events.py; a test compares them."""
KINDS = ("parameters", "buffers", "gradients", "optimizer")
"""Kinds of memory in order of precedence: a storage belongs to the first kind that refers to it."""
MAX_TIME_SHARE = 0.01
"""Maximum share of the run time that measuring the owners' memory may take."""
MIN_INTERVAL_S = 1.0
_MAX_DEPTH = 4


class OwnedMemoryReader:
    """Reads a rank's memory from time to time. `device` is the index reported for a rank without a GPU."""

    def __init__(self, torch: Any, device: int) -> None:
        self._torch = torch
        self._device = device
        self._owned_bytes: dict[tuple[str, int], dict[str, int]] = {}
        self._next_walk_at = self._next_read_at = 0.0

    def read(self, optimizers: Iterable[Any], modules: Iterable[Any]) -> dict[str, object] | None:
        """Return a memory event's fields except rank and step; None if it is too early to read again."""
        start_s = time.perf_counter()
        if start_s < self._next_read_at:
            return None
        if start_s >= self._next_walk_at:
            self._owned_bytes = owned_bytes(self._torch, optimizers, modules)
            took = time.perf_counter() - start_s
            self._next_walk_at = start_s + max(MIN_INTERVAL_S, took / MAX_TIME_SHARE)
        elif not self._torch.cuda.is_initialized():
            return None
        devices = gpu_memory(self._torch, self._owned_bytes)
        took = time.perf_counter() - start_s
        self._next_read_at = start_s + max(MIN_INTERVAL_S / 2, took / MAX_TIME_SHARE)
        if devices:
            return {"source": MEASURED_ON_GPU, "devices": devices}
        by_kind = dict.fromkeys(KINDS, 0)
        for device_bytes in self._owned_bytes.values():
            for kind, num_bytes in device_bytes.items():
                by_kind[kind] += num_bytes
        total = sum(by_kind.values())
        if not total:
            return None
        here = {
            "device": self._device,
            "live_bytes": total,
            "peak_bytes": total,
            "live_by_kind": by_kind,
            "peak_by_kind": by_kind,
        }
        return {"source": OWNERS_SEEN, "devices": [here]}


def install(torch: Any, session: RankSession) -> None:
    """Read the memory at sampled steps, as often as the time limit allows."""
    reader = OwnedMemoryReader(torch, int(os.environ.get("LOCAL_RANK") or 0))

    def read(_: Any) -> None:
        fields = reader.read(_live_objects(session.optimizers), _live_objects(session.models))
        if fields is not None and not (session.has_tracked_step and fields["source"] == OWNERS_SEEN):
            session.emit("memory", step=session.step, **fields)

    session.on_sampled_step.add(PART, read)


def _live_objects(references: Iterable[Any]) -> list[Any]:
    return [owner for owner in (reference() for reference in list(references)) if owner is not None]


def gpu_memory(torch: Any, owned: dict[tuple[str, int], dict[str, int]]) -> list[dict[str, object]]:
    """Return the allocator statistics of this process for each GPU. Does not initialize CUDA."""
    if not torch.cuda.is_initialized():
        return []
    devices = []
    for device in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats_as_nested_dict(device)
        if not stats or not stats["allocated_bytes"]["all"]["peak"]:
            continue
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        owned_by_kind = owned.get(("cuda", device), {})
        devices.append(
            {
                "device": device,
                "live_bytes": allocated["current"],
                "peak_bytes": allocated["peak"],
                "live_by_kind": with_unattributed(owned_by_kind, allocated["current"]),
                "peak_by_kind": with_unattributed(owned_by_kind, allocated["peak"]),
                "reserved_bytes": reserved["current"],
                "peak_reserved_bytes": reserved["peak"],
            }
        )
    return devices


def with_unattributed(owned_by_kind: dict[str, int], total_bytes: int) -> dict[str, int]:
    """Return the bytes of all kinds, with the rest of `total_bytes` as unattributed. The bytes in
    `owned_by_kind` are capped so that their sum never exceeds the total."""
    by_kind, left = {}, total_bytes
    for kind in KINDS:
        by_kind[kind] = min(owned_by_kind.get(kind, 0), left)
        left -= by_kind[kind]
    by_kind[UNATTRIBUTED] = left
    return by_kind


def owned_bytes(
    torch: Any, optimizers: Iterable[Any], modules: Iterable[Any]
) -> dict[tuple[str, int], dict[str, int]]:
    """Return bytes by device, which is (type, index), and by kind; every storage counts once."""
    optimizers, modules = list(optimizers), list(modules)
    parameters: dict[int, Any] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            parameters.update((id(parameter), parameter) for parameter in group["params"])
    for module in modules:
        parameters.update((id(parameter), parameter) for parameter in module.parameters())
    owners: dict[str, Iterable[Any]] = {
        "parameters": parameters.values(),
        "buffers": (buffer for module in modules for buffer in module.buffers()),
        "gradients": (parameter.grad for parameter in parameters.values()),
        "optimizer": (state for optimizer in optimizers for state in _states(optimizer)),
    }
    addresses: set[tuple[str, int]] = set()
    by_device: dict[tuple[str, int], dict[str, int]] = {}
    for kind in KINDS:
        for tensor in _tensors(torch, owners[kind], _MAX_DEPTH):
            storage = tensor.untyped_storage()
            num_bytes = storage.nbytes()
            if not num_bytes:
                continue
            device = storage.device.type, storage.device.index or 0
            address = device[0] + str(device[1]), storage.data_ptr()
            if address not in addresses:
                addresses.add(address)
                by_kind = by_device.setdefault(device, {})
                by_kind[kind] = by_kind.get(kind, 0) + num_bytes
    return by_device


def _states(optimizer: Any) -> Iterable[Any]:
    state: Any = getattr(optimizer, "state", {})
    return list(state.values()) if hasattr(state, "values") else ()


def _tensors(torch: Any, values: Iterable[Any], deep: int) -> Iterator[Any]:
    """Yield the plain tensors among the values, and those inside containers and wrapper tensors nested up to
    `deep` levels."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield from _plain_tensors(torch, value, deep)
        elif isinstance(value, (dict, list, tuple)) and deep:
            yield from _tensors(torch, value.values() if isinstance(value, dict) else value, deep - 1)


def _plain_tensors(torch: Any, tensor: Any, deep: int) -> Iterator[Any]:
    if hasattr(tensor, "__tensor_flatten__"):  # wraps other tensors, such as a DTensor
        names, _ = tensor.__tensor_flatten__()
        yield from _tensors(torch, [getattr(tensor, name) for name in names], deep - 1)
    elif tensor.is_meta or tensor.is_mkldnn:
        return
    elif tensor.layout is torch.strided:
        yield tensor
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
