"""Provides fixes: adds buttons to the Problems panel, applies fixes to runs, and opens the out-of-memory
page.

To add a button for a new problem code of the engine, add a line to one of the generators that `actions_of`
joins. While a run's problem is selected, its fix is previewed over the run's memory bars. Applying the fix
takes these steps:

    save a checkpoint  ->  stop  ->  resume with the changes  ->  compare both attempts

If a step fails, a toast reports this, and the run continues or can be resumed unchanged: it is stopped only
after a checkpoint is saved, and if the new attempt is refused, the previous attempt remains the run's latest.
A run that never saved a checkpoint cannot resume: its fix starts a new run, as the button's label states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, QTimer, Signal

from rankdeck.base.errors import ConfigError, Problem, format_fix
from rankdeck.base.phrases import phrase
from rankdeck.compare.run_ref import RunRef
from rankdeck.config import RunConfig
from rankdeck.diagnose.findings.machine import IMBALANCE_CODE
from rankdeck.diagnose.fixes import (
    STRATEGY_KEY,
    Changes,
    apply_changes,
    changes_label,
    cli_options,
    is_memory_problem,
)
from rankdeck.doctor.doctor_advice import is_machine_problem
from rankdeck.run.hang_warning import is_hang_problem
from rankdeck_app.commands.table import Command
from rankdeck_app.controllers.comparisons import Comparisons
from rankdeck_app.controllers.device_monitor import DeviceMonitor, DoctorTab
from rankdeck_app.controllers.launcher import Launcher
from rankdeck_app.controllers.problem_navigator import HangCommands, OpenLocation
from rankdeck_app.controllers.run_alerts import RunAlerts
from rankdeck_app.controllers.run_tabs import RUN, RunTabs
from rankdeck_app.controllers.session import Session
from rankdeck_app.language import tr, translate, translate_problem
from rankdeck_app.shell.page import Page, PageUnavailableError
from rankdeck_app.shell.toasts import ToastAction
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.state.device_choice import DEVICES_PATH, REHEARSAL_DEVICES
from rankdeck_app.state.engine_process import command_error_text
from rankdeck_app.state.fixes import OutOfMemoryAnalysis
from rankdeck_app.state.problem_list import (
    DEVICES_OWNER,
    DRAFT_OWNER,
    LAUNCH_OWNER,
    SCRIPT_OWNER,
    ListedProblem,
)
from rankdeck_app.state.script_draft import NO_GPU_DEVICES
from rankdeck_app.state.toml_writer import KeyPath
from rankdeck_app.widgets.run_list import strategy_title

if TYPE_CHECKING:
    from rankdeck_app.state.live_run import LiveRun

PAGE_KIND = "why"
_POLL_MS = 100


class Fixes(QObject):
    """Fixes for the configuration, launches and open runs. `changed` is emitted when a run's fixes may have
    changed.

    `open_place` shows a line of a file with a message; `show_config` opens the configuration at a line.
    """

    changed = Signal()

    def __init__(
        self,
        window: MainWindow,
        session: Session,
        tabs: RunTabs,
        launching: Launcher,
        comparisons: Comparisons,
        alerts: RunAlerts,
        watch: DeviceMonitor,
        doctor: DoctorTab,
        standstills: HangCommands,
        open_place: OpenLocation,
        show_config: Callable[[int | None], object],
    ) -> None:
        super().__init__(window)
        self._window, self._session, self._tabs = window, session, tabs
        self._launcher, self._comparisons, self._alerts = launching, comparisons, alerts
        self._device_monitor, self._doctor_tab, self._hang_commands = watch, doctor, standstills
        self._open_location, self._show_config = open_place, show_config
        self._stopping: dict[Path, QTimer] = {}
        """Runs that are being stopped to apply a fix."""
        self._analyses: dict[Path, OutOfMemoryAnalysis] = {}
        window.editor.register_page_kind(PAGE_KIND, self._make_page)
        tabs.open_runs.opened.connect(lambda run: run.outcome_changed.connect(self.changed))
        tabs.open_runs.closed.connect(session.fix_plans.remove_run)
        window.closing.connect(self._close)

    def commands(self) -> list[Command]:
        row, of = partial(Command, menu="Run/3_this"), self._tabs.on_active
        return [
            row("run.cure", phrase("Run: Apply This Run's Fix"), self._apply_active, when="activeRunCure"),
            row(
                "run.why", phrase("Run: Explain Out of Memory"), of(self.explain), when="activeRunOutOfMemory"
            ),
        ]

    def _apply_active(self) -> None:
        run = self._tabs.active()
        if run is not None and run.fix_changes:
            self.apply(run.run_dir.path, run.fix_changes)

    def _close(self) -> None:
        for timer in self._stopping.values():
            timer.stop()
        for why in self._analyses.values():
            why.close()

    # The buttons of a problem

    def actions_of(self, entry: ListedProblem) -> list[ToastAction]:
        """Return the labels and actions of a problem's buttons, the suggested action first."""
        return [*self._owner_actions(entry), *self._fix_actions(entry), *self._run_actions(entry)]

    def _owner_actions(self, entry: ListedProblem) -> Iterator[ToastAction]:
        """Yield the actions for problems of the draft, a launch, the script or the devices."""
        owner, problem = entry.owner, entry.problem
        if owner in (DRAFT_OWNER, LAUNCH_OWNER) and problem.code in ("no-gpu", "no-driver"):
            yield tr("Rehearse Instead"), self._rehearse
        if owner == SCRIPT_OWNER and problem.code in ("no-gpu", "no-device"):
            yield tr("Run Without GPUs"), lambda: self._session.script.set_fields(devices=NO_GPU_DEVICES)
        if owner == SCRIPT_OWNER:
            yield tr("Show Script"), lambda: self._window.show_activity("launch")
        if owner in (DRAFT_OWNER, LAUNCH_OWNER) and problem.cure:
            yield translate(format_fix(problem.cure)), partial(self._apply_to_draft, problem)
        if owner == DRAFT_OWNER and problem.line is not None:
            yield tr("Go to Line"), partial(self._show_config, problem.line)
        if owner == LAUNCH_OWNER:
            yield tr("Dismiss"), self._dismiss
        if owner == DEVICES_OWNER:
            yield tr("Show Devices"), self._device_monitor.show
            yield tr("Dismiss"), self._device_monitor.dismiss

    def _fix_actions(self, entry: ListedProblem) -> Iterator[ToastAction]:
        run = self._fixable_run(entry)
        if run is not None:
            yield (
                self.button_label(run, entry.problem.cure),
                partial(self.apply, run.run_dir.path, entry.problem.cure),
            )

    def _run_actions(self, entry: ListedProblem) -> Iterator[ToastAction]:
        """Yield the actions for problems of a run or of the machine."""
        problem, run = entry.problem, entry.run
        if run is not None and is_hang_problem(problem):
            yield tr("Show Stacks"), partial(self._hang_commands.show_stacks, run)
            yield tr("Stop Run"), partial(self._tabs.stop, run)
        if is_machine_problem(problem):
            yield tr("Check This Machine"), self._doctor_tab.show
        if run is None:
            return
        if is_memory_problem(problem):
            yield tr("Explain Out of Memory"), partial(self.explain, run)
        if problem.path == "strategy.sync_batchnorm" and not problem.cure:
            yield tr("Sync Batch Norms"), partial(self._alerts.sync_batch_norms, run)
        if problem.code != IMBALANCE_CODE:
            yield tr("Show Output"), partial(self._show_output, entry)
            yield tr("Show in File Manager"), partial(self._tabs.reveal, run)
        elif better := self._alerts.balanced_strategy(run):
            # Run again with a strategy that avoids the imbalance.
            use = partial(self._alerts.use_strategy, run, better)
            yield tr("Use {strategy}", strategy=strategy_title(better)), use

    def _apply_to_draft(self, problem: Problem) -> None:
        self._session.draft.apply_fix(problem.cure)
        self._dismiss()

    def _rehearse(self) -> None:
        all_hosts: dict[KeyPath, object] = {DEVICES_PATH: REHEARSAL_DEVICES}
        # Devices of a single host would override those for all hosts.
        if self._session.device_choice.hosts:
            all_hosts["hosts", "devices"] = None
        self._session.draft.set_values(all_hosts)
        self._dismiss()

    def _dismiss(self) -> None:
        self._session.problems.set(LAUNCH_OWNER, "", [])

    def _show_output(self, entry: ListedProblem) -> None:
        from rankdeck_app.views.output import OutputView

        if entry.run is not None:
            self._tabs.open(entry.run)
        view = self._window.show_panel("output")
        if isinstance(view, OutputView):
            view.set_rank(entry.problem.rank)

    # The fix of a run

    def button_label(self, run: LiveRun, changes: Changes) -> str:
        """Return a fix button's label, such as 'Switch to DDP' or 'Resume with train.accumulate = 2'."""
        fix = translate(changes_label(changes))
        if not can_resume(run):
            return tr("Start New Run with {fix}", fix=fix)
        return tr("Switch to {fix}", fix=fix) if STRATEGY_KEY in changes else tr("Resume with {fix}", fix=fix)

    def preview_fix(self, entry: ListedProblem | None) -> None:
        """Show the selected problem's fix over the memory bars of its run; if `entry` is None, hide the
        preview."""
        run = None if entry is None else self._fixable_run(entry)
        if run is None or entry is None:
            self._session.fix_plans.hide()
        else:
            self._session.fix_plans.show(run, entry.problem.cure)

    def _fixable_run(self, entry: ListedProblem) -> LiveRun | None:
        """Return the open run that the problem's fix applies to; None for a script run, which has no
        configuration to change."""
        if entry.run is None or not entry.problem.cure:
            return None
        run = self._tabs.open_runs.get(entry.run)
        return None if run is None or run.config is None else run

    def apply(self, path: Path, changes: Changes) -> None:
        """Apply the changes to a run if they are valid for its configuration and the run's code is trusted.
        If the run is live, save a checkpoint and stop it first."""
        run = self._tabs.open_runs.get(path)
        if run is None or run.config is None or path in self._stopping:
            return
        try:
            config = apply_changes(run.config, changes)
        except ConfigError as error:
            self._show_toast(
                path, tr("The run was not changed: {why}", why=translate_problem(error.problem).sentence)
            )
            return
        self._session.fix_plans.hide()
        self._launcher.when_trusted(
            partial(self._session.trust.untrusted_folders_of_run, path, config),
            partial(self._apply_trusted, path, config, changes),
        )

    def _apply_trusted(self, path: Path, config: RunConfig, changes: Changes) -> None:
        run = self._tabs.open_runs.get(path)
        if run is None:
            return
        if run.is_live:
            self._save_and_stop(path, changes)
        elif can_resume(run):
            self._resume(path, changes)
        else:
            self._launcher.launch(config, lambda new: self._comparisons.open_comparison([path, new]))

    def _save_and_stop(self, path: Path, changes: Changes) -> None:
        self._tabs.open_runs.acquire(path)  # follow the run until it has stopped, even if its tab is closed
        timer = self._stopping[path] = QTimer(self, interval=_POLL_MS)
        timer.timeout.connect(partial(self._check_stopped, path, changes))
        message = tr(
            "{run}: saving a checkpoint, then stopping and resuming with {fix}.",
            run=self._session.runs.get_title(path),
            fix=translate(changes_label(changes)),
        )
        self._window.toasts.show(message, key=_toast_key(path))
        call = self._session.engine.checkpoint(path)

        def saved(code: int, out: str, err: str) -> None:
            if path not in self._stopping:
                return
            if code:
                why = command_error_text(out, err)
                text = tr("Training continues unchanged because no checkpoint could be saved: {why}", why=why)
                self._cancel(path, text)
                return
            timer.start()
            self._tabs.stop(path).finished.connect(stopped)

        def stopped(code: int, _out: str, _err: str) -> None:
            if code and path in self._stopping:
                self._cancel(path, tr("The run could not be stopped; training continues unchanged."))

        call.finished.connect(saved)

    def _check_stopped(self, path: Path, changes: Changes) -> None:
        """Resume the run with the changes if it has stopped; cancel the fix if the run has completed."""
        run = self._tabs.open_runs.get(path)
        assert run is not None
        # The run may have no tab whose frames drain it.
        run.drain()
        if not run.is_over:
            return
        if run.outcome == "completed":
            self._cancel(path, tr("The run completed before it could be stopped."))
        else:
            self._resume(path, changes)
            self._finish(path)

    def _resume(self, path: Path, changes: Changes) -> None:
        # Read before the launch: the resumed attempt gets the next number.
        before = self._newest_attempt(path)
        launch = self._launcher.start_resume(path, cli_options(changes))
        if launch is None:
            return

        def arrived(_path: Path) -> None:
            self._window.toasts.dismiss(_toast_key(path))
            self._comparisons.open_comparison([RunRef(path, before), RunRef(path, before + 1)])

        def refused(problems: list[Problem]) -> None:
            go_on = (tr("Resume Unchanged"), partial(self._launcher.resume, path))
            text = tr(
                "The run was stopped, but could not be resumed with the fix: {why}", why=problems[0].message
            )
            self._show_toast(path, text, [go_on])

        launch.arrived.connect(arrived)
        launch.refused.connect(refused)

    def _newest_attempt(self, path: Path) -> int:
        run = self._tabs.open_runs.get(path)
        return max(run.state.attempts, default=0) if run is not None else 0

    def _cancel(self, path: Path, text: str) -> None:
        self._show_toast(path, text)
        self._finish(path)

    def _finish(self, path: Path) -> None:
        timer = self._stopping.pop(path)
        timer.stop()
        timer.deleteLater()
        self._tabs.open_runs.release(path)

    def _show_toast(self, path: Path, message: str, actions: list[ToastAction] | None = None) -> None:
        text = tr("{run}: {words}", run=self._session.runs.get_title(path), words=message)
        self._window.toasts.show(text, "warning", actions or [], key=_toast_key(path))

    # Out of memory: the page follows its run like a tab does, and both share one reader

    def explain(self, path: Path) -> None:
        """Open the page that explains why a run ran out of memory, with the planner's fixes."""
        self._window.editor.open(f"{PAGE_KIND}:{path}")

    def _make_page(self, wanted_id: str) -> Page:
        path = Path(wanted_id.partition(":")[2])
        if self._tabs.kind_of(path) != RUN:
            raise PageUnavailableError(tr("The run's folder no longer exists: {folder}", folder=path))
        from rankdeck_app.views.out_of_memory_page import OutOfMemoryPage

        # Released in _on_page_closed.
        run = self._tabs.open_runs.acquire(path)
        why = self._analyses[path] = OutOfMemoryAnalysis(run, self._session.planner, self)
        acts: Mapping[str, Callable[..., Any]] = {
            "label": partial(self.button_label, run),
            "take": partial(self.apply, path),
            "open_code": self._open_location,
            "save": partial(self._comparisons.ask_report_file, path),
            "closed": partial(self._on_page_closed, path),
        }
        return OutOfMemoryPage(wanted_id, self._window.theme, self._window.clock, why, acts)

    def _on_page_closed(self, path: Path) -> None:
        why = self._analyses.pop(path, None)
        if why is not None:
            why.close()
            why.deleteLater()
            self._tabs.open_runs.release(path)


def can_resume(run: LiveRun) -> bool:
    """Check whether the run has, or can save, a checkpoint to resume from."""
    return run.is_live or run.is_resumable


def _toast_key(path: Path) -> str:
    return f"{path}#cure"
