"""Find runs and races in a folder, in the user's index, or by the name or path that a user types."""

from __future__ import annotations

import os
import secrets
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from rankdeck.base import files
from rankdeck.base.errors import ConfigError, RunNotFoundError, format_choices
from rankdeck.base.home import expand_home, state_dir
from rankdeck.base.parsing import parse_json
from rankdeck.base.phrases import Phrase, phrase
from rankdeck.run_dir.directory import RunDir, slug
from rankdeck.run_dir.labels import read_labels
from rankdeck.run_dir.pending_run import HIDDEN_PREFIX

MAX_INDEXED = 50_000
"""Maximum number of paths that are read from the index, newest first."""


def default_runs_folder() -> Path:
    """Return the folder that RANKDECK_RUNS names, or `runs` in the current folder. Nothing is created."""
    named = os.environ.get("RANKDECK_RUNS")
    return expand_home(named).absolute() if named else Path.cwd() / "runs"


def runs_folder(folder: str | Path | None) -> Path:
    """Return `folder` as an absolute path, or the default runs folder if it is None."""
    return default_runs_folder() if folder is None else expand_home(folder).absolute()


def _index_file() -> Path:
    return state_dir() / "runs.index"


def add_to_index(run: RunDir) -> None:
    """Add a run to the index, so that it is found from any folder. Errors are ignored."""
    try:
        _index_file().parent.mkdir(parents=True, exist_ok=True)
        # Paths may contain bytes that are not UTF-8.
        with open(_index_file(), "a", encoding="utf-8", errors="surrogateescape") as index:
            index.write(f"{run.path}\n")
    except OSError:
        pass


def indexed_paths() -> list[Path]:
    """Return the paths in the index, including those that no longer exist."""
    try:
        start, data = files.read_tail(_index_file(), files.MAX_FILE_BYTES)
    except OSError:
        return []
    complete_data = data.partition(b"\n")[2] if start else data
    lines = complete_data.decode("utf-8", "surrogateescape").splitlines()
    # A path that was added again counts by its latest entry.
    newest = list(dict.fromkeys(filter(None, reversed(lines))))[:MAX_INDEXED]
    return [Path(line) for line in reversed(newest)]


def list_runs(folder: Path | None = None) -> list[RunDir]:
    """Return every existing run that is in the folder or in the index, sorted by name, newest first."""
    paths = {} if folder is None else {run.path: None for run in list_folder(folder)}
    paths |= dict.fromkeys(indexed_paths())
    runs = [RunDir(path) for path in paths if is_run(path)]
    return sorted(runs, key=lambda run: run.name, reverse=True)


def list_folder(folder: Path) -> list[RunDir]:
    """Return the runs of one folder, newest first; empty if it is not a folder."""
    paths = files.entries(folder.absolute())
    return sorted((RunDir(path) for path in paths if is_run(path)), key=lambda run: run.name, reverse=True)


def is_run(path: Path) -> bool:
    return (
        not path.name.startswith(HIDDEN_PREFIX)
        and files.is_regular(path / "config.toml")
        and files.is_folder(path / "events")
    )


def find_run(text: str, folder: Path | None = None) -> RunDir:
    """Return the run that `text` names; `text` is a path, `last`, a folder's name, a title, or part of a
    folder's name.

    Raises:
        RunNotFoundError: no run matches, or several do; the message lists them.
    """
    for candidate in (text, *(() if folder is None else (str(folder / text),))):
        if (path := _existing_folder(candidate, is_run)) is not None:
            return RunDir(path)
    runs = list_runs(folder)
    if text == "last":
        if runs:
            return runs[0]
        raise RunNotFoundError(
            phrase("There are no runs yet."), advice=phrase("Start a run with: rankdeck train digits-mlp")
        )
    matching = (
        [run for run in runs if run.name == text]
        or [run for run in runs if _has_name(run, text)]
        or [run for run in runs if text and text in run.name]
    )
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise ambiguous_name_error(text, [run.name for run in matching])
    latest = ", ".join(run.name for run in runs[:5])
    raise RunNotFoundError(
        phrase('There is no run called "{name}".', name=text if len(text) < 200 else text[:200] + "..."),
        advice=phrase("Latest runs: {runs}.", runs=latest) if latest else phrase("There are no runs yet."),
    )


