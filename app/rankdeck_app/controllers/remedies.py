"""What can be done about a problem from here: the buttons of the Problems panel.

A cause that the engine learns to name gets its button by one more line of `of`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from PySide6.QtCore import QObject

from rankdeck.base.errors import Problem, cure_in_words
from rankdeck.base.phrases import phrase
from rankdeck.config.cures import is_out_of_memory
from rankdeck.diagnose.findings.machine import CODE
from rankdeck.doctor.offering import may_explain
from rankdeck.run.standstill import is_of_standstill
from rankdeck.rundir import RunDir
from rankdeck_app.commands.table import Command
from rankdeck_app.controllers.cures import Cures
from rankdeck_app.controllers.device_watch import DeviceWatch
from rankdeck_app.controllers.launching import Launching
from rankdeck_app.controllers.memory_whys import MemoryWhys
from rankdeck_app.controllers.run_alerts import RunAlerts
from rankdeck_app.controllers.run_tabs import RunTabs
from rankdeck_app.controllers.session import Session
from rankdeck_app.language import spoken, tr
from rankdeck_app.shell.page import Page
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.state.device_choice import PLACE
from rankdeck_app.state.doctor import Doctor
from rankdeck_app.state.engine_process import refusal_of
from rankdeck_app.state.problem_list import DEVICES, DRAFT, LAUNCH, SCRIPT, ListedProblem, Remedy
from rankdeck_app.state.script_draft import NO_GPUS
from rankdeck_app.state.suggestion import REHEARSAL
from rankdeck_app.state.toml_writing import Place
from rankdeck_app.widgets.run_list import strategy_title


class Remedies:
    """`of` gives the buttons of an entry. `show_config` opens the configuration at a line."""

    def __init__(
        self,
        window: MainWindow,
        session: Session,
        tabs: RunTabs,
        alerts: RunAlerts,
        watch: DeviceWatch,
        doctor: DoctorTab,
        cures: Cures,
        whys: MemoryWhys,
        standstills: Standstills,
        show_config: Callable[[int | None], object],
    ) -> None:
        self._window = window
        self._session = session
        self._tabs = tabs
        self._alerts = alerts
        self._watch = watch
        self._doctor = doctor
        self._cures = cures
        self._whys = whys
        self._standstills = standstills
        self._show_config = show_config

    def of(self, entry: ListedProblem) -> list[Remedy]:
        """What each button says and does; the suggested one stands first."""
        owner, problem, run = entry.owner, entry.problem, entry.run
        remedies: list[Remedy] = []
        if owner in (DRAFT, LAUNCH) and problem.code in ("no-gpu", "no-driver"):
            remedies.append((tr("Rehearse Instead"), self._rehearse))
        if owner == SCRIPT:
            remedies.append((tr("Show the Script"), lambda: self._window.show_activity("launch")))
            if problem.code in ("no-gpu", "no-device"):
                remedies.insert(
                    0, (tr("Run Without GPUs"), lambda: self._session.script.set(devices=NO_GPUS))
                )
        if owner in (DRAFT, LAUNCH) and problem.cure:
            remedies.append((spoken(cure_in_words(problem.cure)), partial(self._mend, problem)))
        if owner == DRAFT and problem.line is not None:
            remedies.append((tr("Go to Line"), partial(self._show_config, problem.line)))
        if owner == LAUNCH:
            remedies.append((tr("Dismiss"), self._dismiss))
        if owner == DEVICES:
            remedies += [(tr("Show Devices"), self._watch.show), (tr("Dismiss"), self._watch.dismiss)]
        remedies += self._cures.of(entry)
        if run is not None and is_of_standstill(problem):
            remedies.append((tr("Show Stacks"), partial(self._standstills.show_stacks, run)))
            remedies.append((tr("Stop Run"), partial(self._tabs.stop, run)))
        if may_explain(problem):
            remedies.append((tr("Look the Machine Over"), self._doctor.show))
        if run is not None and is_out_of_memory(problem):
            remedies.append((tr("Why Out of Memory"), partial(self._whys.open, run)))
        if run is not None and problem.path == "strategy.sync_batchnorm" and not problem.cure:
            remedies.append((tr("Sync Batch Norms"), partial(self._alerts.sync_batch_norms, run)))
        if run is not None and problem.code != CODE:
            remedies.append((tr("Show Output"), partial(self._show_output, entry)))
            remedies.append((tr("Open Its Folder"), partial(self._tabs.reveal, run)))
        elif run is not None and (better := self._alerts.better_for(run)):
            # Run again with the strategy that does without the imbalance.
            use = partial(self._alerts.use_strategy, run, better)
            remedies.append((tr("Use {strategy}", strategy=strategy_title(better)), use))
        return remedies

    def _mend(self, problem: Problem) -> None:
        self._session.draft.mend(problem.cure)
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


# What can be done about a run whose ranks make no progress: see the line, and the stacks of all ranks.

OpenPlace = Callable[[Path, int, str], object]


class Standstills:
    """`open_place` shows a line of a file, and what is said of it."""

    def __init__(self, window: MainWindow, session: Session, tabs: RunTabs, open_place: OpenPlace) -> None:
        self._window, self._session, self._tabs = window, session, tabs
        self._open_place = open_place

    def rows(self) -> list[Command]:
        row = partial(Command, when="activeRunStandsStill", menu="Run/3_this")
        return [
            row("run.stacks", phrase("Run: Show Stacks"), self._show_active),
            row("run.standstill", phrase("Run: Go to the Line Where It Hangs"), self._go_to_line),
        ]

    def show_stacks(self, run: Path) -> None:
        """Ask where every rank stands, and show the answer as a file of the run's logs."""
        toasts, file = self._window.toasts, RunDir(run).logs_folder / "stacks.txt"

        def refuse(error: OSError) -> None:
            toasts.error(tr("{file} cannot be written: {why}.", file=file, why=error.strerror))

        def answered(code: int, out: str, err: str) -> None:
            if code:
                toasts.error(refusal_of(out, err) or tr("The ranks could not be asked for their stacks."))
                return
            write = partial(file.write_text, out, encoding="utf-8")
            self._session.disk.do(write, lambda _size: self._open_place(file, 1, ""), refuse)

        self._session.engine.ask(["stacks", str(run)]).answered.connect(answered)

    def _show_active(self) -> None:
        if (run := self._tabs.active()) is not None:
            self.show_stacks(run.run.path)

    def _go_to_line(self) -> None:
        from rankdeck_app.views.problems import code_of

        run = self._tabs.active()
        problem = None if run is None else run.standstill_problem
        if run is None or problem is None:
            return
        lines = code_of(problem)
        if lines:
            self._open_place(Path(lines[0].file), lines[0].line, problem.message)
        else:
            self.show_stacks(run.run.path)


