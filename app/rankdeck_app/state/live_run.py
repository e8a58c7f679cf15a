"""A run as the app sees it: what its directory says so far, brought up to date a few milliseconds at a time.

A reader thread (run_tail.py) follows the event files; `drain` takes what it has read, on the UI's thread and
within a budget, and says what changed. Reading always begins at the start of the files, so a restarted app
sees every event once. What is not known is None.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from enum import Flag, auto
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QObject, Signal

from rankdeck.base.errors import Problem
from rankdeck.config import RunConfig
from rankdeck.events import (
    MEASURED_IN_REHEARSAL,
    MEASURED_ON_GPU,
    AnyEvent,
    DeviceInfo,
    DeviceMemory,
    Dropped,
    Evaluation,
    Phase,
    Pipeline,
    ProblemRaised,
    RankEnded,
    RankStarted,
    RunStarted,
    Spans,
)
from rankdeck.run.anatomy import Anatomies, StepAnatomy
from rankdeck.run.imbalance import Imbalance, imbalance_of
from rankdeck.run.plan_lines import PlanLine
from rankdeck.rundir import End, RunDir
from rankdeck_app.state.pace import Pace
from rankdeck_app.state.run_tail import Batch, MemoryColumns, Readings, RunTail
from rankdeck_app.state.series import Ema, Series
from rankdeck_app.state.step_merge import StepColumns

_KEPT_EVENTS = 5_000


class Changed(Flag):
    """What a drain brought; a view repaints only what it shows of it."""

    NOTHING = 0
    STEPS = auto()
    MEMORY = auto()
    READINGS = auto()
    EVALUATION = auto()
    PROBLEMS = auto()
    ANATOMY = auto()
    STATE = auto()


@dataclass
class DeviceState:
    """One device of the run. The histories are over seconds since the start of the run."""

    info: DeviceInfo
    memory: DeviceMemory | None = None
    memory_step: int | None = None
    largest: DeviceMemory | None = None
    used_bytes: int | None = None
    interval_s: float = 0.0
    peak_history: Series = field(default_factory=lambda: Series(32_768, 4_096))
    used_history: Series = field(default_factory=lambda: Series(32_768, 4_096))
    utilisation_history: Series = field(default_factory=lambda: Series(32_768, 4_096))

    @property
    def label(self) -> str:
        return f"{'GPU' if self.info.kind == 'gpu' else 'Virtual'} {self.info.index}"

    @property
    def memory_history(self) -> Series:
        """The driver's readings where there are any, else the peaks of sampled steps."""
        return self.used_history if len(self.used_history) else self.peak_history


