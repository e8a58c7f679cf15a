"""What the opened folder holds for running scripts: its scripts, its rankdeck.toml, the interpreters around.

Everything is read by a thread (io_thread.py) and nothing is executed, so that a folder can be looked at
before anybody trusts it. Which interpreter its scripts run with is remembered for each folder; without a
choice it is the one that the command line would take.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from PySide6.QtCore import QObject, Signal

from rankdeck.base.errors import ConfigError, Problem
from rankdeck.base.home import expand_home
from rankdeck.base.phrases import phrase
from rankdeck.config import environments, folder_file, interpreters, script
from rankdeck.config.environments import OWN_PYTHON_TEXT, Interpreter
from rankdeck.config.folder_file import FOLDER_FILE, FolderFile, ScriptEntry
from rankdeck.config.script import ScriptCandidate
from rankdeck_app.io_thread import IoThread
from rankdeck_app.language import tr, translate_problem
from rankdeck_app.state.state_file import StateFile
from rankdeck_app.state.workspace import Workspace

Done = Callable[[], object]
Failed = Callable[[ConfigError | OSError], object]


@dataclass(frozen=True)
class FolderFacts:
    """What one look found. `source` is where the usual interpreter comes from, in the engine's words."""

    folder: Path
    file: FolderFile
    problems: tuple[Problem, ...] = ()
    scripts: tuple[ScriptCandidate, ...] = ()
    default: Interpreter | None = None
    source: str = ""
    interpreters: tuple[Interpreter, ...] = field(default=())


def scan_folder(folder: Path, environ: Mapping[str, str]) -> FolderFacts:
    """Everything but the person's choice; costs some tens of file reads."""
    problems: list[Problem] = []
    file = FolderFile(folder / FOLDER_FILE)
    try:
        file = folder_file.read_folder_file(folder)
        problems += [problem for wrong in file.problems_by_entry.values() for problem in wrong]
    except ConfigError as error:
        problems += error.problems
    usual, source = None, ""
    try:
        found = interpreters.choose_python(
            None, folders=[folder], environ=environ, from_file=file.python, from_file_folder=folder
        )
        usual, source = environments.describe_interpreter(found.python, environ), found.source
    except ConfigError as error:
        problems += error.problems
    scripts = tuple(script.find_scripts(folder))
    known = tuple(environments.find_interpreters(folder, environ))
    return FolderFacts(folder, file, tuple(map(translate_problem, problems)), scripts, usual, source, known)


