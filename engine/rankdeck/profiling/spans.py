"""Record which phase each device is in during sampled steps.

    with spans.phase(device, "forward", stage=1, microbatch=3): ...

Strategies and the training loop always mark their phases; outside a sampled step, a mark costs one method
call and records nothing. On CPU the host's clock is read. On a GPU, CUDA events are recorded in the device's
stream at the start and end of a phase and read after they have completed, a step or more later, so nothing
waits for them. Idle time is not marked: it is the time between two phases (anatomy.py).

If compute time is simulated, each span is also a slot: simulated_pace.py lets the device sleep at the end of
a forward or backward slot until the simulated time has passed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from rankdeck import events
from rankdeck.profiling.simulated_pace import SimulatedPace

# Shared, because every step marks its phases.
_NOTHING: AbstractContextManager[None] = nullcontext(None)
_MARK_COST_S = 3e-6
_microbatch: tuple[str, int] | None = None


def newest_microbatch() -> tuple[str, int] | None:
    """Return the microbatch phase that this process started last, such as ("forward", 3)."""
    return _microbatch


@dataclass(frozen=True)
class LateSpan:
    """A phase that becomes known only after its step has ended; it started at `started` (Unix time)."""

    device: int
    name: str
    started: float
    seconds: float
    num_bytes: int | None = None


@dataclass
class PhaseSpan:
    """One recorded phase of a device; the step's clock converts `start` and `end` to seconds."""

    device: int
    name: str
    stage: int | None = None
    microbatch: int | None = None
    num_bytes: int | None = None
    start: Timestamp = 0.0
    end: Timestamp = 0.0


@dataclass
class _Sample:
    step: int
    is_tracked: bool
    simulated: bool
    clock: StepClock
    marks: list[PhaseSpan] = field(default_factory=list)
    late_spans: list[LateSpan] = field(default_factory=list)
    seconds: float = 0.0

    def is_ready(self) -> bool:
        return all(self.clock.is_ready(mark.end) for mark in self.marks)


class _PhaseContext:
    """Context that `phase` returns in a sampled step, or if compute time is simulated."""

    def __init__(self, spans: SpanRecorder, mark: PhaseSpan) -> None:
        self._spans = spans
        self._mark = mark

    def __enter__(self) -> PhaseSpan:
        self._spans.open_span(self._mark)
        return self._mark

    def __exit__(self, *_: object) -> None:
        self._spans.close_span(self._mark)


