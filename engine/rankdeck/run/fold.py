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
from rankdeck.run.anatomy import StepAnatomy, bubble_beside_theory, fits
from rankdeck.run.attempt import Attempt
from rankdeck.run.batch import Batch, Changed, Source, batches
from rankdeck.run.bounds import MOST_RANKS
from rankdeck.run.devices import DeviceFigures
from rankdeck.run.imbalance import Imbalance, imbalance_of
from rankdeck.run.measured import (
    Histories,
    RunPace,
    measured_together,
    put_devices_together,
    remaining_s,
    step_curve,
)
from rankdeck.run.script_figures import MetricFigures, ScriptFigures
from rankdeck.run.series import Curve, Floats
from rankdeck.run.step_table import ROWS_HELD, Row
from rankdeck.run.verified import newest_verified
from rankdeck.rundir import EventReader, LineCounts, RunDir

T = TypeVar("T")
_OWN = ("attempts", "num_events", "counts", "raised", "dropped", "_problems", "_num_refused")


class Fold(RunPace):
    """The state of a run. `rows_held` per attempt, None is all (for exports); `curves` are for drawing."""

    def __init__(self, rows_held: int | None = ROWS_HELD, *, curves: bool = True) -> None:
        self._rows_held = rows_held
        self._nothing = Attempt(0, curves=False)
        self._with_curves = curves
        self.attempts: dict[int, Attempt] = {}
        """By number, in their order."""
        self.num_events = 0
        self.counts = LineCounts()
        self.raised: list[Problem] = []
        """Problems in the order in which they were read; `problems` has them in the order of the run."""
        self.dropped: list[events.Dropped] = []
        self._problems: list[tuple[Source, Problem]] = []
        self._num_refused = 0
        self._devices: dict[int, DeviceFigures] | None = None
        self._histories = Histories(self._in_order)
        curve = partial(step_curve, self._in_order)
        self.losses, self.loss_ema = curve("losses"), curve("loss_ema")
        self.rates, self.rate_ema = curve("rates"), curve("rate_ema")
        self.lrs, self.grad_norms = curve("lrs"), curve("grad_norms")
        self.moments, self.samples_seen = curve("moments"), curve("samples_seen")
        self.script = ScriptFigures(self._in_order)
        self.held_out = Curve(lambda: [one.held_out for one in self.attempts.values()])

    def copy(self) -> Fold:
        """The same now, and by itself from now on."""
        other = Fold(self._rows_held, curves=self._with_curves)
        vars(other).update({name: deepcopy(vars(self)[name]) for name in _OWN})
        return other

    def _in_order(self) -> list[Attempt]:
        return list(self.attempts.values())

    def apply(self, batch: Batch) -> Changed:
        """Take a batch; what changed. The cost hardly depends on how many events it holds."""
        self.num_events += batch.num_events
        self._num_refused += batch.num_refused
        changed = Changed.NOTHING
        if batch.counts is not None and batch.counts != self.counts:
            self.counts = batch.counts
            changed |= Changed.PROBLEMS
        before = {number: one.restored for number, one in self.attempts.items()}
        for number, told_until in batch.told_until.items():
            one = self._attempt(number)
            one.told_until = max(one.told_until, told_until)
        for source, event in batch.events:
            changed |= self._take(source, event)
        for number, block in batch.steps:
            self._attempt(number).add_steps(block)
        for (number, rank, key), columns in batch.metrics.items():
            self._attempt(number).told.metrics.add(rank, key, columns)
            changed |= Changed.METRICS
        for (number, index), memory in batch.memory.items():
            self._attempt(number).device(index).take_memory(memory)
            changed |= Changed.MEMORY
        for (number, index), readings in batch.readings.items():
            self._attempt(number).device(index).take_readings(readings)
            changed |= Changed.READINGS
        changed |= self._cut(before, has_memory=bool(batch.memory))
        if batch.metrics and len(self.attempts) > 1:
            self.script.cut_metrics()
        smoothed_loss: float | None = None
        for one in self.attempts.values():
            if one.take_rows(smoothed_loss):
                changed |= Changed.STEPS
            if one.curves is not None and one.curves.smoothed_loss is not None:
                smoothed_loss = one.curves.smoothed_loss
        if changed & (Changed.STATE | Changed.MEMORY | Changed.READINGS):
            self._devices = None
        return changed

    def _attempt(self, number: int) -> Attempt:
        if number not in self.attempts:
            self.attempts[number] = Attempt(number, self._rows_held, curves=self._with_curves)
            self.attempts = dict(sorted(self.attempts.items()))
            later = [one for one in self.attempts.values() if one.number > number]
            if known := [one.restored for one in later if one.restored is not None]:
                self.attempts[number].cut(min(known))
        return self.attempts[number]

    def _cut(self, before: dict[int, int | None], *, has_memory: bool) -> Changed:
        """The rule of resumes, where an attempt has just said what it goes on after."""
        changed, least = Changed.NOTHING, None
        for one in reversed(self.attempts.values()):
            if least is not None:
                if one.cut(least):
                    changed |= ~Changed.NOTHING
                elif has_memory:
                    for device in one.devices.values():
                        device.cut(least)
            if one.restored is not None:
                least = one.restored if least is None else min(least, one.restored)
        if any(one.restored != before.get(number) for number, one in self.attempts.items()):
            changed |= Changed.STATE
        return changed

    def _take(self, source: Source, event: events.AnyEvent) -> Changed:
        if not 0 <= (getattr(event, "rank", None) or 0) < MOST_RANKS:
            self._num_refused += 1
            return Changed.NOTHING
        one = self._attempt(source.attempt)
        match event:
            case events.RunStarted():
                self._num_refused += not one.start(event)
            case events.Evaluation():
                return Changed.EVALUATION if one.evaluate(event) else Changed.NOTHING
            case events.Spans():
                if fits(event):
                    return Changed.ANATOMY if one.add_spans(event) else Changed.NOTHING
                self._num_refused += 1
                return Changed.NOTHING
            case events.Pipeline():
                one.pipeline[event.rank] = event
                return Changed.ANATOMY
            case events.Comm():
                one.comm.setdefault(event.rank, {})[event.algorithm] = event.sent_bytes
                if event.sync_s is not None:
                    one.sync[event.rank] = event
            case events.ProblemRaised():
                self.raised.append(event.problem)
                one.warn(source, event.problem)
                bisect.insort(self._problems, (source, event.problem), key=lambda entry: entry[0])
                return Changed.PROBLEMS
            case events.Dropped():
                self.dropped.append(event)
                return Changed.PROBLEMS
            case _:
                one.take_rare(source, event)
        return Changed.STATE

    @property
    def _announced(self) -> list[Attempt]:
        return [one for one in self.attempts.values() if one.started is not None]

    @property
    def _latest(self) -> Attempt:
        """The newest that was announced; before there is one, one that says nothing."""
        return (self._announced or [self._nothing])[-1]

    @property
    def started(self) -> events.RunStarted | None:
        """The latest attempt's announcement."""
        return self._latest.started

    @property
    def ending(self) -> str | None:
        """ "stopping" once somebody asked the latest attempt to, "ending" once its ranks are gone."""
        one = self._latest
        return "stopping" if one.is_stopping else "ending" if one.ended is not None else None

    @property
    def first_started(self) -> events.RunStarted | None:
        return next((one.started for one in self._announced), None)

    @property
    def num_attempts(self) -> int:
        return len(self._announced)

    @property
    def refused(self) -> int:
        """Events and parts of them that made no sense."""
        return self._num_refused + sum(one.joiner.num_refused for one in self.attempts.values())

    @property
    def problems(self) -> list[Problem]:
        """In the order of the run; what earlier attempts ended with is no longer the run's end."""
        latest = self._latest.number
        found = [(at.attempt < latest, self.attempts[at.attempt].placed(one)) for at, one in self._problems]
        return [one.as_past() if is_past else one for is_past, one in found]

    def placed(self, problem: Problem) -> Problem:
        """One of the latest attempt, with its rank's host."""
        return self._latest.placed(problem)

    @property
    def rank_failures(self) -> list[Problem]:
        """What the ranks of the latest attempt saw of their ends."""
        return [failed.problem for _, failed in sorted(self._latest.rank_failures.items())]

    @property
    def out_of_memory(self) -> dict[int, events.OutOfMemory]:
        """By rank of the latest attempt where an allocation failed."""
        return next((one.out_of_memory for one in reversed(self._announced) if one.out_of_memory), {})

    @property
    def phases(self) -> dict[int, str]:
        """What each rank of the latest attempt is busy with, until it ends."""
        return self._latest.phases

    @property
    def num_steps_planned(self) -> int | None:
        """As asked for; where epochs were, as the ranks counted them once they had read their data."""
        asked = self.started.steps if self.started else None
        counted = (one.steps_counted for one in reversed(self.attempts.values()))
        return asked if asked is not None else next((steps for steps in counted if steps), None)

    @property
    def step(self) -> int | None:
        """The last complete step."""
        return None if self.last is None else self.last.step

    @property
    def num_steps_measured(self) -> int:
        """How many steps `devices` speak of."""
        return sum(len(one.table) for one in self._measured)

    @property
    def last(self) -> Row | None:
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
        return not any(one.table.num_gone for one in self.attempts.values())

    @property
    def metrics(self) -> dict[str, MetricFigures]:
        """What a person's own script has logged, by name."""
        return self.script.metrics

    def newest(self, name: str) -> tuple[int, float] | None:
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
        return remaining_s(self._with_rows(), planned, self.step)

    @property
    def evaluation(self) -> events.Evaluation | None:
        """The evaluation of the latest step."""
        newest = [(one.evaluations[-1].step, one.number) for one in self.attempts.values() if one.evaluations]
        return self.attempts[max(newest)[1]].evaluations[-1] if newest else None

    @property
    def verified(self) -> events.Verified | None:
        """What the check found of the strategy that the latest attempt trains with."""
        return newest_verified([(one.started, one.verified) for one in self._announced])

    @property
    def _measured(self) -> list[Attempt]:
        return measured_together(self._in_order())

    @property
    def devices(self) -> dict[int, DeviceFigures]:
        """By place in the run: those that were announced or reported."""
        if self._devices is None:
            zero = self.first_started.started if self.first_started is not None else 0.0
            self._devices = put_devices_together(self._measured, self._histories, zero)
        return self._devices

    @property
    def source(self) -> str | None:
        """'measured in rehearsal' or 'measured on GPU', once memory was reported."""
        return next((device.source for device in self.devices.values() if device.source is not None), None)

    def _newest(self, get: Callable[[Attempt], T]) -> T | None:
        """Of the attempts that are measured together, what the newest that has it says."""
        return next((value for one in reversed(self._measured) if (value := get(one))), None)

    @property
    def comm(self) -> dict[int, dict[str, int]]:
        """Bytes that each rank sends per step, by algorithm."""
        return self._newest(lambda one: one.comm) or {}

    @property
    def sync(self) -> dict[int, events.Comm]:
        return self._newest(lambda one: one.visible(one.sync)) or {}

    @property
    def pipeline(self) -> dict[int, events.Pipeline]:
        return self._newest(lambda one: one.visible(one.pipeline)) or {}

    @property
    def anatomy(self) -> StepAnatomy | None:
        """The newest sampled step that every rank has reported."""
        return self._newest(lambda one: one.anatomies.last)

    @property
    def bubble(self) -> tuple[float | None, float | None] | None:
        """(measured, theory) of a pipeline; None for what is none."""
        return bubble_beside_theory([one.anatomies for one in self._measured], self.pipeline.values())

    def imbalance(self) -> Imbalance | None:
        """The lead device's peak against the median of the others; None below two known peaks."""
        return imbalance_of({index: device.peak_bytes for index, device in self.devices.items()})


def read_fold(
    run: RunDir, *, attempt: int | None = None, rows_held: int | None = ROWS_HELD, curves: bool = False
) -> Fold:
    """Everything that is in the run's directory now, or was when attempt `attempt` ended."""
    fold, reader = Fold(rows_held, curves=curves), EventReader(run, last_attempt=attempt)
    for batch in batches(reader):
        fold.apply(batch)
    return fold