class LiveRun(QObject):
    """One run directory, followed until `close`. Nothing is read before `start`."""

    changed = Signal(object)
    """Emitted by `drain` with the `Changed` flags, when there are any."""
    outcome_changed = Signal(str)
    problem_raised = Signal(object)

    def __init__(self, path: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.run = RunDir(path)
        self.config: RunConfig | None = None
        self.strategy: str | None = None
        self.options: dict[str, Any] = {}
        self.world_size: int | None = None
        self.steps: int | None = None
        self.step: int | None = None
        self.attempt: int | None = None
        self._peaks_since = 0
        self.devices: list[DeviceState] = []
        self.phases: dict[int, str] = {}
        self.outcome: str | None = None
        self.end: End | None = None
        self.problems: list[Problem] = []
        self.evaluation: Evaluation | None = None
        self.memory_source: str | None = None
        self.num_events = 0
        self.missing_lines = 0
        self.recent_events: deque[AnyEvent] = deque(maxlen=_KEPT_EVENTS)
        self.losses = Series()
        self.loss_ema = Series()
        self.rates = Series(262_144, 16_384)
        self.rate_ema = Series(262_144, 16_384)
        self.held_out = Series(4_096, 1_024)
        self.learning_rate: float | None = None
        self.pace: str | None = None
        self.pipeline: dict[int, Pipeline] = {}
        self.prediction: PlanLine | None = None
        self._anatomies = Anatomies()
        self._started: float | None = None
        self._pace = Pace()
        self._averages: tuple[Ema, Ema, Ema] | None = None
        self._tail = RunTail(self.run)
        self._waiting_readings: list[tuple[int, Readings]] = []
        self._waiting_memory: list[tuple[int, int, MemoryColumns]] = []

    def start(self) -> None:
        self._tail.start()

    def close(self) -> None:
        """Ends the reader thread. What was read stays."""
        self._tail.stop()

    def predict(self, line: PlanLine) -> None:
        """What the planner said of this run; it stands beside what is measured."""
        self.prediction = line
        self.changed.emit(Changed.MEMORY | Changed.STATE)

    def predicted_bytes_of(self, device: DeviceState, *, as_read: bool = False) -> int | None:
        """The predicted figure that `total_bytes_of` is to be compared with: live tensors of sampled steps,
        or with `as_read`, and where no step was sampled, all that the driver counts.
        """
        place = self.devices.index(device)
        line = self.prediction
        planned = [] if line is None or line.is_bound else line.devices
        found = next((one for one in planned if one.device == place), None)
        if found is None:
            return None
        is_of_driver = as_read or self.memory_of(device) is None
        return found.total_bytes if is_of_driver else found.active_bytes

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def is_live(self) -> bool:
        return self.outcome == "running"

    @property
    def has_more(self) -> bool:
        """Whether the reader has something that `drain` has not taken yet."""
        return bool(self._tail.batches)

    @property
    def is_rehearsal(self) -> bool | None:
        return None if not self.devices else self.devices[0].info.kind != "gpu"

    @property
    def source(self) -> str | None:
        """'measured in rehearsal' or 'measured on GPU'."""
        if self.is_rehearsal is None:
            return None
        return self.memory_source or (MEASURED_IN_REHEARSAL if self.is_rehearsal else MEASURED_ON_GPU)

    @property
    def started(self) -> float | None:
        """When the person's command started, Unix seconds."""
        return self._started

    @property
    def elapsed_s(self) -> float | None:
        """Until now while the run is alive, else until its end."""
        if self._started is None:
            return None
        if self.outcome in (None, "running"):
            return max(0.0, time.time() - self._started)
        ended = self.end.ended if self.end is not None else self._pace.last_ended
        return None if ended is None else max(0.0, ended - self._started)

    @property
    def eta_s(self) -> float | None:
        if not self.is_live or self.steps is None:
            return None
        return self._pace.remaining_s(self.steps)

    @property
    def samples_per_s(self) -> float | None:
        """Now, smoothed, while the run is alive; then its mean."""
        mean = None if self.outcome in (None, "running") else self._pace.samples_per_s()
        return mean if mean is not None else self.rate_ema.last_y

    @property
    def loss(self) -> float | None:
        """The smoothed loss at the last step."""
        return self.loss_ema.last_y

    @property
    def capacity_bytes(self) -> int | None:
        """The size of the smallest device, or what the rehearsal pretends; None when there is none."""
        sizes = [device.info.total_bytes for device in self.devices]
        known = [size for size in sizes if size is not None]
        if known:
            return min(known)
        return self.config.capacity_bytes if self.config is not None and self.is_rehearsal else None

    @property
    def imbalance(self) -> Imbalance | None:
        return imbalance_of({place: self.total_bytes_of(device) for place, device in enumerate(self.devices)})

    @property
    def anatomy(self) -> StepAnatomy | None:
        """The newest sampled step that every rank has told."""
        return self._anatomies.last

    @property
    def is_simulated(self) -> bool:
        """Whether times are those of pretended devices."""
        return self.pace == "simulated"

    @property
    def bubble(self) -> tuple[float | None, float | None] | None:
        """(measured, theory) of a pipeline; None for what is none."""
        if not self.pipeline:
            return None
        theories = [told.theory_bubble for told in self.pipeline.values() if told.theory_bubble is not None]
        theory = max(theories, default=None)
        return self._anatomies.bubble(flushes=bool(theory)), theory

    def memory_of(self, device: DeviceState) -> DeviceMemory | None:
        """The last sampled step while the run is alive; then the one with the largest peak of the run."""
        return device.memory if self.outcome in (None, "running") else device.largest

    def total_bytes_of(self, device: DeviceState) -> int | None:
        """The peak of that step; without one, what the driver says is in use."""
        memory = self.memory_of(device)
        return memory.peak_bytes if memory is not None else device.used_bytes

    def phase(self) -> str | None:
        """What the ranks are busy with before the first step; None while none has said anything."""
        if not self.phases:
            return None
        rank, phase = min(self.phases.items())
        return phase if len(self.phases) == 1 else f"rank {rank}: {phase}"

    def drain(self, budget_s: float = 0.004) -> Changed:
        """Takes what the reader has, until the budget is spent; says what changed.

        A batch is never split, and costs about 0.3 ms at most.
        """
        until = time.perf_counter() + budget_s
        changed = Changed.NOTHING
        while self._tail.batches:
            changed |= self._take(self._tail.batches.popleft())
            if time.perf_counter() >= until:
                break
        if changed:
            self.changed.emit(changed)
        return changed

    def _take(self, batch: Batch) -> Changed:
        changed = Changed.NOTHING
        self.num_events += batch.num_events
        if batch.config is not None:
            self.config = batch.config
            self.steps = self.steps or batch.config.train.steps
            changed |= Changed.STATE
        for event in batch.events:
            changed |= self._take_event(event)
        changed |= self._take_devices(batch)
        if batch.steps is not None:
            self._take_steps(batch.steps)
            changed |= Changed.STEPS
        if batch.missing_lines:
            self.missing_lines += batch.missing_lines
            changed |= Changed.PROBLEMS
        if batch.outcome is not None:
            self.outcome, self.end = batch.outcome, batch.end
            self.outcome_changed.emit(batch.outcome)
            changed |= Changed.STATE
        return changed

    def _take_event(self, event: AnyEvent) -> Changed:
        self.recent_events.append(event)
        if isinstance(event, RunStarted):
            self._begin(event)
        elif isinstance(event, RankStarted | Phase):
            self.phases[event.rank] = event.phase
        elif isinstance(event, RankEnded):
            self.phases.pop(event.rank, None)
        elif isinstance(event, Evaluation):
            self.evaluation = event
            if event.loss is not None:
                self.held_out.append(event.step, event.loss)
            return Changed.EVALUATION
        elif isinstance(event, Spans):
            return Changed.NOTHING if self._anatomies.add(event) is None else Changed.ANATOMY
        elif isinstance(event, Pipeline):
            self.pipeline[event.rank] = event
            return Changed.ANATOMY
        elif isinstance(event, ProblemRaised):
            return self._raise(event.problem)
        elif isinstance(event, Dropped):
            return self._raise(
                Problem(
                    code="dropped-events",
                    message=f"{event.lines} lines of events could not be written: {event.reason}.",
                    advice="Free space on the disk that holds the run.",
                    severity="warning",
                )
            )
        return Changed.STATE

    def _raise(self, problem: Problem) -> Changed:
        self.problems.append(problem)
        self.problem_raised.emit(problem)
        return Changed.PROBLEMS

    def _begin(self, event: RunStarted) -> None:
        """An attempt begins. The first one says what the run is; a restart may bring other devices."""
        if self._started is not None:
            # What the attempt before ended with is no longer the run's end.
            self.problems = [
                msgspec.structs.replace(problem, severity="warning")
                if problem.severity == "error"
                else problem
                for problem in self.problems
            ]
        infos = [device.info for device in self.devices]
        if (self.strategy, self.options, infos) != (event.strategy, event.options, list(event.devices)):
            # Peaks of another strategy say nothing about this one.
            self._peaks_since = event.attempt
            for device in self.devices:
                device.memory = device.memory_step = device.largest = None
        self._started = event.started if self._started is None else self._started
        self.attempt = event.attempt
        self.strategy, self.options = event.strategy, event.options
        self.world_size, self.steps = event.world_size, event.steps or self.steps
        self.pace, self._anatomies.world_size = event.pace, event.world_size
        kept = {device.info.index: device for device in self.devices}
        self.devices = [kept.get(info.index) or DeviceState(info) for info in event.devices]
        if self._averages is None:
            # A sixtieth of the run, so that the line is calm and still turns where the loss does.
            alpha = 1.0 / min(500.0, max(2.0, (self.steps or 3_000) / 60))
            self._averages = (Ema(alpha), Ema(alpha), Ema(alpha))

    def _take_devices(self, batch: Batch) -> Changed:
        """Readings and sampled steps of devices; those of an attempt not yet announced wait."""
        changed = Changed.NOTHING
        self._waiting_readings += batch.readings.items()
        self._waiting_memory += [(*place, columns) for place, columns in batch.memory.items()]
        if self.attempt is None:
            return changed
        devices = {device.info.index: device for device in self.devices}
        readings, self._waiting_readings = self._waiting_readings, []
        for index, found in readings:
            if index in devices:
                self._take_readings(devices[index], found)
                changed |= Changed.READINGS
        waiting, self._waiting_memory = self._waiting_memory, []
        for attempt, index, columns in waiting:
            if attempt > self.attempt:
                self._waiting_memory.append((attempt, index, columns))
            elif index in devices:
                self._take_memory(devices[index], columns, is_history=attempt < self._peaks_since)
                changed |= Changed.MEMORY
        return changed

    def _since_start(self, t: list[float]) -> NDArray[np.float64]:
        assert self._started is not None
        return np.asarray(t, dtype=np.float64) - self._started

    def _take_readings(self, device: DeviceState, readings: Readings) -> None:
        x = self._since_start(readings.t)
        busy, used = np.asarray(readings.utilisation), np.asarray(readings.used_bytes)
        known = np.isfinite(busy)
        if known.any():
            device.utilisation_history.append_many(x[known], busy[known])
            device.interval_s = readings.interval_s
        known = np.isfinite(used)
        if known.any():
            device.used_history.append_many(x[known], used[known])
            device.used_bytes = int(used[known][-1])

    def _take_memory(self, device: DeviceState, memory: MemoryColumns, *, is_history: bool) -> None:
        device.peak_history.append_many(self._since_start(memory.t), memory.peak_bytes)
        if is_history:
            return
        device.memory, device.memory_step = memory.latest, memory.step
        known = [value for value in (device.largest, memory.largest) if value is not None]
        device.largest = max(known, key=lambda value: value.peak_bytes, default=None)
        self.memory_source = memory.source or self.memory_source

    def _take_steps(self, columns: StepColumns) -> None:
        assert self._averages is not None
        loss_ema, samples_ema, step_s_ema = self._averages
        self.losses.append_many(columns.step, columns.loss)
        self.loss_ema.append_many(columns.step, loss_ema.extend(columns.loss))
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.where(columns.step_s > 0, columns.samples / columns.step_s, np.nan)
            smooth = samples_ema.extend(columns.samples) / step_s_ema.extend(columns.step_s)
        self.rates.append_many(columns.step, rate)
        self.rate_ema.append_many(columns.step, np.where(np.isfinite(smooth), smooth, np.nan))
        self.step = int(columns.step[-1])
        self.learning_rate = columns.lr if columns.lr is not None else self.learning_rate
        self._pace.add(columns, self.steps or 1)
