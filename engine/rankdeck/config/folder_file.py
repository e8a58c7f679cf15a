"""Reads and writes a folder's rankdeck.toml: the interpreter for its scripts, and named ways to run them.

    [run]
    python = ".venv"                     # an interpreter or an environment's folder

    [scripts.small]
    run = "train.py"
    args = ["--lr", "1e-3"]
    ranks = 2

`rankdeck run --entry small` runs the entry; the app lists the file's entries and saves new ones to it.
Writing preserves comments and the order of keys. An entry runs code from the folder, so the app first asks
whether to trust the folder.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tomlkit
from pydantic import Field
from tomlkit import TOMLDocument, items

from rankdeck.base import files
from rankdeck.base.errors import ConfigError, Problem, RankdeckError, closest, did_you_mean, format_choices
from rankdeck.base.parsing import TomlTable, key_lines, parse_toml
from rankdeck.base.phrases import phrase
from rankdeck.config.checks import ProblemReport
from rankdeck.config.schema import Count, Table
from rankdeck.config.script import num_ranks_of

FOLDER_FILE = "rankdeck.toml"
_MAX_BYTES = 1 << 20
_TABLES = ("run", "scripts")


class FolderRun(Table):
    """`[run]`: settings for all scripts of the folder."""

    python: str | None = None
    """An interpreter or an environment's folder, relative to the folder of rankdeck.toml."""


