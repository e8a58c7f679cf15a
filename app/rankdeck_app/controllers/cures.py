"""Cures of runs: what one would change is shown over the live bars, and one action takes it.

    save a checkpoint  ->  stop  ->  resume with the cure  ->  compare both attempts

What goes wrong on the way is said, and the run goes on or can be resumed as it was: a checkpoint that cannot
be saved stops nothing, and an attempt that is refused leaves the one before as the newest. A run that never
saved anything cannot go on: the cure then starts a new one, and its button says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, QTimer, Signal

from rankdeck.base.errors import ConfigError, Problem
from rankdeck.base.phrases import phrase
from rankdeck.compare.naming import RunAt
from rankdeck.config import RunConfig
from rankdeck.config.cures import STRATEGY, cured, options_of
from rankdeck.run.ways_out import cure_name
from rankdeck_app.commands.table import Command
from rankdeck_app.controllers.comparisons import Comparisons
from rankdeck_app.controllers.launching import Launching
from rankdeck_app.controllers.run_tabs import RunTabs
from rankdeck_app.controllers.session import Session
from rankdeck_app.language import in_words, spoken, tr
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.state.engine_process import refusal_of
from rankdeck_app.state.problem_list import ListedProblem, Remedy

if TYPE_CHECKING:
    from rankdeck_app.state.live_run import LiveRun

Cure = Mapping[str, Any]
_LOOK_MS = 100


class Cures(QObject):
    """Of the runs that are open. `changed`: what can be done to one of them may be something else now."""

    changed = Signal()

    def __init__(
        self,
        window: MainWindow,
        session: Session,
        tabs: RunTabs,
        launching: Launching,
        comparisons: Comparisons,
    ) -> None:
        super().__init__(window)
        self._window, self._session, self._tabs = window, session, tabs
        self._launching, self._comparisons = launching, comparisons
        self._waiting: dict[Path, QTimer] = {}
        """Runs that are being stopped for a cure."""
        tabs.open_runs.opened.connect(lambda run: run.outcome_changed.connect(self.changed))
        tabs.open_runs.closed.connect(session.cured_plans.forget)
        window.closing.connect(self._close)

    def rows(self) -> list[Command]:
        words = phrase("Run: Use the Fix of This Run")
        return [Command("run.cure", words, self._take_active, when="activeRunCure", menu="Run/3_this")]

    def _take_active(self) -> None:
        run = self._tabs.active()
        if run is not None and run.cure:
            self.take(run.run.path, run.cure)

    def of(self, entry: ListedProblem) -> list[Remedy]:
        """The button that takes an entry's cure; none where it has none that a run could take."""
        run = self._run_of(entry)
        if run is None:
            return []
        return [(self.label(run, entry.problem.cure), partial(self.take, run.run.path, entry.problem.cure))]

    def label(self, run: LiveRun, cure: Cure) -> str:
        """'Switch to DDP', 'Go On with train.accumulate = 2', 'Start Anew with DDP'."""
        words = spoken(cure_name(cure))
        if not can_go_on(run):
            return tr("Start Anew with {cure}", cure=words)
        return tr("Switch to {cure}", cure=words) if STRATEGY in cure else tr("Go On with {cure}", cure=words)

    def look_at(self, entry: ListedProblem | None) -> None:
        """Somebody looks at a problem, or at none: its cure is shown over its run's bars."""
        run = None if entry is None else self._run_of(entry)
        if run is None or entry is None:
            self._session.cured_plans.hide()
        else:
            self._session.cured_plans.show(run, entry.problem.cure)

    def _run_of(self, entry: ListedProblem) -> LiveRun | None:
        """The open run that a cure is for; None for a script's, which nobody can change."""
        if entry.run is None or not entry.problem.cure:
            return None
        run = self._tabs.open_runs.of(entry.run)
        return None if run is None or run.config is None else run

    # Taking one

    def take(self, path: Path, cure: Cure) -> None:
        """All of it; nothing is stopped for a cure that the run cannot take, or whose code is not trusted."""
        run = self._tabs.open_runs.of(path)
        if run is None or run.config is None or path in self._waiting:
            return
        try:
            config = cured(run.config, cure)
        except ConfigError as error:
            self._say(path, tr("It stays as it is: {why}", why=in_words(error.problem).sentence))
            return
        self._session.cured_plans.hide()
        self._launching.when_trusted(
            partial(self._session.trust.untrusted_of, path, config), partial(self._begin, path, config, cure)
        )

    def _begin(self, path: Path, config: RunConfig, cure: Cure) -> None:
        run = self._tabs.open_runs.of(path)
        if run is None:
            return
        if run.is_live:
            self._save(path, cure)
        elif can_go_on(run):
            self._resume(path, cure)
        else:
            self._launching.launch(config, lambda new: self._comparisons.open_compare([path, new]))

    def _save(self, path: Path, cure: Cure) -> None:
        self._tabs.open_runs.acquire(path)  # it is followed until it has stopped, also without its tab
        timer = self._waiting[path] = QTimer(self, interval=_LOOK_MS)
        timer.timeout.connect(partial(self._look, path, cure))
        words = tr(
            "{run}: a checkpoint is saved, then it stops and goes on with {cure}.",
            run=self._session.runs.title_of(path),
            cure=spoken(cure_name(cure)),
        )
        self._window.toasts.show(words, key=_key(path))
        call = self._session.engine.checkpoint(path)

        def saved(code: int, out: str, err: str) -> None:
            if path not in self._waiting:
                return
            if code:
                why = refusal_of(out, err)
                words = tr("It trains on as it was, no checkpoint could be saved: {why}", why=why)
                self._give_up(path, words)
                return
            timer.start()
            self._tabs.stop(path).answered.connect(stopped)

        def stopped(code: int, _out: str, _err: str) -> None:
            if code and path in self._waiting:
                self._give_up(path, tr("It could not be stopped, and trains on as it was."))

        call.answered.connect(saved)

    def _look(self, path: Path, cure: Cure) -> None:
        """Whether it has stopped by now."""
        run = self._tabs.open_runs.of(path)
        assert run is not None
        run.drain()
        if not run.is_over:
            return
        if run.outcome == "completed":
            self._give_up(path, tr("It was through with its last step before it could be stopped."))
        else:
            self._resume(path, cure)
            self._done(path)

    def _resume(self, path: Path, cure: Cure) -> None:
        before = self._newest_attempt(path)
        launch = self._launching.begin_resume(path, options_of(cure))
        if launch is None:
            return

        def arrived(_path: Path) -> None:
            self._window.toasts.withdraw(_key(path))
            both = [RunAt(path, before), RunAt(path, before + 1)]
            self._comparisons.open_compare(both)

        def refused(problems: list[Problem]) -> None:
            go_on = (tr("Resume as It Was"), partial(self._launching.resume, path))
            words = tr("It is stopped, and can be resumed as it was: {why}", why=problems[0].message)
            self._say(path, words, [go_on])

        launch.arrived.connect(arrived)
        launch.refused.connect(refused)

    def _newest_attempt(self, path: Path) -> int:
        run = self._tabs.open_runs.of(path)
        return max(run.fold.attempts, default=0) if run is not None else 0

    def _give_up(self, path: Path, words: str) -> None:
        self._say(path, words)
        self._done(path)

    def _done(self, path: Path) -> None:
        timer = self._waiting.pop(path)
        timer.stop()
        timer.deleteLater()
        self._tabs.open_runs.release(path)

    def _say(self, path: Path, words: str, actions: list[Remedy] | None = None) -> None:
        said = tr("{run}: {words}", run=self._session.runs.title_of(path), words=words)
        self._window.toasts.show(said, "warning", actions or [], key=_key(path))

    def _close(self) -> None:
        for timer in self._waiting.values():
            timer.stop()


def can_go_on(run: LiveRun) -> bool:
    """Whether there is, or can be, a checkpoint that it goes on from."""
    return run.is_live or run.is_resumable


def _key(path: Path) -> str:
    return f"{path}#cure"
