"""Runs the user's own scripts: from the form, from an entry of rankdeck.toml, or again as a new run.

Scripts, interpreters inside the workspace folder and everything that the folder's rankdeck.toml names are
user code: none of it runs before its folder is trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QFileDialog

from rankdeck.base.errors import ConfigError, Problem
from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.config import RunConfig
from rankdeck.config.environments import Interpreter
from rankdeck.config.script import ScriptConfig
from rankdeck.run_dir import RunDir
from rankdeck_app.commands.table import Command
from rankdeck_app.controllers.launcher import Launcher
from rankdeck_app.controllers.session import Session
from rankdeck_app.language import error_text, tr
from rankdeck_app.shell.floating_list import QuickPickItem
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.state.engine_process import Launch
from rankdeck_app.state.problem_list import problem_text
from rankdeck_app.state.script_folder import interpreter_text, shorten_home

_ENTRY_PREFIX = "run.entry."
_FILE_FILTER = tr_noop("Python (*.py);;All files (*)")


class Scripts(QObject):
    """Launches the user's scripts. InterpreterPicker lets the user choose the Python interpreter for them."""

    def __init__(self, window: MainWindow, session: Session, launching: Launcher) -> None:
        super().__init__(window)
        self._window, self._session, self._launcher = window, session, launching
        self._entry_commands: dict[str, str] = {}
        session.scripts.changed.connect(self._register_entries)

    def commands(self) -> list[Command]:
        return [
            Command(
                "run.script", phrase("Run: Script…"), self.pick, ("Ctrl+K Ctrl+R",), menu="Run/1_control"
            ),
            Command("script.save", phrase("Run: Save Entry…"), self.ask_entry_name, menu="Run/2_configure"),
        ]

    def launch_text(self) -> str | None:
        """Return the script's name, number of ranks and interpreter as text; None if no script is chosen."""
        script, scripts = self._session.script, self._session.scripts
        if not script.is_chosen:
            return None
        own_python, ranks = script.form.python, script.ranks
        interpreter = scripts.describe(own_python) if own_python else scripts.interpreter
        what = tr("{script} on {n} ranks", "{script} on {n} rank", ranks, script=script.name)
        return what if interpreter is None else f"{what}, {interpreter_text(interpreter)}"

    # Choosing

    def pick(self) -> None:
        """Ask for a script in the workspace folder and show it in the launch form."""
        browse = QuickPickItem(tr("Browse…"), tr("from any folder"), self.browse, icon="folder-opened")
        self._window.command_palette.pick([*self.items(), browse], tr("Which script?"))
        self._session.scripts.scan()

    def items(self) -> list[QuickPickItem]:
        """Return the workspace folder's scripts as quick pick items; quick open lists them too."""
        return [
            QuickPickItem(
                script.path.name,
                f"{script.name} · {', '.join(script.libraries)}",
                partial(self.show, script.path),
                tr("script"),
                "python",
            )
            for script in self._session.scripts.facts.scripts
        ]

    def browse(self) -> None:
        workspace = self._session.workspace
        folder = str(workspace.dialog_folder)
        chosen, _ = QFileDialog.getOpenFileName(self._window, tr("Choose a Script"), folder, tr(_FILE_FILTER))
        if chosen:
            workspace.remember_dialog_path(Path(chosen))
            self.show(Path(chosen))

    def show(self, path: Path) -> None:
        """Choose the script at `path` for the next launch, and show the form."""
        self._session.script.set_file(path)
        self._session.script.set_chosen(True)
        self._window.show_activity("launch")

    def use_config(self, config: ScriptConfig) -> None:
        """Fill the form with the configuration of a script's run, and show the form."""
        self._session.script.use_config(config)
        self._session.script.set_chosen(True)
        self._window.show_activity("launch")

    # Entries

    def load_entry(self, name: str) -> None:
        """Load an entry of rankdeck.toml into the form."""
        entry = self._session.scripts.facts.file.entries.get(name)
        if entry is not None:
            self._session.script.load_entry(name, entry)

    def ask_entry_name(self) -> None:
        script = self._session.script
        if (problem := next(iter(script.problems), None)) is not None:
            self._window.toasts.warn(problem_text(problem))
            return
        suggested = script.form.entry or Path(script.name).stem
        self._window.command_palette.prompt(
            tr("Name of the entry in rankdeck.toml"), self.save_entry, suggested
        )

    def save_entry(self, name: str) -> None:
        """Save the form as an entry of rankdeck.toml."""
        script, name = self._session.script, name.strip()
        if not name:
            self._window.toasts.warn(tr("An entry needs a name."))
            return
        form = script.form

        def saved() -> None:
            if script.form == form:
                script.set_form(replace(form, entry=name))
            self._window.toasts.info(tr("Saved the entry {entry} to rankdeck.toml.", entry=name))

        try:
            self._session.scripts.save_entry(name, script.to_entry(), saved, self._show_error)
        except ValueError as error:
            self._show_error(error)

    def remove_entry(self, name: str) -> None:
        def removed() -> None:
            if self._session.script.form.entry == name:
                self._session.script.set_fields(entry="")

        self._session.scripts.remove_entry(name, removed, self._show_error)

    def _show_error(self, error: Exception) -> None:
        self._window.toasts.error(error_text(error))

    def _register_entries(self) -> None:
        """Register a command for each entry of rankdeck.toml."""
        entries = self._session.scripts.facts.file.entries
        entry_commands = {f"{_ENTRY_PREFIX}{name}": name for name in entries}
        if entry_commands != self._entry_commands:
            self._window.commands.unregister(*self._entry_commands)
            self._entry_commands = entry_commands
            self._window.commands.register(
                *(
                    Command(command_id, phrase("Run: {entry}", entry=name), partial(self.launch_entry, name))
                    for command_id, name in entry_commands.items()
                )
            )

    # Launching

    def launch_form(self) -> None:
        """Launch the script in the form."""
        script, scripts = self._session.script, self._session.scripts
        if self._launcher.report_if_blocked():
            return
        form = script.form

        def refused(problems: list[Problem]) -> None:
            if script.form == form:
                script.set_engine_problems(problems)

        def start(python: Path) -> None:
            arguments = script.build_command(str(python), self._session.workspace.runs_folder)
            folders = self.code_folders(script.path, python)
            # The interpreter was named by the form or by rankdeck.toml, so the workspace folder has to be
            # trusted too.
            if form.python or scripts.is_from_file:
                folders.append(scripts.folder)
            self._launcher.when_trusted(lambda: folders, lambda: self._start(script.name, arguments, refused))

        self._find_python(form.python, start)

    def launch_entry(self, name: str) -> None:
        """Launch an entry of rankdeck.toml; the form stays unchanged."""
        scripts = self._session.scripts
        entry = scripts.facts.file.entries.get(name)
        if entry is None:
            return
        runs = str(self._session.workspace.runs_folder)
        script = scripts.folder / entry.run if entry.kind == "file" else None

        def start(python: Path) -> None:
            arguments = [
                "run",
                "--detach",
                "--json",
                "--runs",
                runs,
                "--python",
                str(python),
                "--entry",
                name,
            ]
            folders = [*self.code_folders(script, python), scripts.folder]
            self._launcher.when_trusted(lambda: folders, lambda: self._start(name, arguments))

        self._find_python(entry.python or "", start)

    def run_again(self, path: Path) -> None:
        """Start a new run with the script or configuration of an earlier run, asking for trust if needed."""
        run = RunDir(path)

        def start(config: ScriptConfig | RunConfig) -> None:
            if isinstance(config, RunConfig):
                self._launcher.launch_again(path, config)
            else:
                self._launcher.when_trusted(
                    partial(self._session.trust.untrusted_folders_of_run, path, config),
                    partial(self._start_again, path, config),
                )

        def refuse(error: ConfigError) -> None:
            self._launcher.show_refusal(self._session.runs.get_title(path), error.problems)

        self._session.io_thread.submit(lambda: run.script() or run.config(), start, refuse)

    def _start_again(self, path: Path, config: ScriptConfig) -> None:
        workspace = self._session.workspace.folder
        self._show_starting_page(self._session.engine.resume(config.name, path, workspace=workspace))

    def _start(
        self, name: str, arguments: Sequence[str], refused: Callable[[list[Problem]], object] | None = None
    ) -> None:
        workspace = self._session.workspace.folder
        launch: Launch = self._session.engine.run_script(name, arguments, workspace=workspace)
        if refused is not None:
            launch.refused.connect(refused)
        self._show_starting_page(launch)

    def _show_starting_page(self, launch: Launch) -> None:
        """Open the starting page of a launch; if the panel is open, bring its Output tab to the front."""
        self._launcher.show_starting_page(launch)
        if self._window.wanted_parts["panel"]:
            self._window.panel.show_tab("output")

    def _find_python(self, named_python: str, start: Callable[[Path], object]) -> None:
        """Find the interpreter `named_python`, or the workspace folder's if the name is empty, and call
        `start` with its path. Show errors to the user."""
        script = self._session.script

        def on_found(python: Path | None) -> None:
            if python is not None:
                start(python)
                return
            message, advice = (
                tr("No Python interpreter was found."),
                tr('Choose an interpreter with "Python: Select Interpreter".'),
            )
            problem = Problem("no-python", message, path="script.python", advice=advice)
            self._launcher.show_refusal(script.name, [problem])

        def refused(error: ConfigError | OSError) -> None:
            problems = (
                error.problems if isinstance(error, ConfigError) else [Problem("no-python", str(error))]
            )
            script.set_engine_problems(problems)
            self._launcher.show_refusal(script.name, problems)

        self._session.scripts.find(named_python, on_found, refused)

    def code_folders(self, script: Path | None, python: Path) -> list[Path]:
        """Return the folders whose code runs: the workspace folder if the script or the interpreter is in it,
        and the script's folder if the script is elsewhere."""
        folder = self._session.workspace.folder
        folders = [folder if script is None or script.is_relative_to(folder) else script.parent]
        if python.is_relative_to(folder):
            folders.append(folder)
        return list(dict.fromkeys(folders))


