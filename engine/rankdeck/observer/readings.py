"""Numbers out of tensors, without anything ever waiting for a GPU.

A scalar on a CPU is read. One on a GPU is copied behind the work that is queued there into a place of pinned
memory that holds a number no loss has (a NaN of its own bits); the copy is done once that number is gone,
which anybody can see without asking the driver. Places are taken in turn, and made once.
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
_PENDING_BITS = 0x7FF8_DEAD_BEEF_0001
_LOST_AFTER_S = 2.0
_MAX_WAIT_AT_END_S = 0.2
_POLL_INTERVAL_S = 0.01
PENDING = object()
Reading = object
"""A float, None, or Pending."""


class PendingScalar:
    """A number that is under way; `get` gives `PENDING` until it is there, and None where it was lost."""

    def __init__(self, memory: Any, turns: list[int], place: int, turn: int) -> None:
        self._memory, self._tickets = memory, turns
        self._slot, self._ticket = place, turn

    def get(self) -> float | object | None:
        numbers, bits = self._memory
        place = self._slot
        if self._tickets[place] != self._ticket:
            return None
        if bits[place].item() == _PENDING_BITS:
            return PENDING
        value: float = numbers[place].item()
        return value if self._tickets[place] == self._ticket else None


class ScalarReader:
    """Places for the numbers of this process; safe to use from several threads."""

    def __init__(self, torch: Any, num_places: int = _NUM_SLOTS) -> None:
        self._torch = torch
        self._tickets = [-1] * num_places
        self._count = itertools.count()
        self._memory: Any = None

    def read(self, tensor: Any) -> Reading:
        """The value of a tensor of one element; None where that cannot be had without a wait."""
        torch = self._torch
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return None  # A subclass may answer with a collective, or with anything.
        kind = tensor.device.type
        if kind == "cpu":
            return tensor.detach().item()
        if kind != "cuda" or torch.cuda.is_current_stream_capturing():
            return None
        return self._start(tensor)

    def _start(self, tensor: Any) -> PendingScalar:
        torch = self._torch
        memory = self._memory
        if memory is None:
            with torch.inference_mode(False):
                numbers = torch.empty(len(self._tickets), dtype=torch.float64, device="cpu", pin_memory=True)
                memory = self._memory = numbers, numbers.view(torch.int64)
        numbers, bits = memory
        turn = next(self._count)
        place = turn % len(self._tickets)
        self._tickets[place] = turn
        bits[place] = _PENDING_BITS
        with torch.no_grad():
            value = tensor.detach().reshape(()).to(torch.float64)
            numbers[place].copy_(value, non_blocking=True)
        return PendingScalar(memory, self._tickets, place, turn)


class UnreadScalar:
    """A number of a step that is not sampled, which is read only if that step is the last one."""

    def __init__(self, scalars: ScalarReader, tensor: Any) -> None:
        self._reader, self._tensor = scalars, tensor
        self._version = tensor._version

    def read(self) -> Reading:
        """The value; None where it was changed since."""
        return None if self._tensor._version != self._version else self._reader.read(self._tensor)


class DeviceScalarReader:
    """Reads tensors that were logged and lie elsewhere than on a CPU."""

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


def poll_readings(look: Callable[[], list[Any]], since_s: float, ending: bool) -> list[Any] | None:
    """What `look` gives, with None for each number that was lost; None while one may still come.

    They are waited for only while the process ends, until a moment after `since_s` (time.perf_counter).
    """
    while True:
        values = look()
        if PENDING not in values:
            return values
        if time.perf_counter() - since_s >= (_MAX_WAIT_AT_END_S if ending else _LOST_AFTER_S):
            return [None if value is PENDING else value for value in values]
        if not ending:
            return None
        time.sleep(_POLL_INTERVAL_S)


def read_value(reading: Any) -> Any:
    """A float (finite or not), None, or NOT_YET."""
    return reading.get() if isinstance(reading, PendingScalar) else reading


def sum_readings(readings: list[Any]) -> Any:
    """Their sum; None where one is None or there are none; NOT_YET while one is under way."""
    values = [read_value(reading) for reading in readings]
    if any(value is PENDING for value in values):
        return PENDING
    if not values or any(value is None for value in values):
        return None
    return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)


def has_active_modes(torch: Any) -> bool:
    """Whether the script watches or changes operations itself: then nothing is computed here.

    A default device is no such mode.
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
