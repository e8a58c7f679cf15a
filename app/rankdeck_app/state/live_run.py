"""A run as the app sees it: what its directory says so far, brought up to date a few milliseconds at a time.

A reader thread (run_tail.py) follows the event files; `drain` puts what it has read into the engine's fold
(rankdeck.run.fold), on the UI's thread and within a budget, and says what changed. Reading always begins at
the start of the files, so a restarted app sees every event once. What is not known is None.
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
from rankdeck.run.batch import Changed
from rankdeck.run.devices import DeviceFigures
from rankdeck.run.fold import Fold
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run.problems import reading_problems
from rankdeck.rundir import End, RunDir
from rankdeck_app.state.heard import OLD_S, Heard
from rankdeck_app.state.plan_words import FixPlan
from rankdeck_app.state.run_answers import RunAnswers, rows_of
from rankdeck_app.state.run_tail import Passed, RunTail
from rankdeck_app.state.time_machine import TimeMachine

if TYPE_CHECKING:
    from rankdeck_app.state.copying import Copying


class LiveRun(QObject, RunAnswers):
    """One run directory, followed until `close`. Nothing is read before `start`."""

    changed = Signal(object)
    """Emitted by `drain` with the `Changed` flags, when there are any."""
    outcome_changed = Signal(str)
    problem_raised = Signal(object)

    def __init__(self, path: Path, parent: QObject | None = None, *, title: str = "") -> None:
        super().__init__(parent)
        self.run = RunDir(path)
        self.fold = Fold()
        self.config: RunConfig | None = None
        self.script: ScriptConfig | None = None
        self._title = title
        self._is_asked_to_stop = False
        self.outcome: str | None = None
        self.end: End | None = None
        self.prediction: PlanLine | None = None
        self.fix_plan: FixPlan | None = None
        self.devices: list[DeviceFigures] = []
        self.rows: list[DeviceFigures] = []
        self._num_raised = 0
        self._told_still_s: int | None = None
        self._own_problems: list[Problem] = []
        self._tail = RunTail(self.run)
        self.copying: Copying | None = None
        self._heard = Heard()
        self.time = TimeMachine(self, self)

    @property
    def now(self) -> float:
        return time.time()

    @property
    def shown(self) -> RunAnswers:
        """The run at the moment that somebody looks at: this one, or its past."""
        return self.time.past or self

    def start(self) -> None:
        self._tail.start()

    def close(self) -> None:
        """Ends the reader threads. What was read stays."""
        self.time.close()
        self._tail.stop()
        if self.copying is not None:
            self.copying.close()

    def predict(self, line: PlanLine) -> None:
        """What the planner said of this run; it stands beside what is measured."""
        self.prediction = line
        self.changed.emit(Changed.MEMORY | Changed.STATE)

    def show_fix_plan(self, plan: FixPlan | None) -> None:
        """Show what a fix would make of its memory beside what is measured, until None takes it away."""
        if plan != self.fix_plan:
            self.fix_plan = plan
            self.changed.emit(Changed.MEMORY)

    def expect_stop(self) -> None:
        """It is being asked to stop: said at once, before it answers."""
        self._is_asked_to_stop = True
        self.changed.emit(Changed.STATE)

    def expect_no_stop(self) -> None:
        """It could not be asked."""
        self._is_asked_to_stop = False
        self.changed.emit(Changed.STATE)

    @property
    def has_more(self) -> bool:
        """Whether the reader has something that `drain` has not taken yet."""
        return bool(self._tail.batches)

    def drain(self, budget_s: float = 0.004) -> Changed:
        """Takes what the reader has, until the budget is spent; says what changed.

        A batch is never split: one of a live run costs half a millisecond, one of a million events that are
        read for the first time a few.
        """
        until = time.perf_counter() + budget_s
        changed = Changed.NOTHING
        while self._tail.batches:
            changed |= self._take(self._tail.batches.popleft())
            if time.perf_counter() >= until:
                break
        if changed & (Changed.STATE | Changed.MEMORY | Changed.READINGS):
            self.devices = [device for device in self.fold.devices.values() if device.info is not None]
            self.rows = rows_of(self.devices)
            self._heard.take(self.devices)
        if (silent := self._silent()) != self.silent_hosts:
            self.silent_hosts = silent
            changed |= Changed.STATE | Changed.MEMORY
        if (still_s := self._still_s()) != self._told_still_s:
            self._told_still_s = still_s
            changed |= Changed.STATE | Changed.PROBLEMS
        if changed:
            self.changed.emit(changed)
        return changed

    def _still_s(self) -> int | None:
        """Whole seconds since a standstill was reported that lasts."""
        still = self.standstill
        return None if still is None else int(self.now - still.reported_at)

    def _silent(self) -> dict[str, int]:
        if not self.is_live:
            return {}
        if self.copying is not None and self.copying.silent_s >= OLD_S:
            return {self.copying.host: int(self.copying.silent_s)}
        return self._heard.silent()

    def _take(self, passed: Passed) -> Changed:
        changed = self.fold.apply(passed.batch)
        if passed.title is not None:
            self._title = passed.title
            changed |= Changed.STATE
        if passed.config is not None:
            self.config, self.prediction = passed.config, None  # each attempt has its own
            changed |= Changed.STATE | Changed.MEMORY
        if passed.script is not None:
            self.script = passed.script
            changed |= Changed.STATE
        if changed & Changed.PROBLEMS:
            self._tell_problems()
        if passed.outcome is not None:
            self.outcome, self.end = passed.outcome, passed.end
            self._is_asked_to_stop = self._is_asked_to_stop and self.is_live
            self.outcome_changed.emit(passed.outcome)
            changed |= Changed.STATE
        return changed

    def _tell_problems(self) -> None:
        """Emit what is new; what could not be written or read is one problem each, whose number grows."""
        found = [
            Problem(
                code="dropped-events",
                message=phrase(
                    "{lines} lines of events could not be written: {reason}.",
                    lines=dropped.lines,
                    reason=dropped.reason,
                ),
                advice=phrase("Free space on the disk that holds the run."),
                severity="warning",
            )
            for dropped in self.fold.dropped
        ]
        found += reading_problems(self.fold.counts, self.fold.refused)
        known = [problem.code for problem in self._own_problems]
        raised = self.fold.raised[self._num_raised :]
        self._num_raised = len(self.fold.raised)
        self._own_problems = found
        for problem in raised + [problem for problem in found if problem.code not in known]:
            self.problem_raised.emit(problem)