class ScriptFolder(QObject):
    """`changed`: another look, or another interpreter was chosen; `failed`: why that is not remembered."""

    changed = Signal()
    failed = Signal(str)

    def __init__(
        self,
        workspace: Workspace,
        choices_file: Path,
        parent: QObject | None = None,
        *,
        io_thread: IoThread | None = None,
    ) -> None:
        super().__init__(parent)
        self._io_thread = io_thread or IoThread(self)
        self._workspace = workspace
        self._state_file = StateFile(
            choices_file,
            lambda: dict(self._choices),
            self,
            io_thread=io_thread,
            on_error=self._warn_not_saved,
        )
        self._choices = {folder: str(python) for folder, python in self._state_file.read().items()}
        self.facts = FolderFacts(workspace.folder, FolderFile(workspace.folder / FOLDER_FILE))
        self.is_known = False
        self._chosen: Interpreter | None = None
        self._descriptions: dict[Path, Interpreter | None] = {}
        self._thread = IoThread(self, name="folder", started=True)
        workspace.changed.connect(self._on_folder_changed)
        self._load_choice()

    @property
    def folder(self) -> Path:
        return self._workspace.folder

    def scan(self) -> None:
        """Look again; `changed` follows."""
        folder, environ = self.folder, dict(os.environ)
        self._descriptions.clear()
        self._thread.submit(
            partial(scan_folder, folder, environ), self._on_scanned, lambda _error: None, key="look"
        )

    def close(self) -> None:
        self._thread.abandon()

    # The interpreter

    @property
    def interpreter(self) -> Interpreter | None:
        """What scripts of this folder run with; None until the first look."""
        return self._chosen or self.facts.default

    @property
    def is_chosen(self) -> bool:
        """Whether the person chose one for this folder."""
        return self._chosen is not None

    @property
    def source(self) -> str:
        """Where that comes from, in words."""
        return tr("chosen for this folder") if self._chosen is not None else tr(self.facts.source)

    @property
    def is_from_file(self) -> bool:
        """Whether rankdeck.toml names it."""
        return self._chosen is None and self.facts.source == FOLDER_FILE

    def choose(self, python: Path | None) -> None:
        """Remember an interpreter for this folder; None goes back to the usual one. Where it cannot be
        remembered it holds until the app ends.
        """
        key = str(self.folder)
        self._choices.pop(key, None)
        if python is not None:
            self._choices[key] = str(python)
        self._load_choice()
        self._state_file.save_now()

    def _warn_not_saved(self, error: OSError) -> None:
        self.failed.emit(tr("The interpreter holds, but will not be remembered: {why}.", why=error))

    def find(
        self,
        text: str,
        on_found: Callable[[Path | None], object],
        on_error: Failed,
    ) -> None:
        """The interpreter of a path, an environment's folder or a command; of "" that of the folder, if it
        has one, also if it was chosen just now.
        """
        folder, environ, where = self.folder, os.environ, phrase("The interpreter")

        def known(python: Path | None) -> None:
            usual = self.interpreter
            on_found(python or (usual.python if usual is not None else None))

        self._io_thread.submit(
            lambda: (
                interpreters.find_named_python(text, folder=folder, environ=environ, source=where)
                if text
                else None
            ),
            known,
            on_error,
        )

    def describe(self, python: str) -> Interpreter | None:
        """One that an entry or the form names. None until the disk has said; `changed` follows then."""
        place = self.folder / Path(python)
        if place not in self._descriptions:
            self._descriptions[place] = None

            def described(interpreter: Interpreter) -> None:
                self._descriptions[place] = interpreter
                self.changed.emit()

            self._io_thread.submit(
                lambda: environments.describe_interpreter(expand_home(place), os.environ), described
            )
        return self._descriptions[place]

    # Entries

    def save_entry(self, name: str, entry: ScriptEntry, done: Done, failed: Failed) -> None:
        """`failed`: the file cannot be written, or is no TOML."""
        self._edit_file(partial(folder_file.add_entry, self.folder, name, entry), done, failed)

    def remove_entry(self, name: str, done: Done, failed: Failed) -> None:
        """`failed` as that of `save_entry`."""
        self._edit_file(partial(folder_file.remove_entry, self.folder, name), done, failed)

    def _edit_file(self, write: Callable[[], None], done: Done, failed: Failed) -> None:
        def written(_: None) -> None:
            self.scan()
            done()

        self._io_thread.submit(write, written, failed)

    # Helpers

    def _on_scanned(self, facts: FolderFacts) -> None:
        if facts != self.facts or not self.is_known:
            self.facts, self.is_known = facts, True
            self.changed.emit()

    def _on_folder_changed(self) -> None:
        if self.facts.folder != self.folder:
            self.facts = FolderFacts(self.folder, FolderFile(self.folder / FOLDER_FILE))
            self.is_known = False
            self._thread.discard()
            self._load_choice()
            self.scan()

    def _load_choice(self) -> None:
        """An interpreter that is gone is no choice any more. `changed` follows."""
        folder, text = self.folder, self._choices.get(str(self.folder))

        def describe() -> Interpreter | None:
            there = text is not None and environments.is_executable(Path(text))
            return environments.describe_interpreter(Path(text), os.environ) if there and text else None

        def described(chosen: Interpreter | None) -> None:
            if folder == self.folder:
                self._chosen = chosen
                self.changed.emit()

        self._io_thread.submit(describe, described, key=self)


def interpreter_text(interpreter: Interpreter) -> str:
    """ "Python 3.11.7 ('.venv')", as the status bar says it."""
    version = f"Python {interpreter.python_version}" if interpreter.python_version else "Python"
    if interpreter.is_rankdeck:
        return f"{version} ({tr(OWN_PYTHON_TEXT)})"
    return f"{version} ('{interpreter.name}')" if interpreter.kind != "path" else version


def shorten_home(python: Path) -> str:
    """A path with the person's home as ~."""
    home = str(Path.home())
    text = str(python)
    return f"~{text[len(home) :]}" if text.startswith(f"{home}/") else text