class SpanRecorder:
    """Recorder of the phases of one rank's devices, which `devices` lists as torch devices.

    A span's `device` is an index into that list. Several threads may record at the same time.
    """

    def __init__(
        self, devices: Sequence[torch.device] = (torch.device("cpu"),), pace: SimulatedPace | None = None
    ) -> None:
        self.pace = pace
        self.find_late_spans: Callable[[], Iterable[LateSpan]] = tuple
        """Callback that returns the late spans of a sampled step; called at the end of the next step."""
        self._num_devices = len(devices)
        self._clock = GpuClock(devices) if devices[0].type == "cuda" else HostClock()
        self._sample: _Sample | None = None
        self._waiting: deque[_Sample] = deque()
        self._num_ready = 0
        self._active = False

    @property
    def is_recording(self) -> bool:
        return self._sample is not None

    @property
    def is_waiting(self) -> bool:
        """Whether `take_samples` has samples left to return."""
        return bool(self._waiting)

    def phase(
        self,
        device: int,
        name: str,
        *,
        stage: int | None = None,
        microbatch: int | None = None,
        num_bytes: int | None = None,
    ) -> AbstractContextManager[PhaseSpan | None]:
        """Return a context for one phase of a device; `num_bytes` is the amount of data that the phase moves.

        While recording, the context yields its span, so that the caller can add values that are known only at
        the end.
        """
        if microbatch is not None:
            global _microbatch
            _microbatch = name, microbatch
        if not self._active:
            return _NOTHING
        return _PhaseContext(self, PhaseSpan(device, name, stage, microbatch, num_bytes))

    def phase_on_all_devices(self, name: str) -> AbstractContextManager[object]:
        """Start a phase on all of the rank's devices, and return a context that ends the phase on exit.

        The calling thread must be the one that exits the context.
        """
        stack = ExitStack()
        for device in range(self._num_devices):
            stack.enter_context(self.phase(device, name))
        return stack

    def start(self, device: int, name: str, *, stage: int | None = None) -> PhaseSpan | None:
        """Start a phase that ends in another scope; pass the returned span to `stop`."""
        if not self._active:
            return None
        mark = PhaseSpan(device, name, stage)
        self.open_span(mark)
        return mark

    def stop(self, mark: PhaseSpan | None) -> None:
        if mark is not None:
            self.close_span(mark)

    def open_span(self, mark: PhaseSpan) -> None:
        if self._sample is not None:
            mark.start = self._clock.now(mark.device)
        if self.pace is not None:
            self.pace.open_slot(mark.device, mark.name, mark.stage)

    def close_span(self, mark: PhaseSpan) -> None:
        if self.pace is not None:
            self.pace.close_slot()
        sample = self._sample
        if sample is not None:
            mark.end = self._clock.now(mark.device)
            sample.marks.append(mark)

    def start_step(self, step: int, *, record: bool, is_tracked: bool = False) -> None:
        """Start a step, and record its phases if `record` is true.

        `is_tracked` means that the memory ledger tracks the step, which slows it down.
        """
        self._active = record or self.pace is not None
        if self.pace is not None:
            self.pace.start_step()
        if record:
            simulated = self.pace is not None and self.pace.is_holding
            self._sample = _Sample(step, is_tracked, simulated, self._clock.start_step())

    def mark_tracked(self) -> None:
        """Mark the current step as slowed by the memory ledger, which tracks it from now on."""
        if self._sample is not None:
            self._sample.is_tracked = True

    def end_step(self) -> None:
        """End the step. Its recorded spans are read after the next step."""
        if self.pace is not None:
            self.pace.end_step()
        if self._waiting and self._num_ready < len(self._waiting):
            self._waiting[-1].late_spans = list(self.find_late_spans())
        self._num_ready = len(self._waiting)
        sample, self._sample, self._active = self._sample, None, False
        if sample is not None:
            sample.seconds = sample.clock.elapsed_s()
            self._waiting.append(sample)

    def pop_spans(self) -> list[PhaseSpan]:
        """Remove the last step's phases, so that `take_samples` does not return them, and return them in
        order of end time."""
        self._num_ready = 0
        return self._waiting.pop().marks

    def take_samples(
        self, rank: int, device_indices: Sequence[int], *, wait: bool = False
    ) -> Iterable[tuple[events.Spans, float]]:
        """Yield each sample whose times are known, with the seconds that recording its spans took.

        If `wait` is true, wait until the times of all samples are known. `device_indices` lists the indices
        of the rank's devices within the run.
        """
        while self._waiting and (wait or (self._num_ready and self._waiting[0].is_ready())):
            sample = self._waiting.popleft()
            self._num_ready = max(0, self._num_ready - 1)
            yield _event(sample, rank, device_indices), len(sample.marks) * _MARK_COST_S


def _event(sample: _Sample, rank: int, device_indices: Sequence[int]) -> events.Spans:
    """Return the sample as a Spans event, which lists the phases in order of start time."""
    step_start_s, rows = sample.clock.started_s, []
    for mark in sample.marks:
        start_s, end_s = (sample.clock.read(stamp, mark.device) for stamp in (mark.start, mark.end))
        rows.append((start_s, end_s - start_s, mark))
    for late in sample.late_spans:
        start_s = late.started - step_start_s
        # Keep late spans of this step only, with a second of tolerance.
        if start_s >= 0 and start_s + late.seconds <= sample.seconds + 1.0:
            mark = PhaseSpan(late.device, late.name, num_bytes=late.num_bytes)
            rows.append((start_s, late.seconds, mark))
    rows.sort(key=lambda row: row[0])
    marks = [mark for _, _, mark in rows]
    names = list(dict.fromkeys(mark.name for mark in marks))
    return events.Spans(
        rank=rank,
        step=sample.step,
        began=step_start_s,
        seconds=sample.seconds,
        names=names,
        name=[names.index(mark.name) for mark in marks],
        device=[device_indices[mark.device] for mark in marks],
        start_us=[round(start_s * 1e6) for start_s, _, _ in rows],
        duration_us=[max(0, round(seconds * 1e6)) for _, seconds, _ in rows],
        stage=_column([mark.stage for mark in marks]),
        microbatch=_column([mark.microbatch for mark in marks]),
        num_bytes=_column([mark.num_bytes for mark in marks]),
        simulated=sample.simulated,
        followed=sample.is_tracked,
    )