# The Doctor's tab: opened from the palette, Help, the Devices tab or a problem. Asking for it begins a look
# where none has come to its end; a tab that is only restored begins none.
#
# A look is nobody's but the page's: it ends with it. A launch ends it too, for its two ranks hold GPUs for
# some seconds which the run may want.

PAGE_ID = "doctor:"


class DoctorTab(QObject):
    def __init__(self, window: MainWindow, session: Session, launching: Launching) -> None:
        super().__init__(window)
        self._window, self._launching = window, launching
        self._num_pages = 0
        self.doctor = Doctor(session.engine, session.workspace, self)
        window.editor.register_page_kind("doctor", lambda _id: self._make_page(), tr("Doctor"))
        launching.changed.connect(self._make_way)
        window.closing.connect(self.doctor.stop)

    def rows(self) -> list[Command]:
        return [
            Command("doctor.show", phrase("Help: Look This Machine Over"), self.show, menu="Help/3_machine")
        ]

    def show(self) -> None:
        self._window.editor.open(PAGE_ID)
        if self.doctor.done is None:
            self.doctor.look()

    def _make_page(self) -> Page:
        from rankdeck_app.views.doctor_page import DoctorPage

        self._num_pages += 1
        return DoctorPage(self._window.theme, self.doctor, self._left)

    def _left(self) -> None:
        """A page that is moved is there twice for a moment."""
        self._num_pages -= 1
        if not self._num_pages:
            self.doctor.stop()

    def _make_way(self) -> None:
        if self._launching.num_pending:
            self.doctor.stop(tr("It was stopped for a launch."))
