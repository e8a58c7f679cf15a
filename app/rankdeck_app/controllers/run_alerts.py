"""Alerts of the open runs in the Problems panel: imbalance, with the button that changes the strategy, and
what else the engine's rules find in a run's figures.

A run's own problems are what its directory says (run_tabs.py); an alert is what the app sees in its figures.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer

from rankdeck.base.errors import Problem
from rankdeck.diagnose.findings import RULES, Findings, SeenRun
from rankdeck.diagnose.findings.machine import CODE, ImbalanceAlert
from rankdeck.diagnose.fixes import EVENLY, STRATEGY, Changes
from rankdeck_app.controllers.run_tabs import RunTabs
from rankdeck_app.controllers.session import Session
from rankdeck_app.language import in_words, tr
from rankdeck_app.shell.toasts import Once
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.widgets.run_list import strategy_title

if TYPE_CHECKING:
    from rankdeck_app.state.live_run import LiveRun
    from rankdeck_app.state.run_answers import RunAnswers


_RULES = [rule for rule in RULES if rule.code != CODE]
"""All but the imbalance, which has a toast and a button of its own."""
_EVERY_S = 1.0
"""How often they look at a run."""


class _Followed:
    """What is known of an open run from one look to the next."""

    def __init__(self) -> None:
        self.imbalance = ImbalanceAlert()
        self.findings = Findings(_RULES)
        self.looked_s = -_EVERY_S


class RunAlerts(QObject):
    """Follows every open run, in front or not."""

    def __init__(self, window: MainWindow, session: Session, tabs: RunTabs) -> None:
        super().__init__(window)
        self._window = window
        self._session = session
        self._tabs = tabs
        self._followed: dict[Path, _Followed] = {}
        self._announced: set[Path] = set()
        self._later: set[LiveRun] = set()
        self._timer = QTimer(self, singleShot=True, interval=round(1000 * _EVERY_S))
        self._timer.timeout.connect(self._look_later)
        tabs.open_runs.opened.connect(self._opened)
        tabs.open_runs.closed.connect(self._closed)

    def _opened(self, run: LiveRun) -> None:
        self._followed[run.run.path] = _Followed()
        run.changed.connect(lambda _what: self._look(run))
        run.time.arrived.connect(lambda: self._look(run, at_once=True))

    def _closed(self, run: LiveRun) -> None:
        self._followed.pop(run.run.path, None)
        self._later.discard(run)
        for owner in (_owner(run.run.path), _findings_owner(run.run.path)):
            self._session.problems.set(owner, "", [])

    def _look(self, run: LiveRun, *, at_once: bool = False) -> None:
        """At the moment that is shown of it; a toast speaks of now only."""
        followed, shown = self._followed.get(run.run.path), run.shown
        if followed is None:
            return
        if at_once or run.is_over or time.monotonic() - followed.looked_s >= _EVERY_S:
            self._find(run, followed)
        else:
            self._later.add(run)
            if not self._timer.isActive():
                self._timer.start()
        if shown is not run:
            self._list(run, _problem_of(shown, ImbalanceAlert()))
            return
        problem = _problem_of(run, followed.imbalance)
        self._list(run, problem)
        if problem is not None and run.is_live and run.run.path not in self._announced:
            self._announced.add(run.run.path)
            self._say(run, problem)
        elif problem is not None:
            self._window.toasts.restate(_owner(run.run.path), _said(run, problem))

    def _look_later(self) -> None:
        later, self._later = self._later, set()
        for run in later:
            self._find(run, self._followed[run.run.path])

    def _find(self, run: LiveRun, followed: _Followed) -> None:
        """What the rules say of the moment that is shown."""
        followed.looked_s, shown = time.monotonic(), run.shown
        findings = followed.findings if shown is run else Findings(_RULES)
        found = findings.look(SeenRun(shown.fold, shown.config, is_over=shown.is_over))
        self._session.problems.set(_findings_owner(run.run.path), run.title, found, run.run.path)

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
        self._use(path, {STRATEGY: strategy}, text)

    def sync_batch_norms(self, path: Path) -> None:
        """Make the run's configuration the draft, with batch norms over all devices."""
        text = tr("The next run's batch norms see all devices; Launch starts it.")
        self._use(path, {"strategy.sync_batchnorm": True}, text)

    def _use(self, path: Path, changes: Changes, text: str) -> None:
        """The run's configuration, changed, as the draft; one that was edited can be brought back."""
        draft = self._session.draft
        before, was_edited = draft.snapshot(), draft.is_edited

        def used() -> None:
            draft.apply_fix(changes)
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
    return tr("{run}: {words}", run=run.title, words=in_words(problem).message)


def _owner(path: Path) -> str:
    return f"{path}#imbalance"


def _findings_owner(path: Path) -> str:
    return f"{path}#findings"
