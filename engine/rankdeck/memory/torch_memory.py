"""Read a real GPU's memory by kind, from torch's allocator and the tensors of the module and its optimizer.

Parameters, gradients, buffers and optimizer state are counted from the tensors; the rest of the allocated
memory counts as activations (including temporaries, which the allocator cannot distinguish). One reading
takes a few microseconds. Counting the tensors takes a millisecond for 160 parameters, but its result does not
change after the first steps, so it is repeated rarely. Take the reading after the backward pass, while
gradients exist.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from rankdeck.events import MEMORY_KINDS
from rankdeck.memory.entries import DeviceBytes
from rankdeck.torch_compat.dispatch import storage_key, storage_tensors
from rankdeck.torch_compat.dtensors import local_part

FIRST_READINGS = 3
"""Number of initial readings that always count the tensors: the optimizer's state is created in step 1, and
the final buckets of DistributedDataParallel in step 2."""
# The walk over all tensors takes 1.1 ms for a ResNet-50 with AdamW, and nothing it counts changes after step
# 2.
RECOUNT_S = 10.0


class OwnerBytes:
    """A rank's bytes by owner and device, counted in the first readings, then every RECOUNT_S seconds."""

    def __init__(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        self._module = module
        self._optimizer = optimizer
        self._counted: dict[torch.device, tuple[dict[str, int], float]] = {}
        self._readings: dict[torch.device, int] = {}

    def read(self, device: torch.device) -> dict[str, int]:
        num_readings = self._readings[device] = self._readings.get(device, 0) + 1
        now_s = time.monotonic()
        if num_readings > FIRST_READINGS:
            counts, at_s = self._counted[device]
            if now_s - at_s < RECOUNT_S:
                return counts
        counts = count_by_owner(device, self._module, self._optimizer)
        self._counted[device] = counts, now_s
        return counts


def read_gpu_bytes(device: torch.device, owned: OwnerBytes) -> DeviceBytes:
    """Return one reading of a CUDA device.

    The live bytes by kind add up to the allocated bytes, and the peak bytes by kind to the peak of the
    allocated bytes. Peaks cover the time since the last `reset_gpu_peaks`.

    Source: torch.cuda.memory_stats_as_nested_dict (memory_stats() flattens and sorts the same data, and is 20
    times slower).
    """
    stats = torch.cuda.memory_stats_as_nested_dict(device)
    allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
    owner_bytes = owned.read(device)
    return DeviceBytes(
        device=device.index or 0,
        live_bytes=allocated["current"],
        peak_bytes=allocated["peak"],
        live_by_kind=with_activations(owner_bytes, allocated["current"]),
        # Kinds are shown for the step's peak: afterwards the allocator keeps the freed activations' memory,
        # and most of it would be shown as reserved but unused.
        peak_by_kind=with_activations(owner_bytes, allocated["peak"]),
        reserved_bytes=reserved["current"],
        peak_reserved_bytes=reserved["peak"],
    )


def reset_gpu_peaks(device: torch.device) -> None:
    """Reset the allocator's peaks to the memory that is allocated now."""
    torch.cuda.reset_peak_memory_stats(device)


def count_by_owner(
    device: torch.device, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None
) -> dict[str, int]:
    """Return the bytes on `device` by kind; each storage counts once, under the first kind it belongs to."""
    counted: set[int] = set()
    parameters = list(module.parameters())
    states = () if optimizer is None else optimizer.state.values()
    owners: dict[str, Iterable[Any]] = {
        "parameters": parameters,
        "buffers": module.buffers(),
        "gradients": (parameter.grad for parameter in parameters),
        "optimizer": (value for state in states for value in state.values()),
    }
    return {kind: num_bytes_of(tensors, device, counted) for kind, tensors in owners.items()}


def with_activations(owned_by_kind: dict[str, int], total_bytes: int) -> dict[str, int]:
    """Return the bytes of all kinds, with the rest of `total_bytes` counted as activations.

    The bytes in `owned_by_kind` are capped so that their sum never exceeds the total.
    """
    by_kind = dict.fromkeys(MEMORY_KINDS, 0)
    left_bytes = total_bytes
    for kind, num_bytes in owned_by_kind.items():
        # The owners were counted up to RECOUNT_S ago and may exceed the current total.
        by_kind[kind] = min(num_bytes, left_bytes)
        left_bytes -= by_kind[kind]
    by_kind["activations"] += left_bytes
    return by_kind


def num_bytes_of(values: Iterable[Any], device: torch.device | None, counted_storages: set[int]) -> int:
    """Return how many bytes the tensors among `values` occupy, excluding storages in `counted_storages`, and
    add their storages to that set. If `device` is None, count all devices."""
    total_bytes = 0
    tensors = [local_part(value) for value in values if isinstance(value, Tensor)]
    for component in [
        component
        for tensor in tensors
        if device in (None, tensor.device)
        for component in storage_tensors(tensor)
    ]:
        storage = component.untyped_storage()
        if storage_key(storage) not in counted_storages:
            counted_storages.add(storage_key(storage))
            total_bytes += storage.nbytes()
    return total_bytes
