"""The two clocks of spans.py: the host's, and that of GPUs, whose moments are events in their streams.

A GPU's event knows only the time to another event. So each device has an anchor, an event whose host time is
known, and each sampled step begins with an event that is timed against the step's before. Clocks drift, so
once a minute the anchor is made anew, which waits for what the device has to do at that moment.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

Stamp = Any
"""A moment of a device: seconds of the host's clock, or a CUDA event."""
_ANCHOR_S = 60.0


class StepClock:
    """Reads the stamps of one step: here those of the host."""

    def __init__(self, to_unix_s: float) -> None:
        self._to_unix_s = to_unix_s
        self._start_s = time.perf_counter()

    @property
    def began(self) -> float:
        """Unix time."""
        return self._start_s + self._to_unix_s

    def elapsed_s(self) -> float:
        """Seconds since the step began, by the host's clock."""
        return time.perf_counter() - self._start_s

    def read(self, stamp: Stamp, device: int) -> float:
        """Seconds from the step's beginning to a moment."""
        return float(stamp) - self._start_s

    def is_past(self, stamp: Stamp) -> bool:
        """Whether the moment can be read without waiting."""
        return True


class HostClock:
    """Moments are the host's seconds, the same for all ranks of a machine."""

    def __init__(self) -> None:
        self._to_unix_s = time.time() - time.perf_counter()

    def now(self, device: int) -> Stamp:
        return time.perf_counter()

    def begin_step(self) -> StepClock:
        return StepClock(self._to_unix_s)


class _Base:
    """The event that a step begins with on one device, and when that was: known once it is past."""

    def __init__(self, event: torch.cuda.Event, host_s: float | None, before: _Base | None) -> None:
        self.event = event
        self._host_s = host_s
        self._before = before

    def host_s(self) -> float:
        if self._host_s is None:
            assert self._before is not None
            self._host_s = self._before.host_s() + self._before.event.elapsed_time(self.event) / 1e3
            self._before = None
        return self._host_s


class _GpuStep(StepClock):
    def __init__(self, bases: list[_Base], to_unix_s: float) -> None:
        super().__init__(to_unix_s)
        self._bases = bases

    @property
    def began(self) -> float:
        return min(base.host_s() for base in self._bases) + self._to_unix_s

    def read(self, stamp: Stamp, device: int) -> float:
        stamp.synchronize()
        base = self._bases[device]
        offset_s = base.host_s() + self._to_unix_s - self.began
        return offset_s + float(base.event.elapsed_time(stamp)) / 1e3

    def is_past(self, stamp: Stamp) -> bool:
        return bool(stamp.query())


class GpuClock:
    """Moments are events in the current streams of `devices`."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._devices = list(devices)
        self._to_unix_s = time.time() - time.perf_counter()
        self._bases: list[_Base] = []
        self._anchored_s = 0.0

    def now(self, device: int) -> Stamp:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._devices[device]))
        return event

    def begin_step(self) -> StepClock:
        if not self._bases or time.perf_counter() - self._anchored_s > _ANCHOR_S:
            self._bases = [self._anchor(device) for device in range(len(self._devices))]
            self._anchored_s = time.perf_counter()
        else:
            self._bases = [_Base(self.now(device), None, before) for device, before in enumerate(self._bases)]
        return _GpuStep(self._bases, self._to_unix_s)

    def _anchor(self, device: int) -> _Base:
        torch.cuda.synchronize(self._devices[device])
        event = self.now(device)
        event.synchronize()
        return _Base(event, time.perf_counter(), None)
