"""Fixes: the buttons of the Problems panel, what a fix of a run makes of it, and why it ran out of memory.

A cause that the engine learns to name gets its button by one more line of `actions_of`. The fix of a run is
shown over its live bars while a person looks at the problem, and one action takes it:

    save a checkpoint  ->  stop  ->  resume with the changes  ->  compare both attempts

What goes wrong on the way is said, and the run goes on or can be resumed as it was: a checkpoint that cannot
be saved stops nothing, and an attempt that is refused leaves the one before as the newest. A run that never
saved anything cannot go on: its fix then starts a new one, and its button says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, QTimer, Signal

from rankdeck.base.errors import ConfigError, Problem, fix_in_words
from rankdeck.base.phrases import phrase
from rankdeck.compare.naming import RunAt
from rankdeck.config import RunConfig
from rankdeck.diagnose.findings.machine import CODE
from rankdeck.diagnose.fixes import STRATEGY, Changes, fix_name, is_memory_problem, options_of, with_changes
from rankdeck.doctor.offering import may_explain
from rankdeck.run.standstill import is_of_standstill
from rankdeck_app.commands.table import Command
from rankdeck_app.controllers.comparisons import Comparisons
from rankdeck_app.controllers.device_watch import DeviceWatch, DoctorTab
from rankdeck_app.controllers.launching import Launching
from rankdeck_app.controllers.places import OpenPlace, Standstills
from rankdeck_app.controllers.run_alerts import RunAlerts
from rankdeck_app.controllers.run_tabs import RUN, RunTabs
from rankdeck_app.controllers.session import Session
from rankdeck_app.language import in_words, spoken, tr
from rankdeck_app.shell.page import Page, PageUnavailable
from rankdeck_app.shell.toasts import Action
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.state.device_choice import PLACE, REHEARSAL
from rankdeck_app.state.engine_process import refusal_of
from rankdeck_app.state.fixes import MemoryWhy
from rankdeck_app.state.problem_list import DEVICES, DRAFT, LAUNCH, SCRIPT, ListedProblem
from rankdeck_app.state.script_draft import NO_GPUS
from rankdeck_app.state.toml_writing import Place
from rankdeck_app.widgets.run_list import strategy_title

if TYPE_CHECKING:
    from rankdeck_app.state.live_run import LiveRun

PAGE_KIND = "why"
_LOOK_MS = 100


class Fixes(QObject):
    """Of the configuration, of launches and of open runs. `changed`: a run may have other fixes now.

    `open_place` shows a line of a file with a text, `show_config` opens the configuration at a line.
    """

    changed = Signal()

    def __init__(
        self,
        window: MainWindow,
        session: Session,
        tabs: RunTabs,
        launching: Launching,
        comparisons: Comparisons,
        alerts: RunAlerts,
        watch: DeviceWatch,
        doctor: DoctorTab,
        standstills: Standstills,
        open_place: OpenPlace,
        show_config: Callable[[int | None], object],
    ) -> None:
        super().__init__(window)
        self._window, self._session, self._tabs = window, session, tabs
        self._launching, self._comparisons, self._alerts = launching, comparisons, alerts
        self._watch, self._doctor, self._standstills = watch, doctor, standstills
        self._open_place, self._show_config = open_place, show_config
        self._stopping: dict[Path, QTimer] = {}
        """Runs that are being stopped for a fix."""
        self._whys: dict[Path, MemoryWhy] = {}
        window.editor.register_page_kind(PAGE_KIND, self._make_page)
        tabs.open_runs.opened.connect(lambda run: run.outcome_changed.connect(self.changed))
        tabs.open_runs.closed.connect(session.fix_plans.forget)
        window.closing.connect(self._close)

    def rows(self) -> list[Command]:
        row, of = partial(Command, menu="Run/3_this"), self._tabs.on_active
        return [
            row("run.cure", phrase("Run: Use the Fix of This Run"), self._take_active, when="activeRunCure"),
            row("run.why", phrase("Run: Why Out of Memory"), of(self.explain), when="activeRunOutOfMemory"),
        ]

    def _take_active(self) -> None:
        run = self._tabs.active()
        if run is not None and run.fix_changes:
            self.take(run.run.path, run.fix_changes)

    def _close(self) -> None:
        for timer in self._stopping.values():
            timer.stop()
        for why in self._whys.values():
            why.close()

    # The buttons of a problem

    def actions_of(self, entry: ListedProblem) -> list[Action]:
        """What each button says and does; the suggested one is the first."""
        return [*self._of_owner(entry), *self._of_fix(entry), *self._of_run(entry)]

    def _of_owner(self, entry: ListedProblem) -> Iterator[Action]:
        """Of the draft, a launch, the script or the devices."""
        owner, problem = entry.owner, entry.problem
        if owner in (DRAFT, LAUNCH) and problem.code in ("no-gpu", "no-driver"):
            yield tr("Rehearse Instead"), self._rehearse
        if owner == SCRIPT and problem.code in ("no-gpu", "no-device"):
            yield tr("Run Without GPUs"), lambda: self._session.script.set(devices=NO_GPUS)
        if owner == SCRIPT:
            yield tr("Show the Script"), lambda: self._window.show_activity("launch")
        if owner in (DRAFT, LAUNCH) and problem.cure:
            yield spoken(fix_in_words(problem.cure)), partial(self._fix_draft, problem)
        if owner == DRAFT and problem.line is not None:
            yield tr("Go to Line"), partial(self._show_config, problem.line)
        if owner == LAUNCH:
            yield tr("Dismiss"), self._dismiss
        if owner == DEVICES:
            yield tr("Show Devices"), self._watch.show
            yield tr("Dismiss"), self._watch.dismiss

    def _of_fix(self, entry: ListedProblem) -> Iterator[Action]:
        run = self._fixable_run(entry)
        if run is not None:
            yield self.label(run, entry.problem.cure), partial(self.take, run.run.path, entry.problem.cure)

    def _of_run(self, entry: ListedProblem) -> Iterator[Action]:
        """What else there is to do about a run, and about the machine."""
        problem, run = entry.problem, entry.run
        if run is not None and is_of_standstill(problem):
            yield tr("Show Stacks"), partial(self._standstills.show_stacks, run)
            yield tr("Stop Run"), partial(self._tabs.stop, run)
        if may_explain(problem):
            yield tr("Look the Machine Over"), self._doctor.show
        if run is None:
            return
        if is_memory_problem(problem):
            yield tr("Why Out of Memory"), partial(self.explain, run)
        if problem.path == "strategy.sync_batchnorm" and not problem.cure:
            yield tr("Sync Batch Norms"), partial(self._alerts.sync_batch_norms, run)
        if problem.code != CODE:
            yield tr("Show Output"), partial(self._show_output, entry)
            yield tr("Open Its Folder"), partial(self._tabs.reveal, run)
        elif better := self._alerts.better_for(run):
            # Run again with the strategy that does without the imbalance.
            use = partial(self._alerts.use_strategy, run, better)
            yield tr("Use {strategy}", strategy=strategy_title(better)), use

    def _fix_draft(self, problem: Problem) -> None:
        self._session.draft.apply_fix(problem.cure)
        self._dismiss()

    def _rehearse(self) -> None:
        all_hosts: dict[Place, object] = {PLACE: REHEARSAL}
        if self._session.choice.hosts:
            all_hosts["hosts", "devices"] = None
        self._session.draft.set_values(all_hosts)
        self._dismiss()

    def _dismiss(self) -> None:
        self._session.problems.set(LAUNCH, "", [])

    def _show_output(self, entry: ListedProblem) -> None:
        from rankdeck_app.views.output import OutputView

        if entry.run is not None:
            self._tabs.open(entry.run)
        view = self._window.show_panel("output")
        if isinstance(view, OutputView):
            view.set_rank(entry.problem.rank)

    # The fix of a run

    def label(self, run: LiveRun, changes: Changes) -> str:
        """'Switch to DDP', 'Go On with train.accumulate = 2', 'Start Anew with DDP'."""
        words = spoken(fix_name(changes))
        if not can_go_on(run):
            return tr("Start Anew with {fix}", fix=words)
        return tr("Switch to {fix}", fix=words) if STRATEGY in changes else tr("Go On with {fix}", fix=words)

    def look_at(self, entry: ListedProblem | None) -> None:
        """A problem is looked at, or none: its fix is shown over its run's bars."""
        run = None if entry is None else self._fixable_run(entry)
        if run is None or entry is None:
            self._session.fix_plans.hide()
        else:
            self._session.fix_plans.show(run, entry.problem.cure)

    def _fixable_run(self, entry: ListedProblem) -> LiveRun | None:
        """The open run that a fix is for; None for a script's, which has no configuration to change."""
        if entry.run is None or not entry.problem.cure:
            return None
        run = self._tabs.open_runs.of(entry.run)
        return None if run is None or run.config is None else run

    def take(self, path: Path, changes: Changes) -> None:
        """Make the changes; nothing is stopped for what the run cannot take, or whose code is not trusted."""
        run = self._tabs.open_runs.of(path)
        if run is None or run.config is None or path in self._stopping:
            return
        try:
            config = with_changes(run.config, changes)
        except ConfigError as error:
            self._say(path, tr("It stays as it is: {why}", why=in_words(error.problem).sentence))
            return
        self._session.fix_plans.hide()
        self._launching.when_trusted(
            partial(self._session.trust.untrusted_of, path, config),
            partial(self._begin, path, config, changes),
        )

    def _begin(self, path: Path, config: RunConfig, changes: Changes) -> None:
        run = self._tabs.open_runs.of(path)
        if run is None:
            return
        if run.is_live:
            self._save(path, changes)
        elif can_go_on(run):
            self._resume(path, changes)
        else:
            self._launching.launch(config, lambda new: self._comparisons.open_compare([path, new]))

    def _save(self, path: Path, changes: Changes) -> None:
        self._tabs.open_runs.acquire(path)  # it is followed until it has stopped, also without its tab
        timer = self._stopping[path] = QTimer(self, interval=_LOOK_MS)
        timer.timeout.connect(partial(self._look, path, changes))
        words = tr(
            "{run}: a checkpoint is saved, then it stops and goes on with {fix}.",
            run=self._session.runs.title_of(path),
            fix=spoken(fix_name(changes)),
        )
        self._window.toasts.show(words, key=_key(path))
        call = self._session.engine.checkpoint(path)

        def saved(code: int, out: str, err: str) -> None:
            if path not in self._stopping:
                return
            if code:
                why = refusal_of(out, err)
                words = tr("It trains on as it was, no checkpoint could be saved: {why}", why=why)
                self._give_up(path, words)
                return
            timer.start()
            self._tabs.stop(path).answered.connect(stopped)

        def stopped(code: int, _out: str, _err: str) -> None:
            if code and path in self._stopping:
                self._give_up(path, tr("It could not be stopped, and trains on as it was."))

        call.answered.connect(saved)

    def _look(self, path: Path, changes: Changes) -> None:
        """Whether it has stopped by now."""
        run = self._tabs.open_runs.of(path)
        assert run is not None
        run.drain()
        if not run.is_over:
            return
        if run.outcome == "completed":
            self._give_up(path, tr("It was through with its last step before it could be stopped."))
        else:
            self._resume(path, changes)
            self._done(path)

    def _resume(self, path: Path, changes: Changes) -> None:
        before = self._newest_attempt(path)
        launch = self._launching.begin_resume(path, options_of(changes))
        if launch is None:
            return

        def arrived(_path: Path) -> None:
            self._window.toasts.withdraw(_key(path))
            self._comparisons.open_compare([RunAt(path, before), RunAt(path, before + 1)])

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
        timer = self._stopping.pop(path)
        timer.stop()
        timer.deleteLater()
        self._tabs.open_runs.release(path)

    def _say(self, path: Path, words: str, actions: list[Action] | None = None) -> None:
        said = tr("{run}: {words}", run=self._session.runs.title_of(path), words=words)
        self._window.toasts.show(said, "warning", actions or [], key=_key(path))

    # Why a run ran out of memory: a page that follows its run as a tab does, which is read for either

    def explain(self, path: Path) -> None:
        """Open the page that says why a run ran out of memory, with the fixes that the planner finds."""
        self._window.editor.open(f"{PAGE_KIND}:{path}")

    def _make_page(self, wanted_id: str) -> Page:
        path = Path(wanted_id.partition(":")[2])
        if self._tabs.kind_of(path) != RUN:
            raise PageUnavailable(tr("The run's folder is gone: {folder}", folder=path))
        from rankdeck_app.views.memory_why import MemoryWhyPage

        run = self._tabs.open_runs.acquire(path)
        why = self._whys[path] = MemoryWhy(run, self._session.planner, self)
        acts: Mapping[str, Callable[..., Any]] = {
            "label": partial(self.label, run),
            "take": partial(self.take, path),
            "open_code": self._open_place,
            "save": partial(self._comparisons.ask_report, path),
            "closed": partial(self._leave, path),
        }
        return MemoryWhyPage(wanted_id, self._window.theme, self._window.clock, why, acts)

    def _leave(self, path: Path) -> None:
        why = self._whys.pop(path, None)
        if why is not None:
            why.close()
            why.deleteLater()
            self._tabs.open_runs.release(path)


def can_go_on(run: LiveRun) -> bool:
    """Whether there is, or can be, a checkpoint that it goes on from."""
    return run.is_live or run.is_resumable


def _key(path: Path) -> str:
    return f"{path}#cure"