class ScriptEntry(Table):
    """`[scripts.NAME]`: a named way to run a script. Absent keys have the defaults of the command line."""

    run: Annotated[str, Field(min_length=1)]
    """The file, module or program to start in the folder of rankdeck.toml."""
    kind: Literal["file", "module", "program"] = "file"
    args: list[str] = Field(default_factory=list)
    devices: str | None = None
    ranks: Annotated[int, Field(ge=1, le=1024)] | None = None
    environment: dict[str, str] = Field(default_factory=dict)
    plain: bool = False
    python: str | None = None
    observe: Literal["none", "light", "full", "check"] | None = None
    max_restarts: Count | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the keys and values that differ from the defaults."""
        return self.model_dump(exclude_defaults=True)


@dataclass(frozen=True)
class FolderFile:
    """The contents of a rankdeck.toml; empty if the folder has none.

    `problems_by_entry` maps the name of each invalid entry to its problems; the other entries stay usable.
    """

    path: Path
    python: str | None = None
    entries: dict[str, ScriptEntry] = field(default_factory=dict)
    problems_by_entry: dict[str, list[Problem]] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.path.parent

    def entry(self, name: str) -> ScriptEntry:
        """Return an entry by name.

        Raises: ConfigError if the entry does not exist or is invalid.
        """
        if name in self.entries:
            return self.entries[name]
        if name in self.problems_by_entry:
            raise _config_error(self.path, self.problems_by_entry[name])
        if not self.path.exists():
            raise ConfigError(
                phrase("{folder} has no {file}.", folder=self.folder, file=FOLDER_FILE),
                code="no-entry",
                path=f"scripts.{name}",
                advice=phrase(
                    "Specify a script, or create the file with a [scripts.{name}] table.", name=name
                ),
            )
        there = phrase("Add [scripts.{name}] to the file.", name=name)
        if self.entries:
            there = phrase("Its entries are: {names}.", names=format_choices(self.entries))
        raise ConfigError(
            phrase('{file} has no entry "{name}".', file=self.path, name=name),
            code="no-entry",
            path=f"scripts.{name}",
            advice=did_you_mean(name, self.entries) or there,
        )

    def entry_warning(self, except_entry: str | None = None) -> str | None:
        """Return one line about invalid entries other than `except_entry`; None if there are none."""
        wrong = [
            problem
            for name, problems in self.problems_by_entry.items()
            if name != except_entry
            for problem in problems
        ]
        if not wrong:
            return None
        problem, more = wrong[0].headline(str(self.path)), len(wrong) - 1
        if more:
            return phrase("{problem} The entry is ignored. Further problems: {n}.", problem=problem, n=more)
        return phrase("{problem} The entry is ignored.", problem=problem)


def read_folder_file(folder: Path) -> FolderFile:
    """Read the folder's rankdeck.toml.

    Raises: ConfigError if the file cannot be read or is invalid; the error lists every problem that is not in
    an entry, with its line number.
    """
    path = folder / FOLDER_FILE
    text = _read_text(path)
    if text is None:
        return FolderFile(path)
    try:
        tables = parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise _toml_error(path, error) from None
    report = ProblemReport(key_lines(text), [])
    folder_file = _validate(report, path, tables)
    if report.problems:
        raise _config_error(path, report.problems)
    return folder_file


def _config_error(path: Path, problems: Sequence[Problem]) -> ConfigError:
    problems = sorted(problems, key=lambda problem: problem.line or 0)
    refused = ConfigError(problems[0].as_phrase("message"), problems=problems)
    refused.file = str(path)
    return refused


def _validate(report: ProblemReport, path: Path, tables: TomlTable) -> FolderFile:
    for key in tables:
        if key not in _TABLES:
            message = phrase("{key} is not a valid table in {file}.", key=key, file=FOLDER_FILE)
            advice = phrase("Write entries as [scripts.NAME], and specify the interpreter in [run].")
            if (meant := closest(key, _TABLES)) is not None:
                advice = phrase(
                    'Did you mean "{word}"? Write entries as [scripts.NAME], and specify the '
                    "interpreter in [run].",
                    word=meant,
                )
            report.add("unknown-option", (key,), message, advice)
    run = report.validate(FolderRun, ("run",), tables.get("run", {}))
    scripts = tables.get("scripts", {})
    if not isinstance(scripts, dict):
        message = phrase("{option} must be a table.", option="scripts")
        report.add("wrong-type", ("scripts",), message, phrase("Write entries as [scripts.NAME]."))
        scripts = {}
    entries, wrong = {}, {}
    for name, values in scripts.items():
        # A separate report, so that a broken entry does not break the others.
        of_entry = ProblemReport(report.lines, [])
        entry = of_entry.validate(ScriptEntry, ("scripts", name), values)
        if isinstance(entry, ScriptEntry):
            _check_devices(of_entry, name, entry)
        if of_entry.problems:
            wrong[name] = of_entry.problems
        elif isinstance(entry, ScriptEntry):
            entries[name] = entry
    return FolderFile(path, run.python if isinstance(run, FolderRun) else None, entries, wrong)


def _check_devices(report: ProblemReport, name: str, entry: ScriptEntry) -> None:
    try:
        num_ranks_of(entry.devices, entry.ranks)
    except RankdeckError as error:
        # num_ranks_of names the option of a run's configuration, but the problem is in a key of the entry.
        key = "ranks" if error.problem.path == "script.ranks" else "devices"
        report.add(error.problem.code, ("scripts", name, key), error.message, error.advice)


# Writing.


def add_entry(folder: Path, name: str, entry: ScriptEntry) -> None:
    """Write the entry to the folder's rankdeck.toml; if there is an entry of this name, replace it.

    Raises:
        ConfigError: the file is not TOML, or cannot be written.
    """

    def change(document: TOMLDocument) -> None:
        # A super table has no [scripts] header of its own above [scripts.NAME].
        scripts = document.setdefault("scripts", tomlkit.table(is_super_table=True))
        values = entry.to_dict()
        # An inline table is replaced as a whole: it has no lines of its own whose comments could be kept.
        if not isinstance(scripts.get(name), items.Table):
            scripts[name] = tomlkit.item(values)
            return
        there = scripts[name]
        for key in [key for key in there if key not in values]:
            del there[key]
        for key, value in values.items():
            # Equal values stay as they are, with their formatting and comments.
            if key not in there or there[key].unwrap() != value:
                there[key] = value

    _rewrite(folder, change)


def remove_entry(folder: Path, name: str) -> None:
    """Remove the entry; do nothing if it does not exist. Raises ConfigError as `add_entry` does."""

    def change(document: TOMLDocument) -> None:
        scripts = document.get("scripts", {})
        scripts.pop(name, None)
        if not scripts:
            document.pop("scripts", None)

    _rewrite(folder, change)


def _rewrite(folder: Path, change: Callable[[Any], None]) -> None:
    path = folder / FOLDER_FILE
    before = _read_text(path) or ""
    try:
        document = tomlkit.parse(before)
        change(document)
        text = tomlkit.dumps(document)
    except (ValueError, TypeError, AttributeError) as error:  # not TOML, or a value in place of a table
        raise _toml_error(path, error) from None
    # An unchanged file keeps its modification time.
    if text == before:
        return
    try:
        files.write_atomic(path, text)
    except OSError as error:
        message = phrase("{file} cannot be written: {why}.", file=path, why=error.strerror)
        raise ConfigError(message, code="unwritable", path=str(path)) from None


def _read_text(path: Path) -> str | None:
    """Return the file's text; None if the file does not exist.

    Raises: ConfigError if the file exists but cannot be read.
    """
    try:
        return files.read_bytes(path, _MAX_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or phrase("it is not UTF-8 text")
        message = phrase("{file} cannot be read: {why}.", file=path, why=why)
        raise ConfigError(message, code="unreadable", path=str(path)) from None


def _toml_error(path: Path, error: Exception) -> ConfigError:
    return ConfigError(
        phrase("{file} is not a valid rankdeck.toml: {why}.", file=path, why=error),
        code="toml",
        path=str(path),
        advice=phrase("Fix that line."),
    )
