"""Opens files at the line of a problem, steps through problems with F8, and shows the stacks of hung ranks.

A file opens in the editor that the setting `editor.command` names, or else in the app's page (code_page.py).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

from PySide6.QtCore import QProcess

from rankdeck.base.phrases import phrase
from rankdeck.run_dir import RunDir
from rankdeck_app.commands.table import Command
from rankdeck_app.controllers.run_tabs import RunTabs
from rankdeck_app.controllers.session import Session
from rankdeck_app.language import tr
from rankdeck_app.shell.page import Page
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.state.problem_list import DRAFT_OWNER, SCRIPT_OWNER, ListedProblem, ProblemList

PAGE_KIND = "code"


class ProblemNavigator:
    """Navigates to problems. `show_config` opens the configuration at a line; `open_run` opens a run's
    tab."""

    def __init__(
        self,
        window: MainWindow,
        problems: ProblemList,
        show_config: Callable[[int | None], object],
        open_run: Callable[[Path], object],
    ) -> None:
        self._window = window
        self._problems = problems
        self._show_config = show_config
        self._open_run = open_run
        self._current: ListedProblem | None = None
        self._index = 0
        window.editor.register_page_kind(PAGE_KIND, self._make_page)
        problems.changed.connect(self._update_context)
        self._update_context()

    def commands(self) -> list[Command]:
        row, back = partial(Command, when="hasProblems", menu="View/7_problems"), partial(self.navigate, -1)
        return [
            row("problems.next", phrase("Problems: Go to Next Problem"), partial(self.navigate, 1), ("F8",)),
            row("problems.previous", phrase("Problems: Go to Previous Problem"), back, ("Shift+F8",)),
        ]

    def open_location(self, file: Path, line: int, message: str = "") -> None:
        """Show a line of a file; `message` describes the problem on that line."""
        if self._editor_command() and self.open_in_editor(file, line):
            return
        from rankdeck_app.views.code_page import CodePage, page_id

        page = self._window.editor.open(page_id(file))
        if isinstance(page, CodePage):
            page.go_to(line, message)

    def open_in_editor(self, file: Path, line: int) -> bool:
        """Start the user's editor; return whether it started."""
        command = self._editor_command()
        try:
            # Split before the path is filled in, so that a path with spaces stays a single argument.
            argv = [word.format(file=file, line=line) for word in shlex.split(command)]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            return self._show_error(tr('The setting "editor.command" is malformed ({error}).', error=error))
        if not argv:
            return self._show_error(tr('The setting "editor.command" is empty.'))
        # A plain program, such as "code", gets the file as its argument.
        if "{file}" not in command:
            argv.append(str(file))
        started, _pid = QProcess.startDetached(argv[0], argv[1:])
        no_start = tr(
            'The program {program} in the setting "editor.command" could not be started.', program=argv[0]
        )
        return bool(started) or self._show_error(no_start)

    def _show_error(self, why: str) -> bool:
        settings = (tr("Open Settings"), lambda: self._window.commands.run("preferences.settings"))
        example = tr('Use a command such as "code -g {file}:{line}".')
        self._window.toasts.show(f"{why} {example}", "warning", [settings])
        return False

    def open_problem(self, entry: ListedProblem) -> None:
        """Go to a problem: its line of code, its line of the configuration, or its run."""
        from rankdeck_app.views.problems import message_text, user_code_lines

        code = user_code_lines(entry.problem)
        if code:
            self.open_location(Path(code[0].file), code[0].line, message_text(entry.problem))
        elif entry.owner == DRAFT_OWNER:
            self._show_config(entry.problem.line)
        elif entry.owner == SCRIPT_OWNER:
            self._window.show_activity("launch")
        elif entry.run is not None:
            self._open_run(entry.run)

    def navigate(self, step: int) -> None:
        """Go to the next or previous problem, wrapping around: select it in the panel and open it."""
        from rankdeck_app.views.problems import ProblemsView

        entries = self._problems.entries
        if not entries:
            return
        if self._current in entries:
            self._index = entries.index(self._current) + step
        elif step < 0:  # the problem is gone; its successor has its index, so only going back must move
            self._index -= 1
        self._index = max(self._index, -1) % len(entries)
        self._current = entries[self._index]
        view = self._window.show_panel("problems")
        self.open_problem(self._current)
        if isinstance(view, ProblemsView):
            view.show_entry(self._current)

    def _make_page(self, page_id: str) -> Page:
        from rankdeck_app.views.code_page import CodePage

        return CodePage(page_id, self._window.theme, self.open_in_editor, self._has_editor_command)

    def _editor_command(self) -> str:
        return self._window.settings.get("editor.command", str).strip()

    def _has_editor_command(self) -> bool:
        return bool(self._editor_command())

    def _update_context(self) -> None:
        self._window.context.set("hasProblems", bool(self._problems.entries))


# For a run whose ranks make no progress: show the line, and the stacks of all ranks.

OpenLocation = Callable[[Path, int, str], object]


class HangCommands:
    """Commands for runs whose ranks make no progress. `open_place` shows a line of a file with a message."""

    def __init__(self, window: MainWindow, session: Session, tabs: RunTabs, open_place: OpenLocation) -> None:
        self._window, self._session, self._tabs = window, session, tabs
        self._open_location = open_place

    def commands(self) -> list[Command]:
        row = partial(Command, when="activeRunStandsStill", menu="Run/3_this")
        return [
            row("run.stacks", phrase("Run: Show Stacks"), self._tabs.on_active(self.show_stacks)),
            row("run.standstill", phrase("Run: Go to Hanging Line"), self._go_to_line),
        ]

    def show_stacks(self, run: Path) -> None:
        """Write the stacks of all ranks to a file in the run's logs folder, and open the file."""
        toasts, file = self._window.toasts, RunDir(run).logs_folder / "stacks.txt"

        def refuse(error: OSError) -> None:
            toasts.error(tr("{file} cannot be written: {why}.", file=file, why=error.strerror))

        def answered(out: str) -> None:
            write = partial(file.write_text, out, encoding="utf-8")
            self._session.io_thread.submit(write, lambda _size: self._open_location(file, 1, ""), refuse)

        call = self._session.engine.call(["stacks", str(run)])
        self._tabs.report_answer(call, tr("The stacks of the ranks could not be collected."), answered)

    def _go_to_line(self) -> None:
        from rankdeck_app.views.problems import user_code_lines

        run = self._tabs.active()
        problem = None if run is None else run.hang_problem
        if run is None or problem is None:
            return
        lines = user_code_lines(problem)
        if lines:
            self._open_location(Path(lines[0].file), lines[0].line, problem.message)
        else:
            self.show_stacks(run.run_dir.path)
