"""Running a person's own script: from the form, from an entry of rankdeck.toml, and the same again.

A script is code of the person's own, and so are an interpreter inside the folder and what its rankdeck.toml
names: none of them runs before their folders are trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QFileDialog

from rankdeck.base.errors import ConfigError, Problem
from rankdeck.base.phrases import marked, phrase
from rankdeck.config import RunConfig
from rankdeck.config.environments import Interpreter
from rankdeck.config.script import ScriptConfig
from rankdeck.rundir import RunDir
from rankdeck_app.commands.table import Command
from rankdeck_app.controllers.launching import Launching
from rankdeck_app.controllers.session import Session
from rankdeck_app.language import error_in_words, tr
from rankdeck_app.shell.floating_list import QuickItem
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.state.engine_process import Launch
from rankdeck_app.state.problem_list import text_of
from rankdeck_app.state.script_folder import place_of, short_words

_ENTRY = "run.entry."
_FILTER = marked("Python (*.py);;All files (*)")


class Scripts(QObject):
    """Acts on the session's script; `InterpreterPicker` asks which Python runs it."""

    def __init__(self, window: MainWindow, session: Session, launching: Launching) -> None:
        super().__init__(window)
        self._window, self._session, self._launching = window, session, launching
        self._entry_commands: dict[str, str] = {}
        session.scripts.changed.connect(self._list_entries)

    def rows(self) -> list[Command]:
        return [
            Command(
                "run.script", phrase("Run: Script…"), self.pick, ("Ctrl+K Ctrl+R",), menu="Run/1_control"
            ),
            Command("script.save", phrase("Run: Save Entry…"), self.ask_entry_name, menu="Run/2_configure"),
        ]

    def in_words(self) -> str | None:
        """What Launch would start, where that is a script."""
        script, scripts = self._session.script, self._session.scripts
        if not script.is_chosen:
            return None
        own, ranks = script.form.python, script.ranks
        interpreter = scripts.describe(own) if own else scripts.interpreter
        what = tr("{script} on {n} ranks", "{script} on {n} rank", ranks, script=script.name)
        return what if interpreter is None else f"{what}, {short_words(interpreter)}"

    # Choosing

    def pick(self) -> None:
        """Ask which script of the folder, and show it in Launch."""
        browse = QuickItem(tr("Browse…"), tr("a script anywhere"), self.browse, icon="folder-opened")
        self._window.palette_box.pick([*self.items(), browse], tr("Which script?"))
        self._session.scripts.look()

    def items(self) -> list[QuickItem]:
        """The folder's scripts, for quick open too."""
        return [
            QuickItem(
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
        chosen, _ = QFileDialog.getOpenFileName(self._window, tr("Choose a Script"), folder, tr(_FILTER))
        if chosen:
            workspace.chose(Path(chosen))
            self.show(Path(chosen))

    def show(self, path: Path) -> None:
        """Make it the script that Launch would start, and show the form."""
        self._session.script.set_file(path)
        self._session.script.choose(True)
        self._window.show_activity("launch")

    def use(self, config: ScriptConfig) -> None:
        """Fill the form with the script of a run."""
        self._session.script.use(config)
        self._session.script.choose(True)
        self._window.show_activity("launch")

    # Entries

    def fill(self, name: str) -> None:
        """Take an entry of the folder's rankdeck.toml into the form."""
        entry = self._session.scripts.facts.file.entries.get(name)
        if entry is not None:
            self._session.script.fill(name, entry)

    def ask_entry_name(self) -> None:
        script = self._session.script
        if (problem := next(iter(script.problems), None)) is not None:
            self._window.toasts.warn(text_of(problem))
            return
        suggested = script.form.entry or Path(script.name).stem
        self._window.palette_box.ask(tr("Name of the entry in rankdeck.toml"), self.save_entry, suggested)

    def save_entry(self, name: str) -> None:
        """Keep the form in the folder's rankdeck.toml."""
        script, name = self._session.script, name.strip()
        if not name:
            self._window.toasts.warn(tr("An entry needs a name."))
            return
        form = script.form

        def saved() -> None:
            if script.form == form:
                script.set_form(replace(form, entry=name))
            self._window.toasts.info(tr("{entry} is in rankdeck.toml.", entry=name))

        try:
            self._session.scripts.save_entry(name, script.to_entry(), saved, self._say)
        except ValueError as error:
            self._say(error)

    def remove_entry(self, name: str) -> None:
        def removed() -> None:
            if self._session.script.form.entry == name:
                self._session.script.set(entry="")

        self._session.scripts.remove_entry(name, removed, self._say)

    def _say(self, error: Exception) -> None:
        self._window.toasts.error(error_in_words(error))

    def _list_entries(self) -> None:
        """A command for each entry, as long as it is there."""
        entries = self._session.scripts.facts.file.entries
        wanted = {f"{_ENTRY}{name}": name for name in entries}
        if wanted != self._entry_commands:
            self._window.commands.withdraw(*self._entry_commands)
            self._entry_commands = wanted
            self._window.commands.register(
                *(
                    Command(command_id, phrase("Run: {entry}", entry=name), partial(self.launch_entry, name))
                    for command_id, name in wanted.items()
                )
            )

    # Launching

    def launch_form(self) -> None:
        """Start what the form says."""
        script, scripts = self._session.script, self._session.scripts
        if self._launching.is_blocked():
            return
        form = script.form

        def refused(problems: list[Problem]) -> None:
            if script.form == form:
                script.refuse(problems)

        def begin(python: Path) -> None:
            arguments = script.command(str(python), self._session.workspace.runs_folder)
            folders = self.code_folders(script.path, python)
            if form.python or scripts.is_from_file:
                folders.append(scripts.folder)
            self._launching.when_trusted(
                lambda: folders, lambda: self._begin(script.name, arguments, refused)
            )

        self._with_python(form.python, begin)

    def launch_entry(self, name: str) -> None:
        """Start an entry of the folder's rankdeck.toml; the form stays as it is."""
        scripts = self._session.scripts
        entry = scripts.facts.file.entries.get(name)
        if entry is None:
            return
        runs = str(self._session.workspace.runs_folder)
        script = scripts.folder / entry.run if entry.kind == "file" else None

        def begin(python: Path) -> None:
            told = ["run", "--detach", "--json", "--runs", runs, "--python", str(python), "--entry", name]
            folders = [*self.code_folders(script, python), scripts.folder]
            self._launching.when_trusted(lambda: folders, lambda: self._begin(name, told))

        self._with_python(entry.python or "", begin)

    def run_again(self, path: Path) -> None:
        """The same once more, as a new run, asking first where its code is not trusted."""
        run = RunDir(path)

        def begin(config: ScriptConfig | RunConfig) -> None:
            if isinstance(config, RunConfig):
                self._launching.launch_again(path, config)
            else:
                self._launching.when_trusted(
                    partial(self._session.trust.untrusted_of, path, config),
                    partial(self._begin_again, path, config),
                )

        def refuse(error: ConfigError) -> None:
            self._launching.refused(self._session.runs.title_of(path), error.problems)

        self._session.disk.do(lambda: run.script() or run.config(), begin, refuse)

    def _begin_again(self, path: Path, config: ScriptConfig) -> None:
        workspace = self._session.workspace.folder
        self._show(self._session.engine.resume(config.name, path, workspace=workspace))

    def _begin(
        self, name: str, arguments: Sequence[str], refused: Callable[[list[Problem]], object] | None = None
    ) -> None:
        workspace = self._session.workspace.folder
        launch: Launch = self._session.engine.run_script(name, arguments, workspace=workspace)
        if refused is not None:
            launch.refused.connect(refused)
        self._show(launch)

    def _show(self, launch: Launch) -> None:
        """A tab of its own, and what the script prints in the panel, if that is open."""
        self._launching.show_starting(launch)
        if self._window.wanted["panel"]:
            self._window.panel.show_tab("output")

    def _with_python(self, own: str, begin: Callable[[Path], object]) -> None:
        """The interpreter that an entry or the form names, else the folder's; what is wrong is said."""
        script = self._session.script

        def found(python: Path | None) -> None:
            if python is not None:
                begin(python)
                return
            message, advice = tr("No Python was found."), tr("Choose one: Python: Select Interpreter.")
            problem = Problem("no-python", message, path="script.python", advice=advice)
            self._launching.refused(script.name, [problem])

        def refused(error: ConfigError | OSError) -> None:
            problems = (
                error.problems if isinstance(error, ConfigError) else [Problem("no-python", str(error))]
            )
            script.refuse(problems)
            self._launching.refused(script.name, problems)

        self._session.scripts.find(own, found, refused)

    def code_folders(self, script: Path | None, python: Path) -> list[Path]:
        """Whose code runs: the opened folder's where it holds script or interpreter, else the script's."""
        folder = self._session.workspace.folder
        folders = [folder if script is None or script.is_relative_to(folder) else script.parent]
        if python.is_relative_to(folder):
            folders.append(folder)
        return list(dict.fromkeys(folders))


# Which Python runs the folder's scripts: an item of the status bar, and the list that it opens.
#
# Choosing executes nothing; an interpreter runs when a script is launched with it, and then its folder is
# trusted first.

COMMAND = "python.select"
_QUESTION = marked("Select the interpreter for this folder's scripts")


class InterpreterPicker(QObject):
    """Follows the session's folder."""

    def __init__(self, window: MainWindow, session: Session) -> None:
        super().__init__(window)
        self._window, self._session = window, session
        self._is_asking = False
        session.scripts.changed.connect(self._changed)
        session.scripts.failed.connect(window.toasts.warn)
        self._changed()

    def rows(self) -> list[Command]:
        return [Command(COMMAND, phrase("Python: Select Interpreter"), self.pick, menu="Run/2_configure")]

    def pick(self) -> None:
        """What is known now, and once it has been looked up, what is new."""
        self._is_asking = True
        self._window.palette_box.pick(self.items(), tr(_QUESTION))
        self._session.scripts.look()

    def items(self) -> list[QuickItem]:
        scripts = self._session.scripts
        usual = scripts.facts.usual if scripts.is_chosen else None
        items = [QuickItem(tr("Enter interpreter path…"), "", self._ask_path, icon="add")]
        if usual is not None:
            tell = f"{short_words(usual)}, {place_of(usual.python)}"
            back = partial(self._choose, None)
            items.append(QuickItem(tr("Use the usual one"), tell, back, icon="debug-rerun"))
        now = scripts.interpreter
        known = list(scripts.facts.known)
        if now is not None and all(one.python != now.python for one in known):
            known.insert(0, now)
        known.sort(key=lambda one: now is None or one.python != now.python)
        items += [self._item(one, one is known[0] and now is not None) for one in known]
        if not scripts.is_known:
            items.append(QuickItem(tr("Looking for environments…"), icon="loading"))
        return items

    def _item(self, one: Interpreter, is_now: bool) -> QuickItem:
        torch = f"torch {one.torch_version}" if one.torch_version else tr("no torch")
        act = partial(self._choose, one.python)
        return QuickItem(short_words(one), place_of(one.python), act, torch, "check" if is_now else "python")

    def _ask_path(self) -> None:
        question = tr("Path of an interpreter, or of an environment's folder")
        self._window.palette_box.ask(question, self._enter)

    def _enter(self, text: str) -> None:
        def failed(error: Exception) -> None:
            self._window.toasts.error(error_in_words(error))

        if text.strip():
            self._session.scripts.find(text.strip(), self._choose, failed)

    def _choose(self, python: Path | None) -> None:
        """For this folder, from now on; an interpreter that an entry named gives way to it."""
        self._session.script.set(python="")
        self._session.scripts.choose(python)

    def _changed(self) -> None:
        scripts, palette = self._session.scripts, self._window.palette_box
        now, item = scripts.interpreter, self._window.status.item("python", "left", 100)
        if now is None:
            item.show_text("")
        else:
            torch = f"torch {now.torch_version}" if now.torch_version else tr("no torch was found beside it")
            told = (
                f"{place_of(now.python)} ({scripts.source})",
                torch,
                tr("Select the interpreter for scripts"),
            )
            item.show_text(short_words(now), tooltip="\n".join(told), command=COMMAND)
        # The list is still open under the question: put in what was found meanwhile.
        if self._is_asking and palette.isVisible() and palette.input.placeholderText() == tr(_QUESTION):
            typed = palette.input.text()
            palette.pick(self.items(), tr(_QUESTION))
            palette.input.setText(typed)
        else:
            self._is_asking = False
