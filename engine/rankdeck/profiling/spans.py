"""Which phase each device is in, from when to when, in the steps that are sampled.

    with spans.phase(device, "forward", stage=1, microbatch=3): ...

Strategies and the loop mark their phases always; outside a sampled step a mark costs a method call and
nothing is kept. On CPU the host's clock is read. On a GPU an event is put into the device's stream at both
ends, and read once the device has passed it, a step or more later: nothing waits for it. Idle time is not
marked: it is what lies between two phases (anatomy.py).

Under a simulated pace the same marks say what a device computes; simulated_pace.py makes it take its time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field

import torch

from rankdeck import events
from rankdeck.profiling.clocks import GpuClock, HostClock, Stamp, StepClock
from rankdeck.profiling.simulated_pace import SimulatedPace

_NOTHING: AbstractContextManager[None] = nullcontext(None)
_MARK_S = 3e-6
_microbatch: tuple[str, int] | None = None


def newest_microbatch() -> tuple[str, int] | None:
    """What this process has begun last of a microbatch, and its number: ("forward", 3)."""
    return _microbatch


@dataclass(frozen=True)
class LateSpan:
    """A phase that is known only after its step; `started` is Unix time."""

    device: int
    name: str
    started: float
    seconds: float
    num_bytes: int | None = None


@dataclass
class PhaseSpan:
    """One phase while it is recorded."""

    device: int
    name: str
    stage: int | None = None
    microbatch: int | None = None
    num_bytes: int | None = None
    start: Stamp = 0.0
    end: Stamp = 0.0


@dataclass
class _Sample:
    step: int
    followed: bool
    simulated: bool
    clock: StepClock
    marks: list[PhaseSpan] = field(default_factory=list)
    late: list[LateSpan] = field(default_factory=list)
    seconds: float = 0.0

    def is_past(self) -> bool:
        return all(self.clock.is_past(mark.end) for mark in self.marks)


class _Phase:
    """What `phase` returns inside a sampled step, or under a simulated pace."""

    def __init__(self, spans: SpanRecorder, mark: PhaseSpan) -> None:
        self._spans = spans
        self._mark = mark

    def __enter__(self) -> PhaseSpan:
        self._spans.open(self._mark)
        return self._mark

    def __exit__(self, *_: object) -> None:
        self._spans.close(self._mark)


class SpanRecorder:
    """Records the phases of the devices that one rank drives; `devices` are theirs in torch.

    Devices of marks are places in that list. Threads may mark side by side.
    """

    def __init__(
        self, devices: Sequence[torch.device] = (torch.device("cpu"),), pace: SimulatedPace | None = None
    ) -> None:
        self.pace = pace
        self.late: Callable[[], Iterable[LateSpan]] = tuple
        """Asked at the end of the step after a sampled one for phases that nobody knew before."""
        self._num_devices = len(devices)
        self._clock = GpuClock(devices) if devices[0].type == "cuda" else HostClock()
        self._sample: _Sample | None = None
        self._waiting: deque[_Sample] = deque()
        self._num_ripe = 0
        self._active = False

    @property
    def is_recording(self) -> bool:
        return self._sample is not None

    @property
    def is_waiting(self) -> bool:
        """Whether samples are still to be taken."""
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
        """A context that is one phase of a device; `num_bytes` are what it moves.

        It gives the mark while one is kept, for what is known only at its end.
        """
        if microbatch is not None:
            global _microbatch
            _microbatch = name, microbatch
        if not self._active:
            return _NOTHING
        return _Phase(self, PhaseSpan(device, name, stage, microbatch, num_bytes))

    def all_devices(self, name: str) -> AbstractContextManager[object]:
        """A phase that every device of the rank is in, begun and ended by this thread."""
        stack = ExitStack()
        for device in range(self._num_devices):
            stack.enter_context(self.phase(device, name))
        return stack

    def start(self, device: int, name: str, *, stage: int | None = None) -> PhaseSpan | None:
        """As `phase`, where the end is somewhere else: give what this returns to `stop`."""
        if not self._active:
            return None
        mark = PhaseSpan(device, name, stage)
        self.open(mark)
        return mark

    def stop(self, mark: PhaseSpan | None) -> None:
        if mark is not None:
            self.close(mark)

    def open(self, mark: PhaseSpan) -> None:
        if self._sample is not None:
            mark.start = self._clock.now(mark.device)
        if self.pace is not None:
            self.pace.open(mark.device, mark.name, mark.stage)

    def close(self, mark: PhaseSpan) -> None:
        if self.pace is not None:
            self.pace.close()
        sample = self._sample
        if sample is not None:
            mark.end = self._clock.now(mark.device)
            sample.marks.append(mark)

    def begin_step(self, step: int, *, record: bool, followed: bool = False) -> None:
        """A step begins. `followed`: the memory ledger slows it down."""
        self._active = record or self.pace is not None
        if self.pace is not None:
            self.pace.begin_step()
        if record:
            simulated = self.pace is not None and self.pace.is_holding
            self._sample = _Sample(step, followed, simulated, self._clock.begin_step())

    def slowed_down(self) -> None:
        """From here on the memory ledger follows the step, which began without it."""
        if self._sample is not None:
            self._sample.followed = True

    def end_step(self) -> None:
        """The step is over. What was recorded of it is read after the next one."""
        if self.pace is not None:
            self.pace.end_step()
        if self._waiting and self._num_ripe < len(self._waiting):
            self._waiting[-1].late = list(self.late())
        self._num_ripe = len(self._waiting)
        sample, self._sample, self._active = self._sample, None, False
        if sample is not None:
            sample.seconds = sample.clock.elapsed_s()
            self._waiting.append(sample)

    def pop_marks(self) -> list[PhaseSpan]:
        """The phases of the step that ended last, in the order of their ends; `take` gives them no more."""
        self._num_ripe = 0
        return self._waiting.pop().marks

    def take(
        self, rank: int, places: Sequence[int], *, wait: bool = False
    ) -> Iterable[tuple[events.Spans, float]]:
        """Samples whose figures are known by now (with `wait`, all of them), each with the seconds that its
        marks have cost. `places` are the devices' places in the run."""
        while self._waiting and (wait or (self._num_ripe and self._waiting[0].is_past())):
            sample = self._waiting.popleft()
            self._num_ripe = max(0, self._num_ripe - 1)
            yield _event(sample, rank, places), len(sample.marks) * _MARK_S


