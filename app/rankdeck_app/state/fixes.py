"""Plans for fixes to a run: the fix under the pointer, and all fixes for a run that ran out of memory.

A fix is planned when the user points at it, before it is applied: the planner gets the run's configuration
with the fix's changes and the run's own devices, and its prediction is shown next to the run's memory bars.
Only one fix is shown at a time.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer, Signal

from rankdeck.base.errors import ConfigError
from rankdeck.config import RunConfig
from rankdeck.diagnose.fixes import Changes, apply_changes, changes_label
from rankdeck.diagnose.out_of_memory import OutOfMemoryReport, find_out_of_memory
from rankdeck.run.batch import RunChange
from rankdeck.run.plan_lines import PlanLine
from rankdeck_app.language import tr, translate_problem
from rankdeck_app.state.plan_process import Planner, PlannerClient
from rankdeck_app.state.plan_text import FixPlan, reason_text

if TYPE_CHECKING:
    from rankdeck_app.state.live_run import LiveRun

_RELEVANT_CHANGES = RunChange.STATE | RunChange.PROBLEMS | RunChange.MEMORY
HOVER_DELAY_MS = 250
"""Time that the pointer must rest on a fix before a plan is requested; a passing pointer requests none."""


class FixPlans(PlannerClient):
    """Plan of the fix that the user points at; `show` sets the fix plan of a LiveRun, `hide` removes it."""

    def __init__(self, planner: Planner, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._planner = planner
        self._run: LiveRun | None = None
        self._changes: Changes = {}
        self._cache: dict[str, FixPlan] = {}
        self._hover_timer = QTimer(self, interval=HOVER_DELAY_MS, singleShot=True)
        self._hover_timer.timeout.connect(self._start_plan)

    def show(self, run: LiveRun, changes: Changes) -> None:
        """Plan the run with a fix's changes after a short delay, and show the prediction."""
        if self._run is not run:
            self.hide()
        self._run, self._changes = run, changes
        self._hover_timer.start()

    def hide(self) -> None:
        """Stop showing the plan of a fix."""
        self._hover_timer.stop()
        run, self._run = self._run, None
        if run is not None:
            run.set_fix_plan(None)

    def remove_run(self, run: LiveRun) -> None:
        """Forget a run that has been closed."""
        if self._run is run:
            self._hover_timer.stop()
            self._run = None

    def close(self) -> None:
        self._hover_timer.stop()
        self._run = None
        self._abort_processes()

    def _start_plan(self) -> None:
        run = self._run
        if run is None or run.config is None:
            return
        plan = FixPlan(changes_label(self._changes))
        try:
            config = apply_changes(run.config, self._changes)
        except ConfigError as error:
            run.set_fix_plan(replace(plan, failure=translate_problem(error.problem).message))
            return
        on_trust_checked = partial(self._on_trust_checked, run, plan, config)
        self._planner.check_trust(config, on_trust_checked, key=self, run=run.run_dir.path)

    def _on_trust_checked(self, run: LiveRun, plan: FixPlan, config: RunConfig, needs_trust: bool) -> None:
        # The pointer may have moved on while the io thread checked the trust.
        if run is not self._run:
            return
        # The devices are part of the key, because a configuration with `auto` does not name them.
        key = f"{_devices_option(run)}\n{config.to_toml()}"
        if needs_trust:
            run.set_fix_plan(replace(plan, failure=tr("the run's code is not trusted")))
        elif key in self._cache:
            run.set_fix_plan(self._cache[key])
        else:
            run.set_fix_plan(plan)
            self._request_plan(config, key, plan)

    def _request_plan(self, config: RunConfig, key: str, plan: FixPlan) -> None:
        assert self._run is not None
        self._stop_process()
        process = self._process = self._planner.plan(
            config, config.strategy.use, _devices_option(self._run), self
        )
        process.line_received.connect(lambda line: self._on_line(key, plan, line))
        process.ended.connect(lambda reason: self._on_ended(key, plan, reason))
        process.start()

    def _on_line(self, key: str, plan: FixPlan, line: PlanLine) -> None:
        """Show the planner's line for the changed configuration itself; ignore lines for other options of the
        strategy."""
        if line.configured and not line.changes and key not in self._cache:
            why_not = "" if line.devices else reason_text(line) or tr("the planner has no prediction")
            self._show_plan(key, replace(plan, line=line if line.devices else None, failure=why_not))

    def _on_ended(self, key: str, plan: FixPlan, reason: str) -> None:
        self._process = None
        # A failure is not cached, so the next hover tries again.
        if key not in self._cache:
            self._show_plan(
                key, replace(plan, failure=reason or tr("the planner has no prediction")), is_cached=False
            )

    def _show_plan(self, key: str, plan: FixPlan, *, is_cached: bool = True) -> None:
        if is_cached:
            self._cache[key] = plan
        # The planner continues after the pointer has left. Its result is cached then, but not shown.
        if self._run is not None and changes_label(self._changes) == plan.text:
            self._run.set_fix_plan(plan)