# The interpreter for the workspace folder's scripts: a status bar item and the list that it opens.  Choosing
# one executes nothing. An interpreter runs only when a script is launched with it, and its folder has to be
# trusted first.

SELECT_INTERPRETER_COMMAND = "python.select"
_PICKER_PLACEHOLDER = tr_noop("Select the interpreter for this folder's scripts")


class InterpreterPicker(QObject):
    """Shows the workspace folder's interpreter, and lets the user choose another."""

    def __init__(self, window: MainWindow, session: Session) -> None:
        super().__init__(window)
        self._window, self._session = window, session
        self._is_open = False
        session.scripts.changed.connect(self._on_scripts_changed)
        session.scripts.failed.connect(window.toasts.warn)
        self._on_scripts_changed()

    def commands(self) -> list[Command]:
        return [
            Command(
                SELECT_INTERPRETER_COMMAND,
                phrase("Python: Select Interpreter"),
                self.pick,
                menu="Run/2_configure",
            )
        ]

    def pick(self) -> None:
        """Open the list of the interpreters found so far, and scan for more."""
        self._is_open = True
        self._window.command_palette.pick(self.items(), tr(_PICKER_PLACEHOLDER))
        self._session.scripts.scan()

    def items(self) -> list[QuickPickItem]:
        scripts = self._session.scripts
        default = scripts.facts.default if scripts.is_chosen else None
        items = [QuickPickItem(tr("Enter interpreter path…"), "", self._ask_path, icon="add")]
        if default is not None:
            description = f"{interpreter_text(default)}, {shorten_home(default.python)}"
            back = partial(self._choose, None)
            items.append(
                QuickPickItem(tr("Use the default interpreter"), description, back, icon="debug-rerun")
            )
        now = scripts.interpreter
        interpreters = list(scripts.facts.interpreters)
        if now is not None and all(interpreter.python != now.python for interpreter in interpreters):
            interpreters.insert(0, now)
        interpreters.sort(key=lambda interpreter: now is None or interpreter.python != now.python)
        items += [
            self._item(interpreter, interpreter is interpreters[0] and now is not None)
            for interpreter in interpreters
        ]
        if not scripts.is_known:
            items.append(QuickPickItem(tr("Looking for environments…"), icon="loading"))
        return items

    def _item(self, interpreter: Interpreter, is_now: bool) -> QuickPickItem:
        torch = f"torch {interpreter.torch_version}" if interpreter.torch_version else tr("no torch")
        act = partial(self._choose, interpreter.python)
        return QuickPickItem(
            interpreter_text(interpreter),
            shorten_home(interpreter.python),
            act,
            torch,
            "check" if is_now else "python",
        )

    def _ask_path(self) -> None:
        question = tr("Path to an interpreter or to an environment folder")
        self._window.command_palette.prompt(question, self._choose_path)

    def _choose_path(self, text: str) -> None:
        def failed(error: Exception) -> None:
            self._window.toasts.error(error_text(error))

        if text.strip():
            self._session.scripts.find(text.strip(), self._choose, failed)

    def _choose(self, python: Path | None) -> None:
        """Choose the interpreter for the workspace folder, and clear an interpreter that a rankdeck.toml
        entry set in the form."""
        self._session.script.set_fields(python="")
        self._session.scripts.choose(python)

    def _on_scripts_changed(self) -> None:
        scripts, palette = self._session.scripts, self._window.command_palette
        now, item = scripts.interpreter, self._window.status_bar.item("python", "left", 100)
        if now is None:
            item.show_text("")
        else:
            torch = (
                f"torch {now.torch_version}" if now.torch_version else tr("no torch found in its environment")
            )
            tooltip_lines = (
                f"{shorten_home(now.python)} ({scripts.source})",
                torch,
                tr("Select the interpreter for scripts"),
            )
            item.show_text(
                interpreter_text(now), tooltip="\n".join(tooltip_lines), command=SELECT_INTERPRETER_COMMAND
            )
        # The list is still open: add the interpreters that were found meanwhile, and keep what was typed.
        if (
            self._is_open
            and palette.isVisible()
            and palette.input.placeholderText() == tr(_PICKER_PLACEHOLDER)
        ):
            typed = palette.input.text()
            palette.pick(self.items(), tr(_PICKER_PLACEHOLDER))
            palette.input.setText(typed)
        else:
            self._is_open = False
