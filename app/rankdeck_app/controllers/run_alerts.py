"""Adds alerts about the open runs to the Problems panel: memory imbalance, and findings of the engine's
rules.

An alert about imbalance has a button that changes the strategy.

Alerts are derived from a run's metrics; run_tabs.py lists the problems stored in the run directory.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer

from rankdeck.base.errors import Problem
from rankdeck.diagnose.findings import FINDING_RULES, FindingTracker, RuleContext
from rankdeck.diagnose.findings.machine import IMBALANCE_CODE, ImbalanceAlert
from rankdeck.diagnose.fixes import EVEN_STRATEGY, STRATEGY_KEY, Changes
from rankdeck_app.controllers.run_tabs import RunTabs
from rankdeck_app.controllers.session import Session
from rankdeck_app.language import tr, translate_problem
from rankdeck_app.shell.toasts import OneTimeAction
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.widgets.run_list import strategy_title

if TYPE_CHECKING:
    from rankdeck_app.state.live_run import LiveRun
    from rankdeck_app.state.run_view import RunView


_RULES = [rule for rule in FINDING_RULES if rule.code != IMBALANCE_CODE]
"""All rules except the memory imbalance rule, which has its own toast and button."""
_CHECK_INTERVAL_S = 1.0
"""Seconds between two checks of a run."""


class _AlertState:
    """State of an open run's alerts that is carried over from one check to the next."""

    def __init__(self) -> None:
        self.imbalance = ImbalanceAlert()
        self.findings = FindingTracker(_RULES)
        # The first check is due at once.
        self.checked_s = -_CHECK_INTERVAL_S


