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

_PLACES = 256
_PLACES_LOGGED = 1 << 14
_NOT_YET = 0x7FF8_DEAD_BEEF_0001
_LOST_AFTER_S = 2.0
_AT_END_S = 0.2
_LOOK_AGAIN_S = 0.01
NOT_YET = object()
Reading = object
"""A float, None, or Pending."""


class Pending:
    """A number that is under way; `get` gives `NOT_YET` until it is there, and None where it was lost."""

    def __init__(self, memory: Any, turns: list[int], place: int, turn: int) -> None:
        self._memory, self._turns = memory, turns
        self._place, self._turn = place, turn

    def get(self) -> float | object | None:
        numbers, bits = self._memory
        place = self._place
        if self._turns[place] != self._turn:
            return None
        if bits[place].item() == _NOT_YET:
            return NOT_YET
        value: float = numbers[place].item()
        return value if self._turns[place] == self._turn else None


class Scalars:
    """Places for the numbers of this process; safe to use from several threads."""

    def __init__(self, torch: Any, num_places: int = _PLACES) -> None:
        self._torch = torch
        self._turns = [-1] * num_places
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

    def _start(self, tensor: Any) -> Pending:
        torch = self._torch
        memory = self._memory
        if memory is None:
            with torch.inference_mode(False):
                numbers = torch.empty(len(self._turns), dtype=torch.float64, device="cpu", pin_memory=True)
                memory = self._memory = numbers, numbers.view(torch.int64)
        numbers, bits = memory
        turn = next(self._count)
        place = turn % len(self._turns)
        self._turns[place] = turn
        bits[place] = _NOT_YET
        with torch.no_grad():
            value = tensor.detach().reshape(()).to(torch.float64)
            numbers[place].copy_(value, non_blocking=True)
        return Pending(memory, self._turns, place, turn)


class Unread:
    """A number of a step that is not sampled, which is read only if that step is the last one."""

    def __init__(self, scalars: Scalars, tensor: Any) -> None:
        self._scalars, self._tensor = scalars, tensor
        self._version = tensor._version

    def read(self) -> Reading:
        """The value; None where it was changed since."""
        return None if self._tensor._version != self._version else self._scalars.read(self._tensor)


class OffCpu:
    """Reads tensors that were logged and lie elsewhere than on a CPU."""

    def __init__(self) -> None:
        self._scalars: Any = None

    def read(self, value: Any) -> Any:
        torch: Any = sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.Tensor) or modes_on(torch):
            return None
        if value.is_complex() or value.dtype is torch.bool:
            return None
        if self._scalars is None:
            self._scalars = Scalars(torch, _PLACES_LOGGED)
        return self._scalars.read(value.detach().as_subclass(torch.Tensor))


def settled(look: Callable[[], list[Any]], since_s: float, ending: bool) -> list[Any] | None:
    """What `look` gives, with None for each number that was lost; None while one may still come.

    They are waited for only while the process ends, until a moment after `since_s` (time.perf_counter).
    """
    while True:
        values = look()
        if NOT_YET not in values:
            return values
        if time.perf_counter() - since_s >= (_AT_END_S if ending else _LOST_AFTER_S):
            return [None if value is NOT_YET else value for value in values]
        if not ending:
            return None
        time.sleep(_LOOK_AGAIN_S)


def resolved(reading: Any) -> Any:
    """A float (finite or not), None, or NOT_YET."""
    return reading.get() if isinstance(reading, Pending) else reading


def total(readings: list[Any]) -> Any:
    """Their sum; None where one is None or there are none; NOT_YET while one is under way."""
    values = [resolved(reading) for reading in readings]
    if any(value is NOT_YET for value in values):
        return NOT_YET
    if not values or any(value is None for value in values):
        return None
    return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)


def modes_on(torch: Any) -> bool:
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