def _devices_option(run: LiveRun) -> str | None:
    """Return the run's own devices as the planner's `--devices` option, because the default devices may have
    changed since the run started."""
    uuids = [device.uuid for device in run.devices if device.uuid]
    if run.has_gpus:
        return f"gpu:{','.join(uuids)}" if uuids else None
    return f"cpu:{len(run.devices)}" if run.devices else None


# Why a run ran out of memory: what the run reported, and the planner's fixes.
#
# The report is rebuilt when the run has new events. The planner is asked once, by `rankdeck why`, which saves
# its results in the run directory.


class OutOfMemoryAnalysis(PlannerClient):
    """Report on a run that ran out of memory, and fixes for it.

    `changed` is emitted when the report, the fixes or `status` (the planner's progress, or why it cannot
    plan) have changed.
    """

    changed = Signal()

    def __init__(self, run: LiveRun, planner: Planner, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.run = run
        self.report: OutOfMemoryReport | None = None
        self.status = ""
        self._planner = planner
        self._lines: list[PlanLine] = []
        self._is_stale, self._has_asked = True, False
        run.changed.connect(self._mark_stale)

    def _mark_stale(self, changed: RunChange) -> None:
        self._is_stale = self._is_stale or bool(changed & _RELEVANT_CHANGES)

    def update(self) -> None:
        """Process new events of the run, and ask the planner for fixes once the report confirms that the run
        ran out of memory."""
        self.run.drain()
        if not self._is_stale or self.run.outcome is None:
            return
        self._is_stale = False
        capacity = None if self.run.config is None else self.run.config.capacity_bytes
        self.report = find_out_of_memory(self.run.state, capacity)
        if self.report is not None and not self._has_asked and self.run.config is not None:
            self.status = tr("Looking for fixes: planning every strategy…")
            self._planner.check_trust(
                self.run.config, self._request_fixes, key=self, run=self.run.run_dir.path
            )
        self._emit_changed()

    def _request_fixes(self, needs_trust: bool) -> None:
        """Ask the planner for fixes, unless that would execute untrusted code."""
        if self._has_asked:
            return
        if needs_trust:
            self.status = tr(
                "Planning fixes requires executing the run's own code, which is not trusted "
                'yet. "Resume" asks whether you trust it, and then resumes the run.'
            )
            self._emit_changed()
            return
        self._has_asked = True
        self._process = self._planner.plan_fixes(self.run.run_dir.path, self)
        self._process.line_received.connect(self._on_line)
        self._process.ended.connect(self._on_ended)
        self._process.start()

    def close(self) -> None:
        self._has_asked = True
        self._abort_processes()

    def _on_line(self, line: PlanLine) -> None:
        self._lines.append(line)
        self._emit_changed()

    def _on_ended(self, reason: str) -> None:
        self._process = None
        self.status = reason
        self._emit_changed()

    def _emit_changed(self) -> None:
        if self.report is not None and self._lines:
            self.report = self.report.with_fixes(self._lines)
        self.changed.emit()
