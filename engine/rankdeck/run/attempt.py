"""Store the state of one attempt of a run, built from the attempt's files, which may be read in any order.

Only `cut` depends on another attempt: steps that a later attempt trains again are superseded and discarded.
run_state.py combines the attempts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec
import numpy as np

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.run.anatomy import AnatomyCollector
from rankdeck.run.batch import EventPosition
from rankdeck.run.bounds import MAX_RANKS
from rankdeck.run.curves import ScriptCurves, StepCurves
from rankdeck.run.devices import AttemptDevice
from rankdeck.run.hang_warning import HangWarning, is_hang_problem
from rankdeck.run.metrics import MAX_POINTS, LoggedMetrics
from rankdeck.run.run_intervals import RunInterval
from rankdeck.run.scaling import LossScaleHistory
from rankdeck.run.script_steps import ScriptReports, ScriptStepJoiner
from rankdeck.run.series import Floats, Series
from rankdeck.run.step_blocks import StepBlock, StepJoiner
from rankdeck.run.step_table import MAX_ROWS, SCRIPT_COLUMNS, StepTable

_MAX_EVALUATIONS = 4096
_MAX_EARLY_BLOCKS = 4096
StepEvent = TypeVar("StepEvent", events.Comm, events.Pipeline)


class Attempt:
    """State of one attempt.

    `last_step` is the last step that no later attempt trained again; None means that all steps are valid.
    """

    def __init__(self, number: int, max_rows: int | None = MAX_ROWS, *, curves: bool = True) -> None:
        self.number = number
        self.last_step: int | None = None
        self.started: events.RunStarted | None = None
        self.is_stopping = False
        self.ended: events.RunEnded | None = None
        self.last_event_time = 0.0
        """Time at which the attempt's newest event was written (Unix seconds)."""
        self._max_rows = max_rows
        self.table = StepTable(max_rows)
        self.curves: StepCurves | ScriptCurves | None = None
        self._with_curves = curves
        self.held_out = Series(4_096, 1_024)
        self.evaluations: deque[events.Evaluation] = deque(maxlen=_MAX_EVALUATIONS)
        self.devices: dict[int, AttemptDevice] = {}
        self.phases: dict[int, str] = {}
        self.verified: events.Verified | None = None
        self.num_steps_counted: int | None = None
        self._hang: HangWarning | None = None
        self._progress_time = 0.0
        """Time at which a rank last reported a new phase, an evaluation or a checkpoint (Unix seconds)."""
        self.data: events.Phase | None = None
        self.rank_failures: dict[int, events.RankFailed] = {}
        self.out_of_memory: dict[int, events.OutOfMemory] = {}
        self.saved_step: int | None = None
        self.num_saves = 0
        self.saves_s = 0.0
        """Total time spent writing scheduled checkpoints."""
        self.comm: dict[int, dict[str, int]] = {}
        self.sync: dict[int, events.Comm] = {}
        self.pipeline: dict[int, events.Pipeline] = {}
        self.anatomies = AnatomyCollector()
        self.scaling = LossScaleHistory()
        self.joiner: StepJoiner | ScriptStepJoiner = StepJoiner()
        self._early_blocks: list[StepBlock] = []
        """Steps read before the supervisor's start event, which shows whether the run is a user script."""
        self.trained_steps = Series(32_768, 4_096, keyed=True)
        """Steps by the Unix time at which they ended, including steps that a later attempt trained again."""
        self.script = ScriptReports(metrics=LoggedMetrics(MAX_POINTS if max_rows is not None else None))

    @property
    def restored(self) -> int | None:
        """The step after which the attempt continues; None if it has not restored a checkpoint."""
        return self.joiner.restored

    @property
    def hang(self) -> HangWarning | None:
        """The warning about ranks that are currently making no progress."""
        if self.ended is not None or self.is_stopping or self.has_moved_on:
            return None
        return self._hang

    @property
    def has_moved_on(self) -> bool:
        """Whether the ranks have made progress since a hang was last reported."""
        stepped_at = self.table.row(-1).ended if self.table.rows.shape[1] else None
        reported_at = math.inf if self._hang is None else self._hang.reported_at
        return max(self._progress_time, stepped_at or 0.0) > reported_at

    def add_problem(self, source: EventPosition, problem: Problem) -> None:
        """Record `problem`, reported at `source`, if it warns of a hang and no newer warning is recorded."""
        # Files are read in any order, so an older warning must not replace a newer one.
        if is_hang_problem(problem) and (self._hang is None or self._hang.reported_at <= source.t):
            self._hang = HangWarning(problem, source.t)

    def setup(self) -> object:
        """Return the settings that two attempts must share for their measurements to be combined."""
        started = self.started
        return None if started is None else (started.strategy, started.options, started.devices)

    def device(self, index: int) -> AttemptDevice:
        if index not in self.devices:
            self.devices[index] = AttemptDevice()
        return self.devices[index]

    def add_steps(self, block: StepBlock) -> None:
        # The ranks' files may be read before the supervisor's. If it is a script, another joiner gets these
        # blocks.
        if self.started is None and len(self._early_blocks) < _MAX_EARLY_BLOCKS:
            self._early_blocks.append(block)
        self.joiner.add(block)

    def start(self, event: events.RunStarted) -> bool:
        """Apply the supervisor's start event; return False if it is invalid."""
        if not 1 <= event.world_size < MAX_RANKS:
            return False
        if event.source == events.SCRIPT:
            if self.started is None:
                self._switch_to_script()
        elif isinstance(self.joiner, StepJoiner):
            self.joiner.world_size = event.world_size
        self._early_blocks.clear()
        self.started = event
        self._find_standalone_ranks()
        self.anatomies.set_world_size(event.world_size)
        return True

    def with_host(self, problem: Problem) -> Problem:
        """Return the problem with its rank's host added if the run is on several hosts."""
        devices = [] if self.started is None or problem.rank is None else self.started.devices
        host = next((device.host for device in devices if device.index == problem.rank), "")
        return msgspec.structs.replace(problem, host=host) if host else problem

    @property
    def script_joiner(self) -> ScriptStepJoiner | None:
        """The joiner for an observed script's steps; None if the ranks of the attempt report complete steps
        themselves."""
        return self.joiner if isinstance(self.joiner, ScriptStepJoiner) else None

    def samples_per_step(self) -> float:
        """Return the number of samples to assume for a step that reports none; NaN if unknown.

        For a script, this is the mean of the known numbers, if most steps report a number.
        """
        if self.started is not None and self.started.global_batch:
            return float(self.started.global_batch)
        samples = self.table.column("samples")
        finite_samples = samples[np.isfinite(samples)]
        return float(finite_samples.mean()) if len(finite_samples) > len(samples) / 2 else np.nan

    def _find_standalone_ranks(self) -> None:
        """Pass to `script_joiner` the ranks that have no process group and are numbered `world_size` or
        higher."""
        if self.started is not None and self.script_joiner is not None:
            self.script_joiner.standalone = {
                rank
                for rank, event in self.script.ranks.items()
                if rank >= self.started.world_size and not event.world_size
            }

    def _switch_to_script(self) -> None:
        joiner, self.joiner = self.joiner, ScriptStepJoiner()
        if joiner.restored is not None:
            self.joiner.restore(joiner.restored)
        for block in self._early_blocks:
            self.joiner.add(block)
        self.table = StepTable(self._max_rows, SCRIPT_COLUMNS)

    def join_rows(self, loss_before: float | None = None) -> bool:
        """Append rows of the steps that are now complete; return whether anything was appended.

        `loss_before` is the smoothed loss with which the previous attempt ended.
        """
        complete = self.joiner.join()
        for rows in complete:
            self._record_step_times(rows)
            if self.last_step is not None:
                rows = rows[:, : int(np.searchsorted(rows[0], self.last_step, side="right"))]
            if rows.shape[1]:
                self._discard_rows(int(rows[0, 0]))
                self.table.append(rows)
                if self.curves is not None:
                    self.curves.append(rows)
        # Reading or cutting an earlier attempt changes the loss from which this one's average continues.
        is_other = self.curves is not None and self.curves.loss_before != loss_before
        if self._with_curves and len(self.table) and (self.curves is None or is_other):
            self._redraw_curves(loss_before)
        if isinstance(self.joiner, StepJoiner) and isinstance(self.curves, StepCurves):
            self.curves.append_norms(self.joiner.take_norms())
        return bool(complete)

    def _record_step_times(self, rows: Floats) -> None:
        if self._with_curves and rows.shape[1]:
            # A script's rows come again when another rank reports late.
            self.trained_steps.cut(rows[0, 0] - 1)
            steps, ended = rows[0], rows[5]
            has_ended = np.isfinite(ended)
            self.trained_steps.append_many(ended[has_ended], steps[has_ended], steps[has_ended])

    def _discard_rows(self, first: int) -> None:
        """Discard existing rows from step `first` on, so that new rows can be appended.

        A script's rows change when a rank reports its steps late.
        """
        steps = self.table.column("step")
        if not len(steps) or steps[-1] < first:
            return
        self.table.cut(first - 1)
        if self.curves is not None:
            last_step = self.curves.rewind(first - 1)
            if last_step is None:
                self.curves = None
            else:
                again = self.table.rows[
                    :, np.searchsorted(self.table.column("step"), last_step, side="right") :
                ]
                if again.shape[1]:
                    self.curves.append(again)

    def _redraw_curves(self, loss_before: float | None) -> None:
        """Rebuild the curves from the rows in memory; `loss_before` is the previous attempt's smoothed loss.

        Existing curves do not change if rows have been dropped: after that many rows, `loss_before` no
        longer affects the smoothed loss.
        """
        if self.curves is None or not self.table.num_dropped:
            num_steps = self.started.steps if self.started else None
            after, before = self.restored or 0, self.curves
            self.curves = (
                ScriptCurves(after, loss_before)
                if self.script_joiner is not None
                else StepCurves(num_steps, after, loss_before)
            )
            self.curves.append(self.table.rows)
            if isinstance(before, StepCurves) and isinstance(self.curves, StepCurves):
                self.curves.norms = before.norms  # rows have no norms of a configured run

    def evaluate(self, event: events.Evaluation) -> bool:
        if self._is_history(event.step):
            return False
        self._progress_time = max(self._progress_time, event.t)
        self.evaluations.append(event)
        if event.loss is not None:
            self.held_out.append_many((event.step,), (event.loss,))
        return True

    def add_spans(self, event: events.Spans) -> bool:
        """Add spans whose columns are valid; return whether they completed a step."""
        return not self._is_history(event.step) and self.anatomies.add(event) is not None

    def visible(self, newest: Mapping[int, StepEvent]) -> dict[int, StepEvent]:
        """Return the events in `newest`, by rank, except events of steps after `last_step`."""
        return {rank: event for rank, event in newest.items() if not self._is_history(event.step)}

    def _is_history(self, step: int) -> bool:
        return self.last_step is not None and step > self.last_step

    def cut(self, last: int) -> bool:
        """Mark the steps after `last` as superseded, because a later attempt continues after that step.

        Return whether that changes anything.
        """
        if self.last_step is not None and self.last_step <= last:
            return False
        self.last_step = last
        self.table.cut(last)
        self.held_out.cut(last)
        while self.evaluations and self.evaluations[-1].step > last:
            self.evaluations.pop()
        for device in self.devices.values():
            device.cut(last)
        self.anatomies.cut(last)
        self.scaling.cut(last)
        if self.curves is not None:
            self.curves.cut(last)
        return True

    def apply_event(self, source: EventPosition, event: events.AnyEvent) -> None:
        """Apply an event of a type that `RunState` does not handle itself."""
        if isinstance(event, events.Phase | events.CheckpointSaved):
            self._progress_time = max(self._progress_time, event.t)
        match event:
            case events.Stopping():
                self.is_stopping = True
            case events.RunEnded():
                self.ended = event
            case events.RankStarted():
                self.phases[event.rank] = event.phase
                self.script.ranks[event.rank] = event
                self._find_standalone_ranks()
            case events.LossScale():
                self.scaling.add_event(event, self.last_step)
            case events.Observed():
                self.script.observations[event.rank] = event
            case events.Anomaly():
                self.script.add_anomaly(event)
            case events.WeightDigests():
                self.script.weights.add(event, 0 if self.started is None else self.started.world_size)
            case events.Collectives():
                self.script.add_collectives(event)
            case events.Phase():
                self.phases[event.rank] = event.phase
                # Only the phase after which the data is known has a number of steps.
                self.num_steps_counted = event.steps or self.num_steps_counted
                self.data = self.data if event.samples is None else event
            case events.Verified():
                self.verified = event
            case events.RankEnded():
                self.phases.pop(event.rank, None)
            case events.RankFailed():
                self.rank_failures[event.rank] = event
            case events.CheckpointSaved():
                self.saved_step = event.step
                if event.reason == "schedule":
                    self.num_saves, self.saves_s = self.num_saves + 1, self.saves_s + event.seconds
            case events.OutOfMemory():
                self.out_of_memory[event.rank] = event
            case events.Restored():
                self.joiner.restore(max(0, event.step))
            case events.DeviceNotice() if event.device is not None and event.code in ("lost", "back"):
                self.device(event.device).lost_at = event.t if event.code == "lost" else None


def run_intervals(attempts: Iterable[Attempt], *, is_over: bool) -> list[RunInterval]:
    """Return the interval in which each attempt of a run ran.

    An attempt without a RunEnded event is still running if it is the newest of a run that is not over.
    Otherwise it ended with its last event.
    """
    announced = [(attempt, attempt.started.started) for attempt in attempts if attempt.started is not None]
    alive = None if is_over or not announced else announced[-1][0]
    return [
        RunInterval(
            start_time,
            attempt.ended.t
            if attempt.ended is not None
            else None
            if attempt is alive
            else attempt.last_event_time,
        )
        for attempt, start_time in announced
    ]