def ambiguous_name_error(text: str, names: Sequence[str]) -> RunNotFoundError:
    """Return the error for a text that matches several runs or races."""
    advice = phrase("Use a full name: {runs}.", runs=format_choices(names[:10]))
    if len(names) > 10:
        advice = phrase(
            "Use a full name: {runs}. To list all runs: rankdeck runs", runs=format_choices(names[:10])
        )
    message = phrase('"{name}" matches {count} runs.', name=text, count=len(names))
    return RunNotFoundError(message, code="ambiguous-run", advice=advice)


def _existing_folder(text: str, matches: Callable[[Path], bool]) -> Path | None:
    """Return `text` as a path if it is a path for which `matches` returns True; otherwise None."""
    try:
        path = expand_home(text)
        return path if matches(path.absolute()) else None
    except (OSError, ValueError):  # too long, a null byte
        return None


def _has_name(run: RunDir, text: str) -> bool:
    return bool(text) and (slug(text) == run.title_slug or run.title == text)


# The folder of a race, in which strategies train the same first steps one after another.
#
#     <runs>/<YYYYMMDD-HHMMSS>-race-gpt-4-<4 hex>/
#       race.json             the request, the predictions and the measurements (run/race.py)
#       asked.toml            the requested configuration, readable by the owner only; the entries change only
#                             its strategy
#       race.lock             (flock = alive) held by the race's process and by the running entry's guard
#       stop.request          exists once the user has requested a stop
#       entries/1-ddp/ ...    ordinary runs, which are not listed as runs: a race is one row of the list
#
# Deleting the folder deletes the whole race.

FIRST_STEPS_KEY = "first_steps"
"""Key in environment.json for the number of steps of a short run, which saves only its events."""


class RaceDir:
    """A race, read from its folder. Nothing is cached."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def __repr__(self) -> str:
        return f"RaceDir({str(self.path)!r})"

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def title(self) -> str:
        """The name from labels.json, otherwise the title in race.json; empty if race.json cannot be read."""
        try:
            return read_labels(self.path).name or str(parse_json(files.read_text(self.file))["title"])
        except (OSError, ValueError, LookupError, TypeError):
            return ""

    @property
    def file(self) -> Path:
        return self.path / "race.json"

    @property
    def request_file(self) -> Path:
        return self.path / "asked.toml"

    @property
    def lock(self) -> Path:
        return self.path / "race.lock"

    @property
    def entries_folder(self) -> Path:
        return self.path / "entries"

    @property
    def stop_request(self) -> Path:
        return self.path / "stop.request"

    def is_alive(self) -> bool:
        """Check whether a process holds the race's lock."""
        return files.is_locked(self.lock)


