"""Build the state of a run from its events, updated one batch at a time.

    event files -> EventReader -> Batch (batch.py) -> RunState.apply -> metrics

`show`, `watch`, `runs`, `export`, the displays of `train` and the app's dashboard all read this state, so
they agree. The state does not depend on how the files are cut into batches or on the reading order: each
attempt has its own state (attempt.py), and one rule combines the attempts' states.

A resumed attempt reports the step after which it continues (events.Restored; in older runs its first steps
imply that step). Later steps of earlier attempts are then discarded. Problems remain, and errors of earlier
attempts become warnings. Memory is bounded (series.py). Invalid events are rejected and counted.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import TypeVar

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.run.anatomy import StepAnatomy, is_valid_share, measured_and_theoretical_bubble
from rankdeck.run.attempt import Attempt
from rankdeck.run.attempt_rows import AttemptRows, remaining_s
from rankdeck.run.batch import Batch, EventPosition, RunChange, iter_batches
from rankdeck.run.bounds import MAX_RANKS
from rankdeck.run.devices import DeviceState
from rankdeck.run.imbalance import Imbalance, find_imbalance
from rankdeck.run.merged_attempts import (
    DeviceHistories,
    attempts_measured_together,
    merge_devices,
    step_curve,
)
from rankdeck.run.script_state import ScriptMetric, ScriptState
from rankdeck.run.series import Curve
from rankdeck.run.step_table import MAX_ROWS
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


class RunState(AttemptRows):
    """State of a run, built from its events.

    `max_rows` is the maximum number of step rows in memory per attempt, None for all rows (exports). If
    `curves` is False, no curves are computed for charts.
    """

    def __init__(self, max_rows: int | None = MAX_ROWS, *, curves: bool = True) -> None:
        self._max_rows = max_rows
        self._no_attempt = Attempt(0, curves=False)
        self._with_curves = curves
        self.attempts: dict[int, Attempt] = {}
        """Attempts by number, in ascending order."""
        self.num_events = 0
        self.counts = LineCounts()
        self.raised_problems: list[Problem] = []
        """Problems in the order read; the property `problems` returns them in the order raised."""
        self.dropped: list[events.Dropped] = []
        self._problems: list[tuple[EventPosition, Problem]] = []
        self._num_rejected = 0
        self._devices: dict[int, DeviceState] | None = None
        # A callable, since attempts are added while curves refer to them.
        self._histories = DeviceHistories(self._ordered_attempts)
        curve = partial(step_curve, self._ordered_attempts)
        self.losses, self.loss_ema = curve("losses"), curve("loss_ema")
        self.rates, self.rate_ema = curve("rates"), curve("rate_ema")
        self.lrs, self.grad_norms = curve("lrs"), curve("grad_norms")
        self.steps_over_time, self.samples_seen = curve("moments"), curve("samples_seen")
        self.script = ScriptState(self._ordered_attempts)
        self.held_out = Curve(lambda: [attempt.held_out for attempt in self.attempts.values()])

    def copy(self) -> RunState:
        """Return an independent copy."""
        other = RunState(self._max_rows, curves=self._with_curves)
        # All other attributes are views of these, which the constructor has bound to the copy.
        vars(other).update({name: deepcopy(vars(self)[name]) for name in _OWN_ATTRIBUTES})
        return other

    def _ordered_attempts(self) -> list[Attempt]:
        return list(self.attempts.values())

    def apply(self, batch: Batch) -> RunChange:
        """Apply a batch; return what changed. The cost hardly depends on how many events were applied
        before."""
        self.num_events += batch.num_events
        self._num_rejected += batch.num_rejected
        changed = RunChange.NOTHING
        if batch.counts is not None and batch.counts != self.counts:
            self.counts = batch.counts
            changed |= RunChange.PROBLEMS
        before = {number: attempt.restored for number, attempt in self.attempts.items()}
        for number, told_until in batch.last_event_times.items():
            attempt = self._attempt(number)
            attempt.last_event_time = max(attempt.last_event_time, told_until)
        # Before the steps, because a start event decides how an attempt joins them.
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
        # Before join_rows(), which leaves out the steps that are history now.
        changed |= self._cut_history(before, has_memory=bool(batch.memory))
        if batch.metrics and len(self.attempts) > 1:
            self.script.cut_metrics()
        # Each attempt's average continues from the previous attempt's.
        smoothed_loss: float | None = None
        for attempt in self.attempts.values():
            if attempt.join_rows(smoothed_loss):
                changed |= RunChange.STEPS
            if attempt.curves is not None and attempt.curves.smoothed_loss is not None:
                smoothed_loss = attempt.curves.smoothed_loss
        if changed & (RunChange.STATE | RunChange.MEMORY | RunChange.READINGS):
            self._devices = None
        return changed

    def _attempt(self, number: int) -> Attempt:
        if number not in self.attempts:
            self.attempts[number] = Attempt(number, self._max_rows, curves=self._with_curves)
            # Attempts are read in any order, but all uses rely on the ascending one.
            self.attempts = dict(sorted(self.attempts.items()))
            later = [attempt for attempt in self.attempts.values() if attempt.number > number]
            if restored_steps := [attempt.restored for attempt in later if attempt.restored is not None]:
                self.attempts[number].cut(min(restored_steps))
        return self.attempts[number]

    def _cut_history(self, before: dict[int, int | None], *, has_memory: bool) -> RunChange:
        """Discard steps that a later attempt trains again, once that attempt has reported where it continues.

        `before` maps each attempt to the step after which it continues, as reported before the batch was
        applied (None if not reported). `has_memory` is true if the batch has memory reports. Return the kinds
        of data that changed.
        """
        changed, first_restored = RunChange.NOTHING, None
        for attempt in reversed(self.attempts.values()):
            if first_restored is not None:
                if attempt.cut(first_restored):
                    changed |= ~RunChange.NOTHING
                # The batch may hold memory of steps that were cut before.
                elif has_memory:
                    for device in attempt.devices.values():
                        device.cut(first_restored)
            if attempt.restored is not None:
                first_restored = (
                    attempt.restored if first_restored is None else min(first_restored, attempt.restored)
                )
        if any(attempt.restored != before.get(number) for number, attempt in self.attempts.items()):
            changed |= RunChange.STATE
        return changed

    def _apply_event(self, source: EventPosition, event: events.AnyEvent) -> RunChange:
        if not 0 <= (getattr(event, "rank", None) or 0) < MAX_RANKS:
            self._num_rejected += 1
            return RunChange.NOTHING
        attempt = self._attempt(source.attempt)
        match event:
            case events.RunStarted():
                self._num_rejected += not attempt.start(event)
            case events.Evaluation():
                return RunChange.EVALUATION if attempt.evaluate(event) else RunChange.NOTHING
            case events.Spans():
                if is_valid_share(event):
                    return RunChange.ANATOMY if attempt.add_spans(event) else RunChange.NOTHING
                self._num_rejected += 1
                return RunChange.NOTHING
            case events.Pipeline():
                attempt.pipeline[event.rank] = event
                return RunChange.ANATOMY
            case events.Comm():
                attempt.comm.setdefault(event.rank, {})[event.algorithm] = event.sent_bytes
                if event.sync_s is not None:
                    attempt.sync[event.rank] = event
            case events.ProblemRaised():
                self.raised_problems.append(event.problem)
                attempt.add_problem(source, event.problem)
                # Files are read in any order; the positions restore the order of the run.
                bisect.insort(self._problems, (source, event.problem), key=lambda entry: entry[0])
                return RunChange.PROBLEMS
            case events.Dropped():
                self.dropped.append(event)
                return RunChange.PROBLEMS
            case _:
                attempt.apply_event(source, event)
        return RunChange.STATE

    @property
    def _started_attempts(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts.values() if attempt.started is not None]

    @property
    def _latest_attempt(self) -> Attempt:
        """The newest attempt that has started; an empty attempt if none has."""
        return (self._started_attempts or [self._no_attempt])[-1]

    @property
    def started(self) -> events.RunStarted | None:
        """The start event of the latest attempt."""
        return self._latest_attempt.started

    @property
    def ending(self) -> str | None:
        """Stage of the latest attempt's end: "stopping" once a stop is requested, "ending" once its ranks
        have exited; None before that."""
        attempt = self._latest_attempt
        return "stopping" if attempt.is_stopping else "ending" if attempt.ended is not None else None

    @property
    def first_started(self) -> events.RunStarted | None:
        return next((attempt.started for attempt in self._started_attempts), None)

    @property
    def num_attempts(self) -> int:
        return len(self._started_attempts)

    @property
    def num_rejected(self) -> int:
        """Number of events, and of parts of events, that were rejected as invalid."""
        return self._num_rejected + sum(attempt.joiner.num_refused for attempt in self.attempts.values())

    @property
    def problems(self) -> list[Problem]:
        """Problems in the order in which they were raised; those of earlier attempts are warnings, since the
        run continued after them."""
        latest = self._latest_attempt.number
        problems = [
            (at.attempt < latest, self.attempts[at.attempt].with_host(problem))
            for at, problem in self._problems
        ]
        return [problem.as_warning() if is_past else problem for is_past, problem in problems]

    @property
    def has_moved_on(self) -> bool:
        """Whether the latest attempt's ranks have made progress since a hang was last reported."""
        return self._latest_attempt.has_moved_on

    def with_host(self, problem: Problem) -> Problem:
        """Return a problem of the latest attempt, with the host of the problem's rank added."""
        return self._latest_attempt.with_host(problem)

    @property
    def rank_failures(self) -> list[Problem]:
        """Failures of the latest attempt's ranks, as the ranks observed them."""
        return [failed.problem for _, failed in sorted(self._latest_attempt.rank_failures.items())]

    @property
    def out_of_memory(self) -> dict[int, events.OutOfMemory]:
        """Failed allocations by rank, in the latest attempt in which an allocation failed."""
        return next(
            (attempt.out_of_memory for attempt in reversed(self._started_attempts) if attempt.out_of_memory),
            {},
        )

    @property
    def phases(self) -> dict[int, str]:
        """Current activity of each rank of the latest attempt, until the rank ends."""
        return self._latest_attempt.phases

    @property
    def num_steps_planned(self) -> int | None:
        """The configured number of steps; if epochs are configured, the number that the ranks computed from
        their data."""
        requested = self.started.steps if self.started else None
        counted = (attempt.num_steps_counted for attempt in reversed(self.attempts.values()))
        return requested if requested is not None else next((steps for steps in counted if steps), None)

    @property
    def num_measured_steps(self) -> int:
        """Number of steps in the attempts whose measurements `devices` combines."""
        return sum(len(attempt.table) for attempt in self._measured_attempts)

    @property
    def metrics(self) -> dict[str, ScriptMetric]:
        """Values logged by user code, by name."""
        return self.script.metrics

    def remaining_s(self) -> float | None:
        """Return the seconds left until the last step, at the pace of the newest quarter of the completed
        steps."""
        planned = self.num_steps_planned
        if planned is None or self.step is None:
            return None
        return remaining_s(self._attempts_with_rows(), planned, self.step)

    @property
    def evaluation(self) -> events.Evaluation | None:
        """The evaluation with the highest step number."""
        newest = [
            (attempt.evaluations[-1].step, attempt.number)
            for attempt in self.attempts.values()
            if attempt.evaluations
        ]
        return self.attempts[max(newest)[1]].evaluations[-1] if newest else None

    @property
    def verified(self) -> events.Verified | None:
        """Result of the check that compares the latest attempt's strategy with training on one device."""
        return newest_verified([(attempt.started, attempt.verified) for attempt in self._started_attempts])

    @property
    def _measured_attempts(self) -> list[Attempt]:
        return attempts_measured_together(self._ordered_attempts())

    @property
    def devices(self) -> dict[int, DeviceState]:
        """Devices that the supervisor announced or that events mention, by device index."""
        if self._devices is None:
            zero = self.first_started.started if self.first_started is not None else 0.0
            self._devices = merge_devices(self._measured_attempts, self._histories, zero)
        return self._devices

    @property
    def source(self) -> str | None:
        """Source of the memory values, such as 'measured in rehearsal'; None until memory is reported."""
        return next((device.source for device in self.devices.values() if device.source is not None), None)

    def _newest_of(self, get: Callable[[Attempt], T]) -> T | None:
        """Call `get` on the attempts that `devices` combines, newest first, and return the first value that
        is not empty."""
        return next((value for attempt in reversed(self._measured_attempts) if (value := get(attempt))), None)

    @property
    def comm(self) -> dict[int, dict[str, int]]:
        """Bytes that each rank sends per step, by algorithm."""
        return self._newest_of(lambda attempt: attempt.comm) or {}

    @property
    def sync(self) -> dict[int, events.Comm]:
        return self._newest_of(lambda attempt: attempt.visible(attempt.sync)) or {}

    @property
    def pipeline(self) -> dict[int, events.Pipeline]:
        return self._newest_of(lambda attempt: attempt.visible(attempt.pipeline)) or {}

    @property
    def anatomy(self) -> StepAnatomy | None:
        """The newest complete sampled step that the ledger did not track, else the newest tracked step."""
        return self._newest_of(lambda attempt: attempt.anatomies.last)

    @property
    def bubble(self) -> tuple[float | None, float | None] | None:
        """(measured, theoretical) bubble of a pipeline; None without a pipeline."""
        return measured_and_theoretical_bubble(
            [attempt.anatomies for attempt in self._measured_attempts], self.pipeline.values()
        )

    def imbalance(self) -> Imbalance | None:
        """Compare the fullest device's peak with the median peak of the other devices; None if fewer than two
        peaks are known."""
        return find_imbalance({index: device.peak_bytes for index, device in self.devices.items()})


def read_run_state(
    run: RunDir, *, attempt: int | None = None, max_rows: int | None = MAX_ROWS, curves: bool = False
) -> RunState:
    """Read the state of a run from its directory, as it is now or was when `attempt` ended."""
    state, reader = RunState(max_rows, curves=curves), EventReader(run, last_attempt=attempt)
    for batch in iter_batches(reader):
        state.apply(batch)
    return state
