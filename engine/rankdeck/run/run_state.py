"""One fold of a run: everything that its events say, brought up to date a batch at a time.

    event files -> EventReader -> Batch (batch.py) -> Fold.apply -> figures

`show`, `watch`, `runs`, `export`, the displays of `train` and the app's dashboard all read this, so they say
the same. However the files are cut into batches and whichever file is read first, the state is the same: each
attempt is folded by itself (attempt.py), and one rule puts attempts together.

Resumes: an attempt says after which step it continues (events.Restored; an older run's first steps tell).
From then on, what earlier attempts said of later steps is history. Problems stay, and errors of earlier
attempts become warnings. Memory is bounded (series.py). What makes no sense is refused and counted.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from typing import TypeVar

import numpy as np

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.run.anatomy import StepAnatomy, is_valid_share, measured_and_theoretical_bubble
from rankdeck.run.attempt import Attempt
from rankdeck.run.batch import Batch, EventPosition, RunChange, iter_batches
from rankdeck.run.bounds import MAX_RANKS
from rankdeck.run.devices import DeviceState
from rankdeck.run.imbalance import Imbalance, find_imbalance
from rankdeck.run.merged_attempts import (
    DeviceHistories,
    RunPace,
    attempts_measured_together,
    merge_devices,
    remaining_s,
    step_curve,
)
from rankdeck.run.script_state import ScriptMetric, ScriptState
from rankdeck.run.series import Curve, Floats
from rankdeck.run.step_table import MAX_ROWS, Row
from rankdeck.run.verified import newest_verified
from rankdeck.run_dir import EventReader, LineCounts, RunDir

T = TypeVar("T")
_OWN_ATTRIBUTES = (
    "attempts",
    "num_events",
    "counts",
    "raised_problems",
    "dropped",
    "_problems",
    "_num_rejected",
)


class RunState(RunPace):
    """The state of a run. `rows_held` per attempt, None is all (for exports); `curves` are for drawing."""

    def __init__(self, max_rows: int | None = MAX_ROWS, *, curves: bool = True) -> None:
        self._max_rows = max_rows
        self._no_attempt = Attempt(0, curves=False)
        self._with_curves = curves
        self.attempts: dict[int, Attempt] = {}
        """By number, in their order."""
        self.num_events = 0
        self.counts = LineCounts()
        self.raised_problems: list[Problem] = []
        """Problems in the order in which they were read; `problems` has them in the order of the run."""
        self.dropped: list[events.Dropped] = []
        self._problems: list[tuple[EventPosition, Problem]] = []
        self._num_rejected = 0
        self._devices: dict[int, DeviceState] | None = None
        self._histories = DeviceHistories(self._ordered_attempts)
        curve = partial(step_curve, self._ordered_attempts)
        self.losses, self.loss_ema = curve("losses"), curve("loss_ema")
        self.rates, self.rate_ema = curve("rates"), curve("rate_ema")
        self.lrs, self.grad_norms = curve("lrs"), curve("grad_norms")
        self.steps_over_time, self.samples_seen = curve("moments"), curve("samples_seen")
        self.script = ScriptState(self._ordered_attempts)
        self.held_out = Curve(lambda: [one.held_out for one in self.attempts.values()])

    def copy(self) -> RunState:
        """The same now, and by itself from now on."""
        other = RunState(self._max_rows, curves=self._with_curves)
        vars(other).update({name: deepcopy(vars(self)[name]) for name in _OWN_ATTRIBUTES})
        return other

    def _ordered_attempts(self) -> list[Attempt]:
        return list(self.attempts.values())

    def apply(self, batch: Batch) -> RunChange:
        """Take a batch; what changed. The cost hardly depends on how many events it holds."""
        self.num_events += batch.num_events
        self._num_rejected += batch.num_rejected
        changed = RunChange.NOTHING
        if batch.counts is not None and batch.counts != self.counts:
            self.counts = batch.counts
            changed |= RunChange.PROBLEMS
        before = {number: one.restored for number, one in self.attempts.items()}
        for number, told_until in batch.last_event_times.items():
            one = self._attempt(number)
            one.last_event_time = max(one.last_event_time, told_until)
        for source, event in batch.events:
            changed |= self._apply_event(source, event)
        for number, block in batch.steps:
            self._attempt(number).add_steps(block)
        for (number, rank, key), columns in batch.metrics.items():
            self._attempt(number).script.metrics.add(rank, key, columns)
            changed |= RunChange.METRICS
        for (number, index), memory in batch.memory.items():
            self._attempt(number).device(index).add_memory(memory)
            changed |= RunChange.MEMORY
        for (number, index), readings in batch.readings.items():
            self._attempt(number).device(index).add_readings(readings)
            changed |= RunChange.READINGS
        changed |= self._cut_history(before, has_memory=bool(batch.memory))
        if batch.metrics and len(self.attempts) > 1:
            self.script.cut_metrics()
        smoothed_loss: float | None = None
        for one in self.attempts.values():
            if one.join_rows(smoothed_loss):
                changed |= RunChange.STEPS
            if one.curves is not None and one.curves.smoothed_loss is not None:
                smoothed_loss = one.curves.smoothed_loss
        if changed & (RunChange.STATE | RunChange.MEMORY | RunChange.READINGS):
            self._devices = None
        return changed

    def _attempt(self, number: int) -> Attempt:
        if number not in self.attempts:
            self.attempts[number] = Attempt(number, self._max_rows, curves=self._with_curves)
            self.attempts = dict(sorted(self.attempts.items()))
            later = [one for one in self.attempts.values() if one.number > number]
            if known := [one.restored for one in later if one.restored is not None]:
                self.attempts[number].cut(min(known))
        return self.attempts[number]

    def _cut_history(self, before: dict[int, int | None], *, has_memory: bool) -> RunChange:
        """The rule of resumes, where an attempt has just said what it goes on after."""
        changed, least = RunChange.NOTHING, None
        for one in reversed(self.attempts.values()):
            if least is not None:
                if one.cut(least):
                    changed |= ~RunChange.NOTHING
                elif has_memory:
                    for device in one.devices.values():
                        device.cut(least)
            if one.restored is not None:
                least = one.restored if least is None else min(least, one.restored)
        if any(one.restored != before.get(number) for number, one in self.attempts.items()):
            changed |= RunChange.STATE
        return changed

    def _apply_event(self, source: EventPosition, event: events.AnyEvent) -> RunChange:
        if not 0 <= (getattr(event, "rank", None) or 0) < MAX_RANKS:
            self._num_rejected += 1
            return RunChange.NOTHING
        one = self._attempt(source.attempt)
        match event:
            case events.RunStarted():
                self._num_rejected += not one.start(event)
            case events.Evaluation():
                return RunChange.EVALUATION if one.evaluate(event) else RunChange.NOTHING
            case events.Spans():
                if is_valid_share(event):
                    return RunChange.ANATOMY if one.add_spans(event) else RunChange.NOTHING
                self._num_rejected += 1
                return RunChange.NOTHING
            case events.Pipeline():
                one.pipeline[event.rank] = event
                return RunChange.ANATOMY
            case events.Comm():
                one.comm.setdefault(event.rank, {})[event.algorithm] = event.sent_bytes
                if event.sync_s is not None:
                    one.sync[event.rank] = event
            case events.ProblemRaised():
                self.raised_problems.append(event.problem)
                one.add_problem(source, event.problem)
                bisect.insort(self._problems, (source, event.problem), key=lambda entry: entry[0])
                return RunChange.PROBLEMS
            case events.Dropped():
                self.dropped.append(event)
                return RunChange.PROBLEMS
            case _:
                one.apply_event(source, event)
        return RunChange.STATE

    @property
    def _started_attempts(self) -> list[Attempt]:
        return [one for one in self.attempts.values() if one.started is not None]

    @property
    def _latest_attempt(self) -> Attempt:
        """The newest that was announced; before there is one, one that says nothing."""
        return (self._started_attempts or [self._no_attempt])[-1]

    @property
    def started(self) -> events.RunStarted | None:
        """The latest attempt's announcement."""
        return self._latest_attempt.started

    @property
    def ending(self) -> str | None:
        """ "stopping" once somebody asked the latest attempt to, "ending" once its ranks are gone."""
        one = self._latest_attempt
        return "stopping" if one.is_stopping else "ending" if one.ended is not None else None

    @property
    def first_started(self) -> events.RunStarted | None:
        return next((one.started for one in self._started_attempts), None)

    @property
    def num_attempts(self) -> int:
        return len(self._started_attempts)

    @property
    def num_rejected(self) -> int:
        """Events and parts of them that made no sense."""
        return self._num_rejected + sum(one.joiner.num_refused for one in self.attempts.values())

    @property
    def problems(self) -> list[Problem]:
        """In the order of the run; what earlier attempts ended with is no longer the run's end."""
        latest = self._latest_attempt.number
        found = [
            (at.attempt < latest, self.attempts[at.attempt].with_host(one)) for at, one in self._problems
        ]
        return [one.as_warning() if is_past else one for is_past, one in found]

    def with_host(self, problem: Problem) -> Problem:
        """One of the latest attempt, with its rank's host."""
        return self._latest_attempt.with_host(problem)

    @property
    def rank_failures(self) -> list[Problem]:
        """What the ranks of the latest attempt saw of their ends."""
        return [failed.problem for _, failed in sorted(self._latest_attempt.rank_failures.items())]

    @property
    def out_of_memory(self) -> dict[int, events.OutOfMemory]:
        """By rank of the latest attempt where an allocation failed."""
        return next((one.out_of_memory for one in reversed(self._started_attempts) if one.out_of_memory), {})

    @property
    def phases(self) -> dict[int, str]:
        """What each rank of the latest attempt is busy with, until it ends."""
        return self._latest_attempt.phases

    @property
    def num_steps_planned(self) -> int | None:
        """As asked for; where epochs were, as the ranks counted them once they had read their data."""
        asked = self.started.steps if self.started else None
        counted = (one.num_steps_counted for one in reversed(self.attempts.values()))
        return asked if asked is not None else next((steps for steps in counted if steps), None)

    @property
    def step(self) -> int | None:
        """The last complete step."""
        return None if self.last_row is None else self.last_row.step

    @property
    def num_measured_steps(self) -> int:
        """How many steps `devices` speak of."""
        return sum(len(one.table) for one in self._measured_attempts)

    @property
    def last_row(self) -> Row | None:
        """The row of the last complete step."""
        return next(
            (one.table.row(-1) for one in reversed(self.attempts.values()) if one.table.rows.shape[1]), None
        )

    def row_at(self, step: int) -> Row | None:
        """The row of a step, None where it is not held."""
        for one in self.attempts.values():
            steps = one.table.column("step")
            index = int(np.searchsorted(steps, step))
            if index < len(steps) and steps[index] == step:
                return one.table.row(index)
        return None

    def rows(self) -> Iterator[Row]:
        """The rows that are held, in the order of the steps."""
        for one in self.attempts.values():
            yield from map(one.table.row, range(one.table.rows.shape[1]))

    def column(self, name: str) -> Floats:
        """One column of the rows that are held (steps.COLUMNS)."""
        return np.concatenate([np.empty(0), *(one.table.column(name) for one in self.attempts.values())])

    def first_row(self) -> Row | None:
        return next((one.table.first for one in self.attempts.values() if one.table.first is not None), None)

    def first_loss(self) -> float | None:
        """The first one that is finite."""
        known = (one.table.first_loss for one in self.attempts.values())
        return next((row[1] for row in known if row is not None), None)

    def is_exact(self) -> bool:
        """Whether rates and step times are of every row; else they are estimates (steps.StepTable)."""
        return not any(one.table.num_dropped for one in self.attempts.values())

    @property
    def metrics(self) -> dict[str, ScriptMetric]:
        """What a person's own script has logged, by name."""
        return self.script.metrics

    def newest_value(self, name: str) -> tuple[int, float] | None:
        """(step, value) of the newest row that is held and knows this column: a script's steps are
        sampled."""
        for one in reversed(self.attempts.values()):
            known = np.flatnonzero(np.isfinite(one.table.column(name)))
            if len(known):
                return int(one.table.column("step")[known[-1]]), float(one.table.column(name)[known[-1]])
        return None

    def remaining_s(self) -> float | None:
        """Seconds until the last step at the pace of the last quarter of the steps."""
        planned = self.num_steps_planned
        if planned is None or self.step is None:
            return None
        return remaining_s(self._attempts_with_rows(), planned, self.step)

    @property
    def evaluation(self) -> events.Evaluation | None:
        """The evaluation of the latest step."""
        newest = [(one.evaluations[-1].step, one.number) for one in self.attempts.values() if one.evaluations]
        return self.attempts[max(newest)[1]].evaluations[-1] if newest else None

    @property
    def verified(self) -> events.Verified | None:
        """What the check found of the strategy that the latest attempt trains with."""
        return newest_verified([(one.started, one.verified) for one in self._started_attempts])

    @property
    def _measured_attempts(self) -> list[Attempt]:
        return attempts_measured_together(self._ordered_attempts())

    @property
    def devices(self) -> dict[int, DeviceState]:
        """By place in the run: those that were announced or reported."""
        if self._devices is None:
            zero = self.first_started.started if self.first_started is not None else 0.0
            self._devices = merge_devices(self._measured_attempts, self._histories, zero)
        return self._devices

    @property
    def source(self) -> str | None:
        """'measured in rehearsal' or 'measured on GPU', once memory was reported."""
        return next((device.source for device in self.devices.values() if device.source is not None), None)

    def _newest_of(self, get: Callable[[Attempt], T]) -> T | None:
        """Of the attempts that are measured together, what the newest that has it says."""
        return next((value for one in reversed(self._measured_attempts) if (value := get(one))), None)

    @property
    def comm(self) -> dict[int, dict[str, int]]:
        """Bytes that each rank sends per step, by algorithm."""
        return self._newest_of(lambda one: one.comm) or {}

    @property
    def sync(self) -> dict[int, events.Comm]:
        return self._newest_of(lambda one: one.visible(one.sync)) or {}

    @property
    def pipeline(self) -> dict[int, events.Pipeline]:
        return self._newest_of(lambda one: one.visible(one.pipeline)) or {}

    @property
    def anatomy(self) -> StepAnatomy | None:
        """The newest sampled step that every rank has reported."""
        return self._newest_of(lambda one: one.anatomies.last)

    @property
    def bubble(self) -> tuple[float | None, float | None] | None:
        """(measured, theory) of a pipeline; None for what is none."""
        return measured_and_theoretical_bubble(
            [one.anatomies for one in self._measured_attempts], self.pipeline.values()
        )

    def imbalance(self) -> Imbalance | None:
        """The lead device's peak against the median of the others; None below two known peaks."""
        return find_imbalance({index: device.peak_bytes for index, device in self.devices.items()})


def read_run_state(
    run: RunDir, *, attempt: int | None = None, max_rows: int | None = MAX_ROWS, curves: bool = False
) -> RunState:
    """Everything that is in the run's directory now, or was when attempt `attempt` ended."""
    fold, reader = RunState(max_rows, curves=curves), EventReader(run, last_attempt=attempt)
    for batch in iter_batches(reader):
        fold.apply(batch)
    return fold