def _event(sample: _Sample, rank: int, places: Sequence[int]) -> events.Spans:
    """The marks as columns, in the order of their starts."""
    began, rows = sample.clock.began, []
    for mark in sample.marks:
        start_s, end_s = (sample.clock.read(stamp, mark.device) for stamp in (mark.start, mark.end))
        rows.append((start_s, end_s - start_s, mark))
    for late in sample.late:
        start_s = late.started - began
        if start_s >= 0 and start_s + late.seconds <= sample.seconds + 1.0:
            mark = PhaseSpan(late.device, late.name, num_bytes=late.num_bytes)
            rows.append((start_s, late.seconds, mark))
    rows.sort(key=lambda row: row[0])
    marks = [mark for _, _, mark in rows]
    names = list(dict.fromkeys(mark.name for mark in marks))
    return events.Spans(
        rank=rank,
        step=sample.step,
        began=began,
        seconds=sample.seconds,
        names=names,
        name=[names.index(mark.name) for mark in marks],
        device=[places[mark.device] for mark in marks],
        start_us=[round(start_s * 1e6) for start_s, _, _ in rows],
        duration_us=[max(0, round(seconds * 1e6)) for _, seconds, _ in rows],
        stage=_column([mark.stage for mark in marks]),
        microbatch=_column([mark.microbatch for mark in marks]),
        num_bytes=_column([mark.num_bytes for mark in marks]),
        simulated=sample.simulated,
        followed=sample.followed,
    )


def _column(values: list[int | None]) -> list[int | None] | None:
    return values if any(value is not None for value in values) else None
