"""What can be done about a run whose ranks make no progress: see the line, and the stacks of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from rankdeck.base.phrases import phrase
from rankdeck.rundir import RunDir
from rankdeck_app.commands.table import Command
from rankdeck_app.controllers.run_tabs import RunTabs
from rankdeck_app.controllers.session import Session
from rankdeck_app.language import tr
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.state.engine_process import refusal_of

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