class RunAlerts(QObject):
    """Checks every open run for alerts, whether its tab is active or not."""

    def __init__(self, window: MainWindow, session: Session, tabs: RunTabs) -> None:
        super().__init__(window)
        self._window = window
        self._session = session
        self._tabs = tabs
        self._states: dict[Path, _AlertState] = {}
        self._announced: set[Path] = set()
        self._postponed: set[LiveRun] = set()
        self._timer = QTimer(self, singleShot=True, interval=round(1000 * _CHECK_INTERVAL_S))
        self._timer.timeout.connect(self._check_postponed)
        tabs.open_runs.opened.connect(self._on_run_opened)
        tabs.open_runs.closed.connect(self._on_run_closed)

    def _on_run_opened(self, run: LiveRun) -> None:
        self._states[run.run_dir.path] = _AlertState()
        run.changed.connect(lambda _what: self._check(run))
        run.time_machine.past_loaded.connect(lambda: self._check(run, at_once=True))

    def _on_run_closed(self, run: LiveRun) -> None:
        self._states.pop(run.run_dir.path, None)
        self._postponed.discard(run)
        for owner in (_imbalance_owner(run.run_dir.path), _findings_owner(run.run_dir.path)):
            self._session.problems.set(owner, "", [])

    def _check(self, run: LiveRun, *, at_once: bool = False) -> None:
        """Check the run for alerts as of the viewed time; show toasts only if that time is the present.
        Unless `at_once` is True, the engine's rules are checked at most once per _CHECK_INTERVAL_S."""
        followed, viewed = self._states.get(run.run_dir.path), run.viewed
        if followed is None:
            return
        if at_once or run.is_over or time.monotonic() - followed.checked_s >= _CHECK_INTERVAL_S:
            self._run_rules(run, followed)
        else:
            self._postponed.add(run)
            if not self._timer.isActive():
                self._timer.start()
        # An earlier time gets its own alert, so as not to mix with the history of the present one.
        if viewed is not run:
            self._list_imbalance(run, _imbalance_problem(viewed, ImbalanceAlert()))
            return
        problem = _imbalance_problem(run, followed.imbalance)
        self._list_imbalance(run, problem)
        if problem is not None and run.is_live and run.run_dir.path not in self._announced:
            self._announced.add(run.run_dir.path)
            self._show_toast(run, problem)
        elif problem is not None:
            self._window.toasts.update_text(_imbalance_owner(run.run_dir.path), _toast_text(run, problem))

    def _check_postponed(self) -> None:
        later, self._postponed = self._postponed, set()
        for run in later:
            self._run_rules(run, self._states[run.run_dir.path])

    def _run_rules(self, run: LiveRun, followed: _AlertState) -> None:
        """Run the engine's rules as of the viewed time, and list their findings in the Problems panel."""
        followed.checked_s, viewed = time.monotonic(), run.viewed
        findings = followed.findings if viewed is run else FindingTracker(_RULES)
        problems = findings.check(RuleContext(viewed.state, viewed.config, is_over=viewed.is_over))
        self._session.problems.set(_findings_owner(run.run_dir.path), run.title, problems, run.run_dir.path)

    def _list_imbalance(self, run: LiveRun, problem: Problem | None) -> None:
        listed = [] if problem is None else [problem]
        self._session.problems.set(_imbalance_owner(run.run_dir.path), run.title, listed, run.run_dir.path)

    def _show_toast(self, run: LiveRun, problem: Problem) -> None:
        """Show a toast with the problem and the strategy that avoids it; called at most once per live run.

        No toast is shown while the Problems panel is visible, or if no strategy avoids the problem.
        """
        better, panel = EVEN_STRATEGY.get(run.strategy or ""), self._window.panel
        if better is None or (panel.isVisible() and panel.current_id == "problems"):
            return
        path = run.run_dir.path
        use = (tr("Use {strategy}", strategy=strategy_title(better)), lambda: self.use_strategy(path, better))
        self._window.toasts.show(_toast_text(run, problem), "warning", [use], key=_imbalance_owner(path))

    def balanced_strategy(self, path: Path | None) -> str | None:
        """Return a memory-balanced strategy equivalent to this run's, or None if no such strategy exists."""
        run = None if path is None else self._tabs.open_runs.get(path)
        return None if run is None else EVEN_STRATEGY.get(run.strategy or "")

    def use_strategy(self, path: Path, strategy: str) -> None:
        """Make the run's configuration the draft, with its strategy replaced by `strategy`."""
        text = tr(
            'The next run will use {strategy}. Choose "Launch" to start it.',
            strategy=strategy_title(strategy),
        )
        self._apply_to_draft(path, {STRATEGY_KEY: strategy}, text)

    def sync_batch_norms(self, path: Path) -> None:
        """Make the run's configuration the draft, with batch norms synchronized across all devices."""
        text = tr(
            'The next run will synchronise batch norms across all devices. Choose "Launch" to start it.'
        )
        self._apply_to_draft(path, {"strategy.sync_batchnorm": True}, text)

    def _apply_to_draft(self, path: Path, changes: Changes, text: str) -> None:
        """Make the run's configuration the draft, apply `changes` to it, and show `text` in a toast; if the
        previous draft was edited, the toast offers to restore it."""
        draft = self._session.draft
        before, was_edited = draft.snapshot(), draft.is_edited

        def used() -> None:
            draft.apply_fix(changes)
            undo = (tr("Undo"), OneTimeAction(lambda: draft.restore_snapshot(before)))
            self._window.toasts.show(text, actions=[undo] if was_edited else [])

        self._tabs.use_configuration(path, used)


def _imbalance_problem(run: RunView, alert: ImbalanceAlert) -> Problem | None:
    memory_by_index = {index: run.device_memory(device) for index, device in enumerate(run.devices)}
    peaks_by_index = {
        index: memory.peak_by_kind for index, memory in memory_by_index.items() if memory is not None
    }
    kinds = {index: by_kind for index, by_kind in peaks_by_index.items() if by_kind is not None}
    labels = {index: run.device_label(device) for index, device in enumerate(run.devices)}
    can_change = run.config is not None
    return alert.update(run.imbalance, labels, kinds, _strategy_of(run), can_change=can_change)


def _strategy_of(run: RunView) -> str | None:
    """Return the run's strategy; for a script, "dp" if it uses DataParallel."""
    lead = run.state.script.lead_observation
    return "dp" if lead is not None and lead.wrapper == "DataParallel" else run.strategy


def _toast_text(run: LiveRun, problem: Problem) -> str:
    return tr("{run}: {words}", run=run.title, words=translate_problem(problem).message)


def _imbalance_owner(path: Path) -> str:
    return f"{path}#imbalance"


def _findings_owner(path: Path) -> str:
    return f"{path}#findings"
