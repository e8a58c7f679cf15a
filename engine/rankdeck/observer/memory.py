"""Memory of a rank by its owners: parameters, gradients, buffers and optimizer state are added up.

The owners are the optimizers that have stepped and the modules that were wrapped, all held weakly; nobody
searches for more. On GPUs torch's allocator says how much there is in all, and what no owner was found for
is "unattributed"; its peaks are read and never reset, they are the script's. On a CPU only what owners hold
is known. A walk takes some microseconds a tensor: its own cost decides when the next one comes.
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
"""As in events.py, which a test holds."""
KINDS = ("parameters", "buffers", "gradients", "optimizer")
"""In this order: a storage belongs to the first kind that names it."""
MAX_TIME_SHARE = 0.01
"""Of the time, at most, that walks take."""
MIN_INTERVAL_S = 1.0
_MAX_DEPTH = 4


class OwnedMemoryReader:
    """Reads a rank's memory now and then. `device` is where a rank without a GPU keeps its tensors."""

    def __init__(self, torch: Any, device: int) -> None:
        self._torch = torch
        self._device = device
        self._owned_bytes: dict[tuple[str, int], dict[str, int]] = {}
        self._next_walk_at = self._next_read_at = 0.0

    def read(self, optimizers: Iterable[Any], modules: Iterable[Any]) -> dict[str, object] | None:
        """The fields of an event but for rank and step; None where it is not yet time."""
        began = time.perf_counter()
        if began < self._next_read_at:
            return None
        if began >= self._next_walk_at:
            self._owned_bytes = owned_bytes(self._torch, optimizers, modules)
            took = time.perf_counter() - began
            self._next_walk_at = began + max(MIN_INTERVAL_S, took / MAX_TIME_SHARE)
        elif not self._torch.cuda.is_initialized():
            return None
        devices = gpu_memory(self._torch, self._owned_bytes)
        took = time.perf_counter() - began
        self._next_read_at = began + max(MIN_INTERVAL_S / 2, took / MAX_TIME_SHARE)
        if devices:
            return {"source": MEASURED_ON_GPU, "devices": devices}
        by_kind = dict.fromkeys(KINDS, 0)
        for found in self._owned_bytes.values():
            for kind, num_bytes in found.items():
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
    """Read the memory at sampled steps, as far as its share of the time allows."""
    reader = OwnedMemoryReader(torch, int(os.environ.get("LOCAL_RANK") or 0))

    def read(_: Any) -> None:
        told = reader.read(_live_objects(session.optimizers), _live_objects(session.models))
        if told is not None and not (session.has_tracked_step and told["source"] == OWNERS_SEEN):
            session.emit("memory", step=session.step, **told)

    session.on_sampled_step.append(session.wrap_part(PART, read))


def _live_objects(references: Iterable[Any]) -> list[Any]:
    return [owner for owner in (reference() for reference in list(references)) if owner is not None]


def gpu_memory(torch: Any, owned: dict[tuple[str, int], dict[str, int]]) -> list[dict[str, object]]:
    """What the allocator of each GPU says that this process has used. Starts no GPU."""
    if not torch.cuda.is_initialized():
        return []
    devices = []
    for device in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats_as_nested_dict(device)
        if not stats or not stats["allocated_bytes"]["all"]["peak"]:
            continue
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        known = owned.get(("cuda", device), {})
        devices.append(
            {
                "device": device,
                "live_bytes": allocated["current"],
                "peak_bytes": allocated["peak"],
                "live_by_kind": with_unattributed(known, allocated["current"]),
                "peak_by_kind": with_unattributed(known, allocated["peak"]),
                "reserved_bytes": reserved["current"],
                "peak_reserved_bytes": reserved["peak"],
            }
        )
    return devices


def with_unattributed(known: dict[str, int], total_bytes: int) -> dict[str, int]:
    """All kinds, the rest of `total_bytes` as unattributed: owners never hold more than there is."""
    by_kind, left = {}, total_bytes
    for kind in KINDS:
        by_kind[kind] = min(known.get(kind, 0), left)
        left -= by_kind[kind]
    by_kind[UNATTRIBUTED] = left
    return by_kind


def owned_bytes(
    torch: Any, optimizers: Iterable[Any], modules: Iterable[Any]
) -> dict[tuple[str, int], dict[str, int]]:
    """Bytes by owner on each device, (its type, its index), every storage once."""
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
    seen: set[tuple[str, int]] = set()
    found: dict[tuple[str, int], dict[str, int]] = {}
    for kind in KINDS:
        for tensor in _tensors(torch, owners[kind], _MAX_DEPTH):
            storage = tensor.untyped_storage()
            num_bytes = storage.nbytes()
            if not num_bytes:
                continue
            place = storage.device.type, storage.device.index or 0
            address = place[0] + str(place[1]), storage.data_ptr()
            if address not in seen:
                seen.add(address)
                by_kind = found.setdefault(place, {})
                by_kind[kind] = by_kind.get(kind, 0) + num_bytes
    return found


def _states(optimizer: Any) -> Iterable[Any]:
    state: Any = getattr(optimizer, "state", {})
    return list(state.values()) if hasattr(state, "values") else ()


def _tensors(torch: Any, values: Iterable[Any], deep: int) -> Iterator[Any]:
    """The plain tensors with memory among the values, and inside what holds or wraps tensors."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield from _plain_tensors(torch, value, deep)
        elif isinstance(value, (dict, list, tuple)) and deep:
            yield from _tensors(torch, value.values() if isinstance(value, dict) else value, deep - 1)


def _plain_tensors(torch: Any, tensor: Any, deep: int) -> Iterator[Any]:
    if hasattr(tensor, "__tensor_flatten__"):  # one that wraps others, such as a DTensor
        names, _ = tensor.__tensor_flatten__()
        yield from _tensors(torch, [getattr(tensor, name) for name in names], deep - 1)
    elif tensor.is_meta or tensor.is_mkldnn:
        return
    elif tensor.layout is torch.strided:
        yield tensor
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
