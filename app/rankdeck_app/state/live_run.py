"""A live run: the state read so far from its directory, updated for a few milliseconds at a time.

A reader thread (run_tail.py) follows the event files. On the UI thread, `drain` applies the thread's updates
to the engine's run state (rankdeck.run.run_state) within a time budget, and returns what changed. Reading
always starts at the beginning of the files, so a restarted app gets every event once. Unknown values are
None.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

from rankdeck.base.errors import Problem
from rankdeck.base.phrases import phrase
from rankdeck.config import RunConfig
from rankdeck.config.script import ScriptConfig
from rankdeck.run.batch import RunChange
from rankdeck.run.devices import DeviceState
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run.problems import reading_problems
from rankdeck.run.run_state import RunState
from rankdeck.run_dir import ExitRecord, RunDir
from rankdeck_app.state.host_liveness import SILENT_AFTER_S, HostLiveness
from rankdeck_app.state.plan_text import FixPlan
from rankdeck_app.state.run_tail import RunTail, TailUpdate
from rankdeck_app.state.run_view import RunView, select_charted_devices
from rankdeck_app.state.time_machine import TimeMachine

if TYPE_CHECKING:
    from rankdeck_app.state.run_copier import RunCopier


class LiveRun(QObject, RunView):
    """A run directory, followed from `start` until `close`."""

    changed = Signal(object)
    """Emitted by `drain` with the `RunChange` flags, if any are set."""
    outcome_changed = Signal(str)
    problem_raised = Signal(object)

    def __init__(self, path: Path, parent: QObject | None = None, *, title: str = "") -> None:
        super().__init__(parent)
        self.run_dir = RunDir(path)
        self.state = RunState()
        self.config: RunConfig | None = None
        self.script: ScriptConfig | None = None
        self._title = title
        self._is_stop_requested = False
        self.outcome: str | None = None
        self.exit_record: ExitRecord | None = None
        self.prediction: PlanLine | None = None
        self.fix_plan: FixPlan | None = None
        self.devices: list[DeviceState] = []
        self.charted_devices: list[DeviceState] = []
        self._num_raised = 0
        self._last_hang_s: int | None = None
        self._reader_problems: list[Problem] = []
        self._tail = RunTail(self.run_dir)
        self.copier: RunCopier | None = None
        self._host_liveness = HostLiveness()
        self.time_machine = TimeMachine(self, self)

    @property
    def now(self) -> float:
        return time.time()

    @property
    def viewed(self) -> RunView:
        """The run at the viewed time: this live run, or a past state of it."""
        return self.time_machine.past_run or self

    def start(self) -> None:
        self._tail.start()

    def close(self) -> None:
        """Stop the reader threads; the state read so far remains available."""
        self.time_machine.close()
        self._tail.stop()
        if self.copier is not None:
            self.copier.close()

    def set_prediction(self, line: PlanLine) -> None:
        """Set the planner's prediction, which is shown next to measurements."""
        self.prediction = line
        self.changed.emit(RunChange.MEMORY | RunChange.STATE)

    def set_fix_plan(self, plan: FixPlan | None) -> None:
        """Show, next to measurements, the memory predicted for the run with a fix; None hides it."""
        if plan != self.fix_plan:
            self.fix_plan = plan
            self.changed.emit(RunChange.MEMORY)

    def mark_stopping(self) -> None:
        """Show the run as stopping before it has answered the stop request."""
        self._is_stop_requested = True
        self.changed.emit(RunChange.STATE)

    def clear_stopping(self) -> None:
        """Stop showing the run as stopping; called when the stop request could not be sent."""
        self._is_stop_requested = False
        self.changed.emit(RunChange.STATE)

    @property
    def has_unread(self) -> bool:
        """Whether the reader has updates that `drain` has not applied yet."""
        return bool(self._tail.updates)

    def drain(self, budget_s: float = 0.004) -> RunChange:
        """Apply the reader's updates until the budget is spent, and return what changed.

        A batch is never split. Applying a batch takes half a millisecond in a live run, and a few
        milliseconds when a million events are read for the first time.
        """
        until = time.perf_counter() + budget_s
        changed = RunChange.NOTHING
        while self._tail.updates:
            changed |= self._apply(self._tail.updates.popleft())
            if time.perf_counter() >= until:
                break
        if changed & (RunChange.STATE | RunChange.MEMORY | RunChange.READINGS):
            self.devices = [device for device in self.state.devices.values() if device.info is not None]
            self.charted_devices = select_charted_devices(self.devices)
            self._host_liveness.update(self.devices)
        # Checked in every call, because silence produces no events.
        if (silent := self._find_silent_hosts()) != self.silent_hosts:
            self.silent_hosts = silent
            changed |= RunChange.STATE | RunChange.MEMORY
        if (still_s := self._hang_s()) != self._last_hang_s:
            self._last_hang_s = still_s
            changed |= RunChange.STATE | RunChange.PROBLEMS
        if changed:
            self.changed.emit(changed)
        return changed

    def _hang_s(self) -> int | None:
        """Return the whole seconds since the current hang was reported; None without a hang."""
        still = self.hang
        return None if still is None else int(self.now - still.reported_at)

    def _find_silent_hosts(self) -> dict[str, int]:
        if not self.is_live:
            return {}
        # While a copy gets no answer, all of the run's hosts seem silent, so only the copied host is named.
        if self.copier is not None and self.copier.silence_s >= SILENT_AFTER_S:
            return {self.copier.host: int(self.copier.silence_s)}
        return self._host_liveness.silent_hosts()

    def _apply(self, passed: TailUpdate) -> RunChange:
        changed = self.state.apply(passed.batch)
        if passed.title is not None:
            self._title = passed.title
            changed |= RunChange.STATE
        if passed.config is not None:
            self.config, self.prediction = passed.config, None  # each attempt has its own
            changed |= RunChange.STATE | RunChange.MEMORY
        if passed.script is not None:
            self.script = passed.script
            changed |= RunChange.STATE
        if changed & RunChange.PROBLEMS:
            self._emit_problems()
        if passed.outcome is not None:
            self.outcome, self.exit_record = passed.outcome, passed.exit_record
            # Otherwise a resumed attempt would be shown as stopping from its start.
            self._is_stop_requested = self._is_stop_requested and self.is_live
            self.outcome_changed.emit(passed.outcome)
            changed |= RunChange.STATE
        return changed

    def _emit_problems(self) -> None:
        """Emit new problems. Event lines that were lost are counted in one problem, and unreadable event
        lines in another."""
        reader_problems = [
            Problem(
                code="dropped-events",
                message=phrase(
                    "Event lines that could not be written: {lines} ({reason}).",
                    lines=dropped.lines,
                    reason=dropped.reason,
                ),
                advice=phrase("Free some space on the disk where the run is stored."),
                severity="warning",
            )
            for dropped in self.state.dropped
        ]
        reader_problems += reading_problems(self.state.counts, self.state.num_rejected)
        known_codes = [problem.code for problem in self._reader_problems]
        raised = self.state.raised_problems[self._num_raised :]
        self._num_raised = len(self.state.raised_problems)
        self._reader_problems = reader_problems
        for problem in raised + [problem for problem in reader_problems if problem.code not in known_codes]:
            self.problem_raised.emit(problem)
