"""One attempt of a run: everything that its files say, whatever order they are read in.

Nothing here depends on another attempt but for `cut`: what a later attempt trains again is history, and
forgotten. run_state.py puts attempts together.
"""

from __future__ import annotations

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
    """What one attempt's files say. `last_step` is the last step that is not history; None is all of them."""

    def __init__(self, number: int, max_rows: int | None = MAX_ROWS, *, curves: bool = True) -> None:
        self.number = number
        self.last_step: int | None = None
        self.started: events.RunStarted | None = None
        self.is_stopping = False
        self.ended: events.RunEnded | None = None
        self.last_event_time = 0.0
        """When the newest of its events was written (Unix seconds)."""
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
        """When a rank last reported another phase, an evaluation or a checkpoint (Unix seconds)."""
        self.data: events.Phase | None = None
        self.rank_failures: dict[int, events.RankFailed] = {}
        self.out_of_memory: dict[int, events.OutOfMemory] = {}
        self.saved_step: int | None = None
        self.num_saves = 0
        self.saves_s = 0.0
        """Of all checkpoints that were written on schedule."""
        self.comm: dict[int, dict[str, int]] = {}
        self.sync: dict[int, events.Comm] = {}
        self.pipeline: dict[int, events.Pipeline] = {}
        self.anatomies = AnatomyCollector()
        self.scaling = LossScaleHistory()
        self.joiner: StepJoiner | ScriptStepJoiner = StepJoiner()
        self._early_blocks: list[StepBlock] = []
        """Steps that were read before it was known what kind of run they are of."""
        self.trained_steps = Series(32_768, 4_096, keyed=True)
        """Its steps over the Unix times of their ends, also those that a later attempt trained again."""
        self.script = ScriptReports(metrics=LoggedMetrics(MAX_POINTS if max_rows is not None else None))

    @property
    def restored(self) -> int | None:
        """The step that it went on after; None while it has not restored anything."""
        return self.joiner.restored

    @property
    def hang(self) -> HangWarning | None:
        """What was said of ranks that make no progress now."""
        if self._hang is None or self.ended is not None or self.is_stopping:
            return None
        stepped_at = self.table.row(-1).ended if self.table.rows.shape[1] else None
        has_moved = max(self._progress_time, stepped_at or 0.0) > self._hang.reported_at
        return None if has_moved else self._hang

    def add_problem(self, source: EventPosition, problem: Problem) -> None:
        """A problem was raised."""
        if is_hang_problem(problem) and (self._hang is None or self._hang.reported_at <= source.t):
            self._hang = HangWarning(problem, source.t)

    def setup(self) -> object:
        """What must be alike for two attempts to be measured together."""
        started = self.started
        return None if started is None else (started.strategy, started.options, started.devices)

    def device(self, index: int) -> AttemptDevice:
        if index not in self.devices:
            self.devices[index] = AttemptDevice()
        return self.devices[index]

    def add_steps(self, block: StepBlock) -> None:
        if self.started is None and len(self._early_blocks) < _MAX_EARLY_BLOCKS:
            self._early_blocks.append(block)
        self.joiner.add(block)

    def start(self, event: events.RunStarted) -> bool:
        """The supervisor's announcement; False where it makes no sense."""
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
        """With the host of its rank, in a run of several."""
        devices = [] if self.started is None or problem.rank is None else self.started.devices
        host = next((one.host for one in devices if one.index == problem.rank), "")
        return msgspec.structs.replace(problem, host=host) if host else problem

    @property
    def script_joiner(self) -> ScriptStepJoiner | None:
        """The steps as they were observed in a script; None of an attempt whose ranks report them."""
        return self.joiner if isinstance(self.joiner, ScriptStepJoiner) else None

    def samples_per_step(self) -> float:
        """Of a step that does not say how many it had; NaN where nobody knows. A script's loaders tell most
        steps, or none."""
        if self.started is not None and self.started.global_batch:
            return float(self.started.global_batch)
        samples = self.table.column("samples")
        known = samples[np.isfinite(samples)]
        return float(known.mean()) if len(known) > len(samples) / 2 else np.nan

    def _find_standalone_ranks(self) -> None:
        """Ranks of a script that have no place among those of the run, nor a process group."""
        if self.started is not None and self.script_joiner is not None:
            self.script_joiner.standalone = {
                rank
                for rank, told in self.script.ranks.items()
                if rank >= self.started.world_size and not told.world_size
            }

    def _switch_to_script(self) -> None:
        joiner, self.joiner = self.joiner, ScriptStepJoiner()
        if joiner.restored is not None:
            self.joiner.restore(joiner.restored)
        for block in self._early_blocks:
            self.joiner.add(block)
        self.table = StepTable(self._max_rows, SCRIPT_COLUMNS)

    def join_rows(self, loss_before: float | None = None) -> bool:
        """Make rows of the steps that are complete by now; whether there are any. `loss_before` is the
        smoothed loss where the attempts before stand."""
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
        is_other = self.curves is not None and self.curves.loss_before != loss_before
        if self._with_curves and len(self.table) and (self.curves is None or is_other):
            self._redraw_curves(loss_before)
        if isinstance(self.joiner, StepJoiner) and isinstance(self.curves, StepCurves):
            self.curves.append_norms(self.joiner.take_norms())
        return bool(complete)

    def _record_step_times(self, rows: Floats) -> None:
        if self._with_curves and rows.shape[1]:
            self.trained_steps.cut(rows[0, 0] - 1)
            steps, ended = rows[0], rows[5]
            has_ended = np.isfinite(ended)
            self.trained_steps.append_many(ended[has_ended], steps[has_ended], steps[has_ended])

    def _discard_rows(self, first: int) -> None:
        """Make room for rows from step `first` on, where there are some already: a script's rows change when
        another rank tells late what it did."""
        held = self.table.column("step")
        if not len(held) or held[-1] < first:
            return
        self.table.cut(first - 1)
        if self.curves is not None:
            kept = self.curves.rewind(first - 1)
            if kept is None:
                self.curves = None
            else:
                again = self.table.rows[:, np.searchsorted(self.table.column("step"), kept, side="right") :]
                if again.shape[1]:
                    self.curves.append(again)

    def _redraw_curves(self, loss_before: float | None) -> None:
        """The curves of all rows, unless the oldest are gone: then the average has long forgotten how it
        began."""
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
                self.curves.norms = before.norms  # rows do not hold them

    def evaluate(self, event: events.Evaluation) -> bool:
        if self._is_history(event.step):
            return False
        self._progress_time = max(self._progress_time, event.t)
        self.evaluations.append(event)
        if event.loss is not None:
            self.held_out.append_many((event.step,), (event.loss,))
        return True

    def add_spans(self, event: events.Spans) -> bool:
        """Whether it completed a step; its columns fit."""
        return not self._is_history(event.step) and self.anatomies.add(event) is not None

    def visible(self, newest: Mapping[int, StepEvent]) -> dict[int, StepEvent]:
        """The newest events by rank, without those of later steps than `last_step`."""
        return {rank: event for rank, event in newest.items() if not self._is_history(event.step)}

    def _is_history(self, step: int) -> bool:
        return self.last_step is not None and step > self.last_step

    def cut(self, last: int) -> bool:
        """A later attempt goes on after step `last`; whether that makes history of anything new."""
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
        """What needs no answer."""
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
            case events.Collectives():
                self.script.add_collectives(event)
            case events.Phase():
                self.phases[event.rank] = event.phase
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
    """When each of a run's attempts ran. One that has not told its end goes on if it is the newest of a run
    that is not over, and else ended with the last that it told."""
    announced = [(one, one.started.started) for one in attempts if one.started is not None]
    alive = None if is_over or not announced else announced[-1][0]
    return [
        RunInterval(
            began, one.ended.t if one.ended is not None else None if one is alive else one.last_event_time
        )
        for one, began in announced
    ]
