"""Numbers out of tensors, without anything ever waiting for a GPU.

A scalar on a CPU is read. One on a GPU is copied behind the work that is queued there into a place of pinned
memory that holds a number no loss has (a NaN of its own bits); the copy is done once that number is gone,
which anybody can see without asking the driver. Places are taken in turn, and made once.
"""

from __future__ import annotations

import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PLACES = 256
_NOT_YET = 0x7FF8_DEAD_BEEF_0001


class Pending:
    """A number that is under way; `get` gives `NOT_YET` until it is there, and None where it was lost."""

    def __init__(self, readings: Scalars, place: int, turn: int) -> None:
        self._readings, self._place, self._turn = readings, place, turn

    def get(self) -> float | object | None:
        return self._readings.look(self._place, self._turn)


NOT_YET = object()
Reading = object
"""A float, None, or Pending."""


class Scalars:
    """Places for the numbers of this process."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._turns = [0] * _PLACES
        self._next = 0
        self._numbers: Any = None
        self._bits: Any = None

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
        if self._numbers is None:
            self._numbers = torch.empty(_PLACES, dtype=torch.float64, pin_memory=True)
            self._bits = self._numbers.view(torch.int64)
        place = self._next
        self._next = (place + 1) % _PLACES
        self._turns[place] += 1
        self._bits[place] = _NOT_YET
        with torch.no_grad():
            value = tensor.detach().reshape(()).to(torch.float64)
            self._numbers[place].copy_(value, non_blocking=True)
        return Pending(self, place, self._turns[place])

    def look(self, place: int, turn: int) -> float | object | None:
        if self._turns[place] != turn:
            return None
        if self._bits[place].item() == _NOT_YET:
            return NOT_YET
        value = self._numbers[place].item()
        return value if self._turns[place] == turn else None


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
    """Whether the script watches or changes operations itself: then nothing is computed here."""
    count = getattr(torch._C, "_len_torch_dispatch_stack", None)
    functions = getattr(torch._C, "_len_torch_function_stack", None)
    return bool((count is not None and count()) or (functions is not None and functions()))
