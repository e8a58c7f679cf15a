"""Alerts of the open runs: imbalance, in the Problems panel, with the button that changes the strategy.

A run's own problems are what its directory says (run_tabs.py); an alert is what the app sees in its figures.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject

from rankdeck.base.errors import Problem
from rankdeck.config.cures import EVENLY
from rankdeck_app.controllers.run_tabs import RunTabs
from rankdeck_app.controllers.session import Session
from rankdeck_app.language import tr
from rankdeck_app.shell.toasts import Once
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.state.imbalance_alert import ImbalanceAlert
from rankdeck_app.widgets.run_list import strategy_title

if TYPE_CHECKING:
    from rankdeck_app.state.draft import Draft
    from rankdeck_app.state.live_run import LiveRun
    from rankdeck_app.state.run_answers import RunAnswers


class RunAlerts(QObject):
    """Follows every open run, in front or not."""

    def __init__(self, window: MainWindow, session: Session, tabs: RunTabs) -> None:
        super().__init__(window)
        self._window = window
        self._session = session
        self._tabs = tabs
        self._alerts: dict[Path, ImbalanceAlert] = {}
        self._announced: set[Path] = set()
        tabs.open_runs.opened.connect(self._opened)
        tabs.open_runs.closed.connect(self._closed)

    def _opened(self, run: LiveRun) -> None:
        self._alerts[run.run.path] = ImbalanceAlert()
        run.changed.connect(lambda _what: self._look(run))
        run.time.arrived.connect(lambda: self._look(run))

    def _closed(self, run: LiveRun) -> None:
        self._alerts.pop(run.run.path, None)
        self._session.problems.set(_owner(run.run.path), "", [])

    def _look(self, run: LiveRun) -> None:
        """At the moment that is shown of it; a toast speaks of now only."""
        alert, shown = self._alerts.get(run.run.path), run.shown
        if alert is None:
            return
        if shown is not run:
            self._list(run, _problem_of(shown, ImbalanceAlert()))
            return
        problem = _problem_of(run, alert)
        self._list(run, problem)
        if problem is not None and run.is_live and run.run.path not in self._announced:
            self._announced.add(run.run.path)
            self._say(run, problem)
        elif problem is not None:
            self._window.toasts.restate(_owner(run.run.path), _said(run, problem))

    def _list(self, run: LiveRun, problem: Problem | None) -> None:
        listed = [] if problem is None else [problem]
        self._session.problems.set(_owner(run.run.path), run.title, listed, run.run.path)

    def _say(self, run: LiveRun, problem: Problem) -> None:
        """Once for a run that trains: what is wrong, and the strategy that does without it. Nothing while the
        list of problems is on show, which says it, too.
        """
        better, panel = EVENLY.get(run.strategy or ""), self._window.panel
        if better is None or (panel.isVisible() and panel.shown == "problems"):
            return
        path = run.run.path
        use = (tr("Use {strategy}", strategy=strategy_title(better)), lambda: self.use_strategy(path, better))
        self._window.toasts.show(_said(run, problem), "warning", [use], key=_owner(path))

    def better_for(self, path: Path | None) -> str | None:
        """The strategy that does what this run does, without its imbalance."""
        run = None if path is None else self._tabs.open_runs.of(path)
        return None if run is None else EVENLY.get(run.strategy or "")

    def use_strategy(self, path: Path, strategy: str) -> None:
        """Make the run's configuration with another strategy the draft."""
        text = tr("The next run uses {strategy}; Launch starts it.", strategy=strategy_title(strategy))
        self._use(path, lambda draft: draft.choose(("strategy",), strategy), text)

    def sync_batch_norms(self, path: Path) -> None:
        """Make the run's configuration the draft, with batch norms over all devices."""
        text = tr("The next run's batch norms see all devices; Launch starts it.")
        self._use(path, lambda draft: draft.set_value(("strategy", "sync_batchnorm"), True), text)

    def _use(self, path: Path, change: Callable[[Draft], object], text: str) -> None:
        """The run's configuration, changed, as the draft; one that was edited can be brought back."""
        draft = self._session.draft
        before, was_edited = draft.snapshot(), draft.is_edited

        def used() -> None:
            change(draft)
            undo = (tr("Bring Mine Back"), Once(lambda: draft.bring_back(before)))
            self._window.toasts.show(text, actions=[undo] if was_edited else [])

        self._tabs.use_configuration(path, used)


def _problem_of(run: RunAnswers, alert: ImbalanceAlert) -> Problem | None:
    held = {place: run.memory_of(device) for place, device in enumerate(run.devices)}
    known = {place: memory.peak_by_kind for place, memory in held.items() if memory is not None}
    kinds = {place: by_kind for place, by_kind in known.items() if by_kind is not None}
    labels = {place: run.label_of(device) for place, device in enumerate(run.devices)}
    can_change = run.config is not None
    return alert.look(run.imbalance, labels, kinds, _strategy_of(run), can_change=can_change)


def _strategy_of(run: RunAnswers) -> str | None:
    """The strategy, or of a script the one that its parallel wrapper is."""
    lead = run.fold.script.lead
    return "dp" if lead is not None and lead.wrapper == "DataParallel" else run.strategy


def _said(run: LiveRun, problem: Problem) -> str:
    return tr("{run}: {words}", run=run.title, words=problem.message)


def _owner(path: Path) -> str:
    return f"{path}#imbalance"