def create_race(runs: Path, title: str, asked_toml: str) -> RaceDir:
    """Create a new race's folder, with `asked_toml`, the requested configuration, as a private file.

    The race is listed once race.json exists.

    Raises:
        ConfigError: the folder of runs cannot be written to.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    race = RaceDir(runs.absolute() / f"{stamp}-{slug(title)}-{secrets.token_hex(2)}")
    try:
        runs.mkdir(parents=True, exist_ok=True)
        race.path.mkdir(mode=0o700)
        race.entries_folder.mkdir()
        files.write_private(race.request_file, asked_toml)
    except OSError as error:
        raise ConfigError(
            phrase("Races cannot be stored in {folder}: {why}.", folder=runs, why=error.strerror),
            code="runs-folder",
            advice=phrase("Choose another folder with --runs."),
        ) from None
    return race


def list_races(folder: Path) -> list[RaceDir]:
    """Return every existing race that is in the folder or in the index, sorted by name, newest first."""
    paths = dict.fromkeys([*files.entries(folder.absolute()), *indexed_paths()])
    races = [RaceDir(path) for path in paths if is_race(path)]
    return sorted(races, key=lambda race: race.name, reverse=True)


def is_race(path: Path) -> bool:
    return files.is_regular(path / "race.json") and files.is_folder(path / "entries")


def is_entry(run: Path) -> bool:
    """Check whether a run is an entry of a race; entries are not listed as runs and cannot be resumed."""
    return run.parent.name == "entries" and is_race(run.parent.parent)


def find_race(text: str, folder: Path) -> RaceDir | None:
    """Return the race that `text` names by its path, its folder's name or part of that name, or its title.

    Returns None if no race matches.

    Raises:
        RunNotFoundError: several races match.
    """
    if (path := _existing_folder(text, is_race)) is not None:
        return RaceDir(path)
    races = list_races(folder)
    matching = (
        [race for race in races if race.name == text]
        or [race for race in races if text and text == race.title]
        or [race for race in races if text and text in race.name]
    )
    if len(matching) > 1:
        raise ambiguous_name_error(text, [race.name for race in matching])
    return matching[0] if matching else None


# A run's folder may come from anywhere, and what is written or removed in it must reach nothing else. One
# check of the whole folder before a resume replaces checks at fifteen calls of open. Hard links are refused,
# except of weights; `cp -rL` makes an independent copy.


def find_foreign_entry(run: Path) -> tuple[Path, Phrase] | None:
    """Return the first file or folder through which a write would end up outside the run's folder, and the
    kind of that file or folder.

    The run's folder itself may be a link. Weights files may have several hard links, because they are
    replaced, never modified in place. Returns None if there is no such file or folder.

    Raises:
        OSError: a folder cannot be read.
    """
    for folder, folders, names in os.walk(run, onerror=_raise_unwritable):
        for path in (Path(folder, name) for name in sorted(folders + names)):
            if (kind := _foreign_kind(path)) is not None:
                return path, kind
    return None


def write_request(folder: Path, *names: str) -> None:
    """Create an empty request file in the folder of a live run or race, whose process polls for it.

    Raises:
        ConfigError: the file, or a folder on the way to it, leads out of `folder` or cannot be created.
    """
    paths = [folder.joinpath(*names[: count + 1]) for count in range(len(names))]
    try:
        for path in paths:
            if os.path.lexists(path) and (kind := _foreign_kind(path)) is not None:
                raise _foreign_entry_error(path, kind)
        for path in paths[:-1]:
            path.mkdir(exist_ok=True)
        paths[-1].touch()
    except OSError as error:
        raise ConfigError(
            phrase("{path} cannot be written: {why}.", path=paths[-1], why=error.strerror),
            code="run-folder",
            path=str(paths[-1]),
            advice=phrase("Free some disk space, or fix the folder's permissions."),
        ) from None


def _foreign_entry_error(path: Path, kind: Phrase) -> ConfigError:
    return ConfigError(
        phrase(
            "{path} is {kind}: writing there could change a file elsewhere.",
            path=path,
            kind=kind,
        ),
        code="leads-elsewhere",
        path=str(path),
        advice=phrase("Replace it with a regular file or folder."),
    )


def _foreign_kind(path: Path) -> Phrase | None:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return phrase("a symbolic link to {target}", target=path.readlink())
    if stat.S_ISREG(status.st_mode):
        if status.st_nlink == 1 or path.suffix == ".safetensors":
            return None
        return phrase("a file with several hard links")
    # A guard that was killed leaves its socket behind.
    return (
        None
        if stat.S_ISDIR(status.st_mode) or stat.S_ISSOCK(status.st_mode)
        else phrase("a pipe or a device")
    )


def _raise_unwritable(error: OSError) -> NoReturn:
    raise error
