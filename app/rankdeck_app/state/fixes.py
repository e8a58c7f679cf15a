"""Fixes of runs, as the planner predicts them: one that a person looks at, and all of a run out of memory.

A fix is planned when a person looks at it, before it is taken: the planner is asked for the run's
configuration with the changes made, on the run's own devices, and its answer is shown beside the live bars of
that run. One fix is looked at at a time.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer, Signal

from rankdeck.base.errors import ConfigError
from rankdeck.config import RunConfig
from rankdeck.diagnose.fixes import Changes, fix_name, with_changes
from rankdeck.diagnose.out_of_memory import RanOut, ran_out
from rankdeck.run.batch import Changed
from rankdeck.run.plan_lines import PlanLine
from rankdeck_app.language import in_words, tr
from rankdeck_app.state.plan_process import Asker, Planner
from rankdeck_app.state.plan_words import FixPlan, reason_text

if TYPE_CHECKING:
    from rankdeck_app.state.live_run import LiveRun

_TELLING = Changed.STATE | Changed.PROBLEMS | Changed.MEMORY
REST_MS = 250
"""So long a pointer rests before a plan is asked for: it may only be on its way."""


class FixPlans(Asker):
    """`show` and `hide` change what one LiveRun shows."""

    def __init__(self, planner: Planner, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._planner = planner
        self._run: LiveRun | None = None
        self._changes: Changes = {}
        self._known: dict[str, FixPlan] = {}
        self._rest = QTimer(self, interval=REST_MS, singleShot=True)
        self._rest.timeout.connect(self._look)

    def show(self, run: LiveRun, changes: Changes) -> None:
        """A fix of a run is looked at."""
        if self._run is not run:
            self.hide()
        self._run, self._changes = run, changes
        self._rest.start()

    def hide(self) -> None:
        """No fix is looked at any more."""
        self._rest.stop()
        run, self._run = self._run, None
        if run is not None:
            run.show_fix_plan(None)

    def forget(self, run: LiveRun) -> None:
        """The run is closed."""
        if self._run is run:
            self._rest.stop()
            self._run = None

    def close(self) -> None:
        self._rest.stop()
        self._run = None
        self._end_processes()

    def _look(self) -> None:
        run = self._run
        if run is None or run.config is None:
            return
        plan = FixPlan(fix_name(self._changes))
        try:
            config = with_changes(run.config, self._changes)
        except ConfigError as error:
            run.show_fix_plan(replace(plan, why_not=in_words(error.problem).message))
            return
        ask = partial(self._plan, run, plan, config)
        self._planner.look_at_trust(config, ask, key=self, run=run.run.path)

    def _plan(self, run: LiveRun, plan: FixPlan, config: RunConfig, needs_trust: bool) -> None:
        if run is not self._run:
            return
        key = f"{_devices(run)}\n{config.to_toml()}"
        if needs_trust:
            run.show_fix_plan(replace(plan, why_not=tr("its code is not trusted")))
        elif key in self._known:
            run.show_fix_plan(self._known[key])
        else:
            run.show_fix_plan(plan)
            self._ask(config, key, plan)

    def _ask(self, config: RunConfig, key: str, plan: FixPlan) -> None:
        assert self._run is not None
        self._drop_process()
        process = self._process = self._planner.ask(config, config.strategy.use, _devices(self._run), self)
        process.line_came.connect(lambda line: self._take(key, plan, line))
        process.ended.connect(lambda reason: self._ended(key, plan, reason))
        process.start()

    def _take(self, key: str, plan: FixPlan, line: PlanLine) -> None:
        """The changed configuration's own row; the others are other options of its strategy."""
        if line.configured and not line.changes and key not in self._known:
            why_not = "" if line.devices else reason_text(line) or tr("the planner does not know")
            self._tell(key, replace(plan, line=line if line.devices else None, why_not=why_not))

    def _ended(self, key: str, plan: FixPlan, reason: str) -> None:
        self._process = None
        if key not in self._known:
            self._tell(key, replace(plan, why_not=reason or tr("the planner does not know")), keep=False)

    def _tell(self, key: str, plan: FixPlan, *, keep: bool = True) -> None:
        if keep:
            self._known[key] = plan
        if self._run is not None and fix_name(self._changes) == plan.text:
            self._run.show_fix_plan(plan)


def _devices(run: LiveRun) -> str | None:
    """The run's own, as the planner is told: what it would take by itself may be others by now."""
    uuids = [device.uuid for device in run.devices if device.uuid]
    if run.has_gpus:
        return f"gpu:{','.join(uuids)}" if uuids else None
    return f"cpu:{len(run.devices)}" if run.devices else None


# Why a run ran out of memory: what the run reported, and the planner's fixes.
#
# The facts are made anew when the run reports more; the planner is asked once, by `rankdeck why`, which keeps
# what it finds in the run's directory.


class MemoryWhy(Asker):
    """`changed`: the facts, the fixes or `state` (what the planner does now, or why it does not) are new."""

    changed = Signal()

    def __init__(self, run: LiveRun, planner: Planner, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.run = run
        self.ran_out: RanOut | None = None
        self.state = ""
        self._planner = planner
        self._lines: list[PlanLine] = []
        self._is_stale, self._was_asked = True, False
        run.changed.connect(self._note)

    def _note(self, changed: Changed) -> None:
        self._is_stale = self._is_stale or bool(changed & _TELLING)

    def look(self) -> None:
        """Take what is new; the planner is asked once it is known that memory ran out."""
        self.run.drain()
        if not self._is_stale or self.run.outcome is None:
            return
        self._is_stale = False
        capacity = None if self.run.config is None else self.run.config.capacity_bytes
        self.ran_out = ran_out(self.run.fold, capacity)
        if self.ran_out is not None and not self._was_asked and self.run.config is not None:
            self.state = tr("Looking for ways out: every strategy is planned…")
            self._planner.look_at_trust(self.run.config, self._ask, key=self, run=self.run.run.path)
        self._tell()

    def _ask(self, needs_trust: bool) -> None:
        """Ask the planner, unless that would run code that nobody trusts."""
        if self._was_asked:
            return
        if needs_trust:
            self.state = tr("Ways out are planned once the run's own code is trusted: Resume asks for it.")
            self._tell()
            return
        self._was_asked = True
        self._process = self._planner.fixes(self.run.run.path, self)
        self._process.line_came.connect(self._take)
        self._process.ended.connect(self._ended)
        self._process.start()

    def close(self) -> None:
        self._was_asked = True
        self._end_processes()

    def _take(self, line: PlanLine) -> None:
        self._lines.append(line)
        self._tell()

    def _ended(self, reason: str) -> None:
        self._process = None
        self.state = reason
        self._tell()

    def _tell(self) -> None:
        if self.ran_out is not None and self._lines:
            self.ran_out = self.ran_out.with_fixes(self._lines)
        self.changed.emit()
