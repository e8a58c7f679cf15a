"""Finding runs: in a folder, in the index that remembers runs wherever they are, by what a person types."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rankdeck.base import files
from rankdeck.base.errors import RunNotFoundError, one_of
from rankdeck.base.home import expanded, state_dir
from rankdeck.base.phrases import phrase
from rankdeck.rundir.directory import RunDir, slug
from rankdeck.rundir.unbegun import HIDDEN

MOST_INDEXED = 50_000
"""Paths of the index that are looked at, the newest."""


def default_runs_folder() -> Path:
    """RANKDECK_RUNS, else `runs` in the current folder. Nothing is created."""
    named = os.environ.get("RANKDECK_RUNS")
    return expanded(named).absolute() if named else Path.cwd() / "runs"


def runs_folder(asked: str | Path | None) -> Path:
    """What a person asked for, or the default."""
    return default_runs_folder() if asked is None else expanded(asked).absolute()


def _index_file() -> Path:
    return state_dir() / "runs.index"


def enter_in_index(run: RunDir) -> None:
    """Remember a run wherever it is, so that it is found from everywhere. A failure costs only that."""
    try:
        _index_file().parent.mkdir(parents=True, exist_ok=True)
        with open(_index_file(), "a", encoding="utf-8", errors="surrogateescape") as index:
            index.write(f"{run.path}\n")
    except OSError:
        pass


def indexed_paths() -> list[Path]:
    """What the index remembers, also what is there no more."""
    try:
        start, data = files.read_tail(_index_file(), files.LARGEST_BYTES)
    except OSError:
        return []
    whole = data.partition(b"\n")[2] if start else data
    lines = whole.decode("utf-8", "surrogateescape").splitlines()
    newest = list(dict.fromkeys(filter(None, reversed(lines))))[:MOST_INDEXED]
    return [Path(line) for line in reversed(newest)]


def list_runs(folder: Path | None = None) -> list[RunDir]:
    """Every run of the folder and of the index that still exists, newest first by name."""
    paths = {} if folder is None else {run.path: None for run in list_folder(folder)}
    paths |= dict.fromkeys(indexed_paths())
    runs = [RunDir(path) for path in paths if is_run(path)]
    return sorted(runs, key=lambda run: run.name, reverse=True)


def list_folder(folder: Path) -> list[RunDir]:
    """The runs of a folder alone, newest first; none where it is no folder."""
    paths = files.entries(folder.absolute())
    return sorted((RunDir(path) for path in paths if is_run(path)), key=lambda run: run.name, reverse=True)


def is_run(path: Path) -> bool:
    return (
        not path.name.startswith(HIDDEN)
        and files.is_regular(path / "config.toml")
        and files.is_folder(path / "events")
    )


def find_run(text: str, folder: Path | None = None) -> RunDir:
    """The run that `text` names: a directory, `last`, a folder's name or the name in its configuration.

    Raises:
        RunNotFoundError: no run, or several, are called so; the message lists them.
    """
    for place in (text, *(() if folder is None else (str(folder / text),))):
        if (path := _as_directory(place)) is not None:
            return RunDir(path)
    runs = list_runs(folder)
    if text == "last":
        if runs:
            return runs[0]
        raise RunNotFoundError(
            phrase("There is no run yet."), advice=phrase("Start one with: rankdeck train digits-mlp")
        )
    matching = (
        [run for run in runs if run.name == text]
        or [run for run in runs if _is_named(run, text)]
        or [run for run in runs if text and text in run.name]
    )
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise several_named(text, [run.name for run in matching])
    known = ", ".join(run.name for run in runs[:5])
    raise RunNotFoundError(
        phrase('There is no run called "{name}".', name=text if len(text) < 200 else text[:200] + "..."),
        advice=phrase("The latest: {runs}.", runs=known) if known else phrase("There is no run yet."),
    )


def several_named(text: str, names: Sequence[str]) -> RunNotFoundError:
    """That a text names more runs or races than one."""
    advice = phrase("Use {runs}.", runs=one_of(names[:10]))
    if len(names) > 10:
        advice = phrase("Use {runs}. All of them: rankdeck runs.", runs=one_of(names[:10]))
    message = phrase('"{name}" names {count} runs.', name=text, count=len(names))
    return RunNotFoundError(message, code="ambiguous-run", advice=advice)


def _as_directory(text: str) -> Path | None:
    """The run's directory that the text spells out; None for a name, and for what can be no path at all."""
    try:
        path = expanded(text)
        return path if is_run(path.absolute()) else None
    except (OSError, ValueError):  # too long, a null byte
        return None


def _is_named(run: RunDir, text: str) -> bool:
    return bool(text) and (slug(text) == run.title_slug or run.title == text)
