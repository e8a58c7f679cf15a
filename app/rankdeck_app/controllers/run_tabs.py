"""Manages run tabs, and the parts of the window's frame that show the current run.

The current run is that of the active tab, or of the most recently active tab that is still open. The output
panel, the status bar and the device cards follow it. Commands act on the active tab only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer, QUrl, Signal
from PySide6.QtGui import QDesktopServices, QGuiApplication

from rankdeck.base import files
from rankdeck.base.units import format_loss
from rankdeck.diagnose.fixes import is_memory_problem
from rankdeck.run.batch import RunChange
from rankdeck.run.imbalance import lead_device
from rankdeck.run.problems import failed_problem, lost_problem
from rankdeck.run.row import RunInfo
from rankdeck.run_dir import RaceDir, RunDir, is_race, is_run
from rankdeck_app.controllers import run_text
from rankdeck_app.controllers.restored_tabs import RestoredTabs
from rankdeck_app.controllers.session import Session
from rankdeck_app.language import tr
from rankdeck_app.shell.page import Page, PageUnavailableError
from rankdeck_app.shell.toasts import ToastAction
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.state.draft import RUN_ORIGIN_PREFIX
from rankdeck_app.state.engine_process import EngineCall, checkpoint_saved_text, command_error_text
from rankdeck_app.state.open_runs import OpenRuns
from rankdeck_app.state.run_copier import RunCopier, is_copy
from rankdeck_app.state.run_store import read_title
from rankdeck_app.widgets.run_list import outcome_style

if TYPE_CHECKING:
    from rankdeck_app.state.live_run import LiveRun

PAGE_KIND, RACE_KIND = "run", "race"
RUN, RACE = "run", "race"
# Text that changes more often is unreadable.
STATUS_INTERVAL_MS = 250
_ENDED_TOAST_KEY = "runs ended"


class RunTabs(QObject):
    """The run tabs. `current_changed` carries the current LiveRun or None; `metrics_changed` is emitted a few
    times a second."""

    current_changed = Signal(object)
    metrics_changed = Signal()

    def __init__(self, window: MainWindow, session: Session) -> None:
        super().__init__(window)
        self._window = window
        self._session = session
        self.open_runs = OpenRuns(self)
        self.current: LiveRun | None = None
        self.launched: dict[Path, str] = {}
        """Runs launched by this window, with their names at launch."""
        self._kinds: dict[Path, str] = {}
        self._paths_observed_alive: set[Path] = set()
        self._ended_runs: list[RunInfo] = []
        """Runs listed in the toast about ended runs, while that toast is shown."""
        self._status_timer = QTimer(self, singleShot=True, interval=STATUS_INTERVAL_MS)
        self._status_timer.timeout.connect(self._show_status)
        self.open_runs.opened.connect(self._on_run_opened)
        self.open_runs.closed.connect(self._on_run_closed)
        window.editor.register_page_kind(PAGE_KIND, self._make_page)
        window.editor.active_page_changed.connect(self._on_page_activated)
        session.runs.run_ended.connect(self._show_ended_toast)
        self._restored_tabs = RestoredTabs(window.editor, session.runs, self.open_runs, PAGE_KIND, self)
        window.started.connect(self._restored_tabs.start)

    # Opening

    def open(
        self,
        path: Path,
        *,
        focus: bool = True,
        preview: bool = False,
        beside: Page | None = None,
        then: Callable[[], object] = lambda: None,
    ) -> None:
        """Open the run or race at `path`, with the options of EditorArea.open, then call `then`. If the
        folder contains neither, show a toast."""
        # Page ids are compared as text, so a relative path would open a second tab of the same run.
        path = path.absolute()

        def show(kind: str) -> None:
            if kind:
                page_id = f"{RACE_KIND if kind == RACE else PAGE_KIND}:{path}"
                self._window.editor.open(page_id, focus=focus, preview=preview, beside=beside)
            else:
                self._window.toasts.error(tr("{folder} is not a run folder.", folder=path))
            then()

        if self._session.runs.find_info(path) is not None:
            show(self.kind_of(path))
        else:
            self._session.io_thread.submit(partial(self._read_kind, path), show)

    def kind_of(self, path: Path) -> str:
        """Return RUN or RACE, or "" if the folder contains neither. A folder that is missing from the run
        list, such as that of a restored tab, is looked up on disk."""
        info = self._session.runs.find_info(path)
        if info is not None:
            self._kinds[path] = RUN if info.race is None else RACE
        return self._kinds.get(path) or self._read_kind(path)

    def _read_kind(self, path: Path) -> str:
        self._kinds[path] = _kind_on_disk(path)
        return self._kinds[path]

    def _make_page(self, wanted_id: str) -> Page:
        path = Path(wanted_id.partition(":")[2])
        if self.kind_of(path) != RUN:
            raise PageUnavailableError(tr("The run's folder no longer exists: {folder}", folder=path))
        from rankdeck_app.views.dashboard.page import RunPage  # imports pyqtgraph

        run = self.open_runs.acquire(path, self.launched.get(path) or self._session.runs.get_title(path))
        self._session.predictions.add_run(run)
        return RunPage(
            run,
            self._window.theme,
            self._window.clock,
            run_command=self._window.commands.run,
            on_closed=lambda: self.open_runs.release(path),
            layouts=self._session.layouts,
        )

    def _on_run_opened(self, run: LiveRun) -> None:
        if is_copy(run.run_dir.path):
            run.copier = copying = RunCopier(
                self._session.engine, self._session.io_thread, run.run_dir.path, run
            )
            run.outcome_changed.connect(copying.update_outcome)
        run.changed.connect(partial(self._on_run_changed, run))
        run.outcome_changed.connect(lambda _outcome: self._list_problems(run))
        run.outcome_changed.connect(partial(self._show_failure, run))
        run.outcome_changed.connect(
            lambda _outcome: self._on_page_activated(self._window.editor.active_page())
        )
        run.time_machine.past_loaded.connect(lambda: self._list_problems(run))

    def _on_run_closed(self, run: LiveRun) -> None:
        self._session.predictions.remove_run(run)
        self._session.problems.set(str(run.run_dir.path), run.name, [])
        if run is self.current:
            self._set_current(None)

    # The active run

    def active(self) -> LiveRun | None:
        """Return the run of the active tab."""
        return _run_of(self._window.editor.active_page())

    def on_active(self, act: Callable[[Path], object]) -> Callable[[], None]:
        """Return a function for a command: it calls `act` with the path of the active tab's run, if any."""

        def on_active() -> None:
            run = self.active()
            if run is not None:
                act(run.run_dir.path)

        return on_active

    def _on_page_activated(self, page: Page | None) -> None:
        run = _run_of(page)
        self._window.context.update(
            {
                "activeRun": run is not None,
                "activeRunAlive": run is not None and run.is_live,
                "activeRunScript": run is not None and run.script is not None,
                "activeRunStandsStill": run is not None and run.hang is not None,
                "activeRunResumable": run is not None and run.is_resumable,
                "activeRunAgain": run is not None and run.is_over,
                "activeRunCure": run is not None and run.is_over and bool(run.fix_changes),
                "activeRunOutOfMemory": run is not None and any(map(is_memory_problem, run.problems)),
            }
        )
        if run is not None and run is not self.current:
            self._set_current(run)
        else:
            self._show_status()

    def _set_current(self, run: LiveRun | None) -> None:
        self.current = run
        self._session.problems.set_shown_run(None if run is None else run.run_dir.path)
        self.current_changed.emit(run)
        self._show_status()

    def _on_run_changed(self, run: LiveRun, what: RunChange) -> None:
        if what & RunChange.PROBLEMS:
            self._list_problems(run)
            self._on_page_activated(self._window.editor.active_page())
        if run is not self.current:
            return
        if not run.is_live:
            self._show_status()
        elif not self._status_timer.isActive():
            self._status_timer.start()

    # Actions on runs

    def stop(self, path: Path, *, now: bool = False) -> EngineCall:
        """Ask a run to stop, at once if `now` is True; if that fails, a toast reports the error."""
        call = self._session.engine.stop(path, now=now)
        if (run := self.open_runs.get(path)) is not None:
            run.mark_stopping()
        self._show_status()

        def answered(code: int, _out: str, _err: str) -> None:
            if code and (run := self.open_runs.get(path)) is not None:  # its tab may have been closed
                run.clear_stopping()

        self.report_answer(call, tr("The run could not be stopped."))
        call.finished.connect(answered)
        return call

    def save_checkpoint(self, path: Path) -> None:
        """Save a checkpoint of a live run after its current step; a toast shows the result."""
        call, toasts = self._session.engine.checkpoint(path), self._window.toasts
        failure = tr("The checkpoint could not be saved.")
        self.report_answer(call, failure, lambda out: toasts.info(checkpoint_saved_text(out)))

    def report_answer(
        self, call: EngineCall, failure: str, then: Callable[[str], object] = lambda out: None
    ) -> None:
        """Call `then` with the output of an engine command. If the command fails, show a toast with its
        error message, or with `failure` if there is no message."""

        def answered(code: int, out: str, err: str) -> None:
            if code:
                self._window.toasts.error(command_error_text(out, err) or failure)
            else:
                then(out)

        call.finished.connect(answered)

    def use_configuration(self, path: Path, then: Callable[[], object] = lambda: None) -> None:
        """Make the configuration of the run at `path` the draft, then call `then`.

        For a race, this is the configuration that was requested."""

        def read() -> tuple[str, str]:
            file = RaceDir(path).request_file if is_race(path) else RunDir(path).config_file
            return files.read_text(file), read_title(path)

        def use(result: tuple[str, str]) -> None:
            text, title = result
            self._session.script.set_chosen(False)
            self._session.draft.replace(text, folder=path, stem="", origin=f"{RUN_ORIGIN_PREFIX}{title}")
            self._window.show_activity("launch")
            then()

        def refuse(error: OSError) -> None:
            message = tr("{file} cannot be read: {why}.", file=error.filename or path, why=error.strerror)
            self._window.toasts.error(message)

        self._session.io_thread.submit(read, use, refuse)

    def reveal(self, path: Path) -> None:
        QDesktopServices.openUrl(QUrl.fromLocalFile(str(path)))

    def copy_path(self, path: Path) -> None:
        self.copy_paths([path])

    def copy_paths(self, paths: Sequence[Path]) -> None:
        QGuiApplication.clipboard().setText("\n".join(map(str, paths)))

    # Parts of the frame that show the current run

    def _list_problems(self, run: LiveRun) -> None:
        """List the run's problems at the viewed time."""
        viewed = run.viewed
        problems = list(viewed.problems)
        if viewed.outcome == "lost":
            problems.append(lost_problem(run.run_dir))
        elif viewed.outcome == "failed" and not problems:
            problems.append(failed_problem(run.run_dir))
        self._session.problems.set(str(run.run_dir.path), run.title, problems, run.run_dir.path)

    def _show_failure(self, run: LiveRun, outcome: str) -> None:
        """Switch the panel to Problems if the panel is open and `run` is current and has just failed."""
        if outcome == "running":
            self._paths_observed_alive.add(run.run_dir.path)
            return
        # A restored tab of a run that failed long ago must not switch the panel. A run that was launched here
        # may have failed before the window first reads it.
        path = run.run_dir.path
        is_new = path in self._paths_observed_alive or path in self.launched
        if (
            is_new
            and outcome in ("failed", "lost")
            and run is self.current
            and self._window.panel.isVisible()
        ):
            self._window.show_panel("problems")

    def _show_ended_toast(self, info: RunInfo) -> None:
        """Show a toast when a run launched in this window has ended, unless the run's tab is active. Several
        runs share one toast."""
        active, toasts = self.active(), self._window.toasts
        if info.path not in self.launched or (active is not None and active.run_dir.path == info.path):
            return
        # Once the toast is closed, the user knows about its runs.
        self._ended_runs = [*(self._ended_runs if toasts.find(_ENDED_TOAST_KEY) else []), info]
        failed = any(ended.outcome in ("failed", "lost") for ended in self._ended_runs)
        message = tr("{run}: {state}", run=info.title, state=outcome_style(info.state)[2])
        show: ToastAction = (tr("Show"), lambda: self.open(info.path))
        if len(self._ended_runs) > 1:
            counts = Counter(ended.outcome for ended in self._ended_runs)
            counts_text = ", ".join(
                run_text.outcome_count_text(outcome, count) for outcome, count in counts.items()
            )
            num = len(self._ended_runs)
            message = tr("{n} runs ended: {told}", "{n} run ended: {told}", num, told=counts_text)
            show = (tr("Show Runs"), self._show_runs)
        toasts.show(message, "error" if failed else "info", [show], key=_ENDED_TOAST_KEY)

    def _show_runs(self) -> None:
        self._window.show_activity("runs")

    def usages(self) -> tuple[str, dict[str, dict[int, tuple[int | None, float | None, bool]]]]:
        """Return the memory that the current run uses.

        The result is a pair: the kind of device, "gpu" or "virtual", and the usage by host and by the
        device's index on the host. A usage is a tuple: the bytes in use; their fraction of the capacity or,
        if that is unknown, of the largest usage; and whether this device uses notably more memory than the
        others. The host of a single-host run is "". If no run is current, or it has ended, the result is
        ("", {}).
        """
        run = self.current
        if run is None or not run.devices or run.is_over:
            return "", {}
        totals = [run.device_bytes(device) for device in run.devices]
        scale = run.capacity_bytes or max((total or 0 for total in totals), default=0)
        lead = lead_device(run.imbalance)
        leading = None if lead is None else run.charted_devices[lead]
        by_uuid = {gpu.uuid: gpu.index for gpus in self._session.hosts.all_gpus for gpu in gpus.devices}
        usages: dict[str, dict[int, tuple[int | None, float | None, bool]]] = {}
        for device, total in zip(run.devices, totals, strict=True):
            host = "" if device.info is None else device.info.host
            usage = usages.setdefault(host, {})
            # The GPUs of a host that is not observed have no known UUIDs, so they are numbered in order.
            index = by_uuid.get(device.uuid or "", len(usage) if host else device.device)
            share = total / scale if total is not None and scale else None
            usage[index] = (total, share, device is leading)
        return run.devices[0].kind or "", usages

    def _show_status(self) -> None:
        run, status = self.current, self._window.status_bar
        state = status.item("run", "left", 90)
        devices = status.item("devices", "right", 2)
        loss, rate = status.item("loss", "right", 4, mono=True), status.item("rate", "right", 6, mono=True)
        if run is None:
            for item in (state, devices, loss, rate):
                item.show_text("")
        else:
            name = "" if self.active() is run else run.title
            state.show_text(
                " · ".join(filter(None, (name, run_text.state_text(run), *run_text.progress_texts(run)))),
                outcome_style(run.outcome or "running")[0],
                tooltip=f"{run.title}\n{run.run_dir.path}",
                command="view.panel.output",
            )
            # The status bar shows this machine's GPUs already.
            is_shown = not run.has_gpus or not self._session.gpus.devices
            devices.show_text(
                run_text.devices_text(run) if is_shown else "", tooltip=tr(run.source) if run.source else ""
            )
            loss_text = "" if run.loss is None else tr("loss {loss}", loss=format_loss(run.loss))
            loss.show_text(loss_text, tooltip=tr("Training loss of the last step"))
            rate.show_text(run_text.rate_text(run), tooltip=tr("Total across all devices"))
        self.metrics_changed.emit()

    def close(self) -> None:
        self._restored_tabs.close()
        self.open_runs.close()


def _run_of(page: Page | None) -> LiveRun | None:
    run: LiveRun | None = getattr(page, "run", None) if page is not None and page.kind == PAGE_KIND else None
    return run


def _kind_on_disk(path: Path) -> str:
    return RUN if is_run(path) else RACE if is_race(path) else ""
