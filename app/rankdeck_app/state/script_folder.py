"""Scripts, rankdeck.toml and interpreters of the opened folder.

A thread reads everything (io_thread.py), and nothing is executed, so an untrusted folder can be scanned. The
interpreter chosen for scripts is remembered for each folder; the default is the interpreter that the command
line would use.
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
    """Result of a folder scan. `source` describes in English where the default interpreter was found."""

    folder: Path
    file: FolderFile
    problems: tuple[Problem, ...] = ()
    scripts: tuple[ScriptCandidate, ...] = ()
    default: Interpreter | None = None
    source: str = ""
    interpreters: tuple[Interpreter, ...] = field(default=())


def scan_folder(folder: Path, environ: Mapping[str, str]) -> FolderFacts:
    """Return all facts about the folder except the interpreter that the user chose. This reads a few dozen
    files."""
    problems: list[Problem] = []
    file = FolderFile(folder / FOLDER_FILE)
    try:
        file = folder_file.read_folder_file(folder)
        problems += [problem for wrong in file.problems_by_entry.values() for problem in wrong]
    except ConfigError as error:
        problems += error.problems
    default, source = None, ""
    try:
        chosen = interpreters.choose_python(
            None, folders=[folder], environ=environ, from_file=file.python, from_file_folder=folder
        )
        default, source = environments.describe_interpreter(chosen.python, environ), chosen.source
    except ConfigError as error:
        problems += error.problems
    scripts = tuple(script.find_scripts(folder))
    all_interpreters = tuple(environments.find_interpreters(folder, environ))
    return FolderFacts(
        folder, file, tuple(map(translate_problem, problems)), scripts, default, source, all_interpreters
    )


class ScriptFolder(QObject):
    """The opened folder's scripts and interpreter.

    `changed` is emitted when the scan result or the interpreter changes; `failed` carries the reason why a
    choice cannot be saved.
    """

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
        # A thread of its own: scanning a large folder must not delay the app's other files.
        self._thread = IoThread(self, name="folder", started=True)
        workspace.changed.connect(self._on_folder_changed)
        self._load_choice()

    @property
    def folder(self) -> Path:
        return self._workspace.folder

    def scan(self) -> None:
        """Scan the folder again; `changed` is emitted if the result differs."""
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
        """The interpreter for this folder's scripts; None until the first scan."""
        return self._chosen or self.facts.default

    @property
    def is_chosen(self) -> bool:
        """Whether the user chose an interpreter for this folder."""
        return self._chosen is not None

    @property
    def source(self) -> str:
        """Where the interpreter was found, as text in the window's language."""
        return tr("chosen for this folder") if self._chosen is not None else tr(self.facts.source)

    @property
    def is_from_file(self) -> bool:
        """Whether rankdeck.toml names the interpreter."""
        return self._chosen is None and self.facts.source == FOLDER_FILE

    def choose(self, python: Path | None) -> None:
        """Remember an interpreter for this folder; None restores the default.

        If the choice cannot be saved, it applies until the app closes.
        """
        key = str(self.folder)
        self._choices.pop(key, None)
        if python is not None:
            self._choices[key] = str(python)
        self._load_choice()
        self._state_file.save_now()

    def _warn_not_saved(self, error: OSError) -> None:
        self.failed.emit(
            tr("The interpreter is selected, but the choice could not be saved: {why}.", why=error)
        )

    def find(
        self,
        text: str,
        on_found: Callable[[Path | None], object],
        on_error: Failed,
    ) -> None:
        """Find the interpreter that `text` refers to: a path, an environment's folder or a command.

        If `text` is empty, `on_found` gets the folder's current interpreter, or None if there is none.
        """
        folder, environ, where = self.folder, os.environ, phrase("The interpreter")

        def on_named_python(python: Path | None) -> None:
            default = self.interpreter
            on_found(python or (default.python if default is not None else None))

        self._io_thread.submit(
            lambda: (
                interpreters.find_named_python(text, folder=folder, environ=environ, source=where)
                if text
                else None
            ),
            on_named_python,
            on_error,
        )

    def describe(self, python: str) -> Interpreter | None:
        """Return details of an interpreter that an entry or the form names; None until they have been read.
        `changed` is emitted when they have been read."""
        path = self.folder / Path(python)
        if path not in self._descriptions:
            # Marked before the job runs, or every refresh until then would submit another job.
            self._descriptions[path] = None

            def described(interpreter: Interpreter) -> None:
                self._descriptions[path] = interpreter
                self.changed.emit()

            self._io_thread.submit(
                lambda: environments.describe_interpreter(expand_home(path), os.environ), described
            )
        return self._descriptions[path]

    # Entries

    def save_entry(self, name: str, entry: ScriptEntry, done: Done, failed: Failed) -> None:
        """Save an entry in rankdeck.toml; `failed` is called if the file cannot be written or is not TOML."""
        self._edit_file(partial(folder_file.add_entry, self.folder, name, entry), done, failed)

    def remove_entry(self, name: str, done: Done, failed: Failed) -> None:
        """Remove an entry from rankdeck.toml; `failed` is called as in `save_entry`."""
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
            # A scan of the previous folder must not deliver its result for the new one.
            self._thread.discard()
            self._load_choice()
            self.scan()

    def _load_choice(self) -> None:
        """Load the interpreter chosen for the folder (none if it no longer exists), then emit `changed`."""
        folder, text = self.folder, self._choices.get(str(self.folder))

        def describe() -> Interpreter | None:
            there = text is not None and environments.is_executable(Path(text))
            return environments.describe_interpreter(Path(text), os.environ) if there and text else None

        def described(chosen: Interpreter | None) -> None:
            # Another folder may have been opened meanwhile.
            if folder == self.folder:
                self._chosen = chosen
                self.changed.emit()

        self._io_thread.submit(describe, described, key=self)


def interpreter_text(interpreter: Interpreter) -> str:
    """Return text such as "Python 3.11.7 ('.venv')", for the status bar."""
    version = f"Python {interpreter.python_version}" if interpreter.python_version else "Python"
    if interpreter.is_rankdeck:
        return f"{version} ({tr(OWN_PYTHON_TEXT)})"
    return f"{version} ('{interpreter.name}')" if interpreter.kind != "path" else version


def shorten_home(python: Path) -> str:
    """Return a path with the home folder abbreviated to ~."""
    home = str(Path.home())
    text = str(python)
    return f"~{text[len(home) :]}" if text.startswith(f"{home}/") else text
