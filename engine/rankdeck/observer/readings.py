"""Reads numbers from tensors without ever waiting for a GPU.

A scalar on a CPU is read directly. A scalar on a GPU is copied, after the queued work, into a slot of pinned
memory that contains a marker: a NaN whose bit pattern no loss has. Once the marker has been overwritten, the
copy is complete; this can be checked without a call to the driver. Slots are allocated once and used in turn.
"""

from __future__ import annotations

import itertools
import math
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_NUM_SLOTS = 256
_NUM_LOGGED_SLOTS = 1 << 14
# A quiet NaN with a payload that no computation produces.
_PENDING_BITS = 0x7FF8_DEAD_BEEF_0001
_LOST_AFTER_S = 2.0
_MAX_WAIT_AT_END_S = 0.2
_POLL_INTERVAL_S = 0.01
PENDING = object()
Reading = object
"""A float, None, or a PendingScalar."""


class PendingScalar:
    """A number copied from a GPU; `get` returns `PENDING` until it arrives, and None if it was lost."""

    def __init__(self, memory: Any, turns: list[int], slot: int, turn: int) -> None:
        self._memory, self._tickets = memory, turns
        self._slot, self._ticket = slot, turn

    def get(self) -> float | object | None:
        numbers, bits = self._memory
        slot = self._slot
        if self._tickets[slot] != self._ticket:
            return None
        if bits[slot].item() == _PENDING_BITS:
            return PENDING
        value: float = numbers[slot].item()
        return value if self._tickets[slot] == self._ticket else None


class ScalarReader:
    """Thread-safe reader of scalar tensors, with its own slots in pinned memory."""

    def __init__(self, torch: Any, num_places: int = _NUM_SLOTS) -> None:
        self._torch = torch
        self._tickets = [-1] * num_places
        self._count = itertools.count()
        self._memory: Any = None

    def read(self, tensor: Any) -> Reading:
        """Return the value of a tensor with one element; None if it cannot be read without waiting."""
        torch = self._torch
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return None  # A subclass may run a collective, or any code.
        if tensor.is_cpu:
            return tensor.item()
        if not tensor.is_cuda or is_capturing(torch):
            return None
        return self._start(tensor)

    def _start(self, tensor: Any) -> PendingScalar:
        torch = self._torch
        memory = self._memory
        if memory is None:
            # A tensor created in inference mode cannot be written to outside of it.
            with torch.inference_mode(False):
                numbers = torch.empty(len(self._tickets), dtype=torch.float64, device="cpu", pin_memory=True)
                memory = self._memory = numbers, numbers.view(torch.int64)
        numbers, bits = memory
        # itertools.count is atomic, so two threads never get the same turn.
        turn = next(self._count)
        slot = turn % len(self._tickets)
        self._tickets[slot] = turn
        bits[slot] = _PENDING_BITS
        with torch.no_grad():
            value = tensor.detach().reshape(()).to(torch.float64)
            numbers[slot].copy_(value, non_blocking=True)
        return PendingScalar(memory, self._tickets, slot, turn)


class UnsampledScalar:
    """A scalar on a GPU in a step that is not sampled; it is read only if that step is the last one."""

    __slots__ = ("_reader", "_tensor", "_version")

    def __init__(self, reader: ScalarReader, tensor: Any) -> None:
        self._reader, self._tensor, self._version = reader, tensor.detach(), tensor._version

    def read(self) -> Reading:
        """Return a reading of the value; None if the tensor has changed since this object was created."""
        return None if self._tensor._version != self._version else self._reader.read(self._tensor)


class DeviceScalarReader:
    """Reads logged tensors that are not on a CPU."""

    def __init__(self) -> None:
        self._reader: Any = None

    def read(self, value: Any) -> Any:
        torch: Any = sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.Tensor) or has_active_modes(torch):
            return None
        if value.is_complex() or value.dtype is torch.bool:
            return None
        if self._reader is None:
            self._reader = ScalarReader(torch, _NUM_LOGGED_SLOTS)
        return self._reader.read(value.detach().as_subclass(torch.Tensor))


def poll_readings(read_values: Callable[[], list[Any]], since_s: float, ending: bool) -> list[Any] | None:
    """Return the values that `read_values` returns, with None for lost numbers; return None while any number
    is pending.

    Wait only while the process is ending, and only until shortly after `since_s` (time.perf_counter).
    """
    while True:
        values = read_values()
        if PENDING not in values:
            return values
        if time.perf_counter() - since_s >= (_MAX_WAIT_AT_END_S if ending else _LOST_AFTER_S):
            return [None if value is PENDING else value for value in values]
        if not ending:
            return None
        time.sleep(_POLL_INTERVAL_S)


def read_value(reading: Any) -> Any:
    """Return the reading's value: a float (finite or not), None, or PENDING."""
    return reading.get() if isinstance(reading, PendingScalar) else reading


def sum_readings(readings: list[Any]) -> Any:
    """Return the sum of the readings; None if one of them is None or the list is empty, PENDING while any is
    pending."""
    values = [read_value(reading) for reading in readings]
    if any(value is PENDING for value in values):
        return PENDING
    if not values or any(value is None for value in values):
        return None
    return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)


def is_capturing(torch: Any) -> bool:
    """Return whether this thread's calls are recorded into a CUDA graph, to which nothing may be added."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def has_active_modes(torch: Any) -> bool:
    """Return whether the script has active torch modes, under which the observer computes nothing.

    A default device does not count as such a mode.
    """
    num_dispatch = getattr(torch._C, "_len_torch_dispatch_stack", None)
    num_functions = getattr(torch._C, "_len_torch_function_stack", None)
    if num_dispatch is not None and num_dispatch():
        return True
    if num_functions is None or not num_functions():
        return False
    default_device = getattr(getattr(torch.utils, "_device", None), "DeviceContext", None)
    return any(
        type(mode) is not default_device for mode in torch.overrides._get_current_function_mode_stack()
    )