def _column(values: list[int | None]) -> list[int | None] | None:
    return values if any(value is not None for value in values) else None


# The two clocks of spans: the host's, and the GPUs', whose timestamps are CUDA events in their streams.  A
# CUDA event only gives the time to another event. So each device has an anchor, an event with a known host
# time, and each sampled step starts with an event that is timed against the previous step's. Clocks drift, so
# the anchor is renewed once a minute, which waits for the device's pending work.

Timestamp = Any
"""A time on a device: seconds of the host's clock, or a CUDA event."""
_ANCHOR_INTERVAL_S = 60.0


class StepClock:
    """Reader of the timestamps of one step; this base class reads the host's clock."""

    def __init__(self, to_unix_s: float) -> None:
        self._to_unix_s = to_unix_s
        self._start_s = time.perf_counter()

    @property
    def started_s(self) -> float:
        """Start of the step in Unix time."""
        return self._start_s + self._to_unix_s

    def elapsed_s(self) -> float:
        """Return the seconds since the step started, by the host's clock."""
        return time.perf_counter() - self._start_s

    def read(self, stamp: Timestamp, device: int) -> float:
        """Return the seconds from the step's start to `stamp`."""
        return float(stamp) - self._start_s

    def is_ready(self, stamp: Timestamp) -> bool:
        """Check whether `stamp` can be read without waiting."""
        return True


class HostClock:
    """Clock whose timestamps are seconds of the host's clock, which all ranks on a machine share."""

    def __init__(self) -> None:
        self._to_unix_s = time.time() - time.perf_counter()

    def now(self, device: int) -> Timestamp:
        return time.perf_counter()

    def start_step(self) -> StepClock:
        return StepClock(self._to_unix_s)


class _StepEvent:
    """The CUDA event at the start of a step on one device; its host time is known once it has completed."""

    def __init__(self, event: torch.cuda.Event, host_s: float | None, before: _StepEvent | None) -> None:
        self.event = event
        self._host_s = host_s
        self._previous = before

    def host_s(self) -> float:
        if self._host_s is None:
            assert self._previous is not None
            self._host_s = self._previous.host_s() + self._previous.event.elapsed_time(self.event) / 1e3
            # Release the chain, or every event since the anchor would stay alive.
            self._previous = None
        return self._host_s


class _GpuStepClock(StepClock):
    def __init__(self, bases: list[_StepEvent], to_unix_s: float) -> None:
        super().__init__(to_unix_s)
        self._events = bases

    @property
    def started_s(self) -> float:
        return min(base.host_s() for base in self._events) + self._to_unix_s

    def read(self, stamp: Timestamp, device: int) -> float:
        stamp.synchronize()
        base = self._events[device]
        offset_s = base.host_s() + self._to_unix_s - self.started_s
        return offset_s + float(base.event.elapsed_time(stamp)) / 1e3

    def is_ready(self, stamp: Timestamp) -> bool:
        return bool(stamp.query())


class GpuClock:
    """Clock whose timestamps are CUDA events in the current streams of `devices`."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._devices = list(devices)
        self._to_unix_s = time.time() - time.perf_counter()
        self._step_events: list[_StepEvent] = []
        self._anchored_s = 0.0

    def now(self, device: int) -> Timestamp:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._devices[device]))
        return event

    def start_step(self) -> StepClock:
        if not self._step_events or time.perf_counter() - self._anchored_s > _ANCHOR_INTERVAL_S:
            self._step_events = [self._anchor(device) for device in range(len(self._devices))]
            self._anchored_s = time.perf_counter()
        else:
            self._step_events = [
                _StepEvent(self.now(device), None, before) for device, before in enumerate(self._step_events)
            ]
        return _GpuStepClock(self._step_events, self._to_unix_s)

    def _anchor(self, device: int) -> _StepEvent:
        # The device must be idle, so that the event's time is the host's time now.
        torch.cuda.synchronize(self._devices[device])
        event = self.now(device)
        event.synchronize()
        return _StepEvent(event, time.perf_counter(), None)
