"""Finding runs: in a folder, in the index that remembers runs wherever they are, by what a person types."""

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
"""Paths of the index that are looked at, the newest."""


def default_runs_folder() -> Path:
    """RANKDECK_RUNS, else `runs` in the current folder. Nothing is created."""
    named = os.environ.get("RANKDECK_RUNS")
    return expand_home(named).absolute() if named else Path.cwd() / "runs"


def runs_folder(asked: str | Path | None) -> Path:
    """What a person asked for, or the default."""
    return default_runs_folder() if asked is None else expand_home(asked).absolute()


def _index_file() -> Path:
    return state_dir() / "runs.index"


def add_to_index(run: RunDir) -> None:
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
        start, data = files.read_tail(_index_file(), files.MAX_FILE_BYTES)
    except OSError:
        return []
    whole = data.partition(b"\n")[2] if start else data
    lines = whole.decode("utf-8", "surrogateescape").splitlines()
    newest = list(dict.fromkeys(filter(None, reversed(lines))))[:MAX_INDEXED]
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
        not path.name.startswith(HIDDEN_PREFIX)
        and files.is_regular(path / "config.toml")
        and files.is_folder(path / "events")
    )


def find_run(text: str, folder: Path | None = None) -> RunDir:
    """The run that `text` names: a directory, `last`, a folder's name or the name in its configuration.

    Raises:
        RunNotFoundError: no run, or several, are called so; the message lists them.
    """
    for place in (text, *(() if folder is None else (str(folder / text),))):
        if (path := _existing_folder(place, is_run)) is not None:
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
        or [run for run in runs if _has_name(run, text)]
        or [run for run in runs if text and text in run.name]
    )
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise ambiguous_name_error(text, [run.name for run in matching])
    known = ", ".join(run.name for run in runs[:5])
    raise RunNotFoundError(
        phrase('There is no run called "{name}".', name=text if len(text) < 200 else text[:200] + "..."),
        advice=phrase("The latest: {runs}.", runs=known) if known else phrase("There is no run yet."),
    )


def ambiguous_name_error(text: str, names: Sequence[str]) -> RunNotFoundError:
    """That a text names more runs or races than one."""
    advice = phrase("Use {runs}.", runs=format_choices(names[:10]))
    if len(names) > 10:
        advice = phrase("Use {runs}. All of them: rankdeck runs.", runs=format_choices(names[:10]))
    message = phrase('"{name}" names {count} runs.', name=text, count=len(names))
    return RunNotFoundError(message, code="ambiguous-run", advice=advice)


def _existing_folder(text: str, matches: Callable[[Path], bool]) -> Path | None:
    """The directory of a run or a race that the text spells out; None for a name, and for what is no path."""
    try:
        path = expand_home(text)
        return path if matches(path.absolute()) else None
    except (OSError, ValueError):  # too long, a null byte
        return None


def _has_name(run: RunDir, text: str) -> bool:
    return bool(text) and (slug(text) == run.title_slug or run.title == text)


# The folder of a race: strategies that trained the same first steps, one after another.
#
#     <runs>/<YYYYMMDD-HHMMSS>-race-gpt-4-<4 hex>/
#       race.json             what was asked, predicted and measured (run/race.py)
#       asked.toml            the configuration that was asked for, for the owner alone; entries differ in its
#                             strategy alone
#       race.lock             (flock = alive) held by who races, and by the guard of the entry that runs
#       stop.request          somebody wants it to stop
#       entries/1-ddp/ ...    ordinary runs, which no list of runs holds: a race is one row there
#
# Who deletes the folder has deleted all of it.

FIRST_STEPS_KEY = "first_steps"
"""In an entry's environment.json: it takes so many steps, and leaves nothing behind but its events."""


class RaceDir:
    """A race by its folder. Nothing is cached."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def __repr__(self) -> str:
        return f"RaceDir({str(self.path)!r})"

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def title(self) -> str:
        """What a person calls it, else what it was called from the start; empty where that cannot be read."""
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
        """Whether somebody races here."""
        return files.is_locked(self.lock)


def create_race(runs: Path, title: str, asked_toml: str) -> RaceDir:
    """A new race's folder. It is listed once race.json is there.

    Raises:
        ConfigError: the folder of runs cannot be written.
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
            phrase("{folder} cannot hold a race: {why}.", folder=runs, why=error.strerror),
            code="runs-folder",
            advice=phrase("Name another folder with --runs."),
        ) from None
    return race


def list_races(folder: Path) -> list[RaceDir]:
    """Every race of the folder and of the index that still exists, newest first by name."""
    paths = dict.fromkeys([*files.entries(folder.absolute()), *indexed_paths()])
    races = [RaceDir(path) for path in paths if is_race(path)]
    return sorted(races, key=lambda race: race.name, reverse=True)


def is_race(path: Path) -> bool:
    return files.is_regular(path / "race.json") and files.is_folder(path / "entries")


def is_entry(run: Path) -> bool:
    """Whether a run is an entry of a race: no list holds it, and nothing goes on from it."""
    return run.parent.name == "entries" and is_race(run.parent.parent)


def find_race(text: str, folder: Path) -> RaceDir | None:
    """The race that `text` names: its folder, the folder's name, what it is called, or a part of the folder's
    name; None where none is named so.

    Raises:
        RunNotFoundError: several are.
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


# Whether a run's folder, which may come from anywhere, leads out of itself: what is written or removed in
# it must reach nothing else.


def find_foreign_entry(run: Path) -> tuple[Path, Phrase] | None:
    """A file or folder in it that a write would follow to another place, and what it is.

    The run's own folder may be a link. Weights may have other names: they are replaced, never written into.

    Raises:
        OSError: a folder cannot be read.
    """
    for folder, folders, names in os.walk(run, onerror=_raise_unwritable):
        for path in (Path(folder, name) for name in sorted(folders + names)):
            if (kind := _foreign_kind(path)) is not None:
                return path, kind
    return None


def write_request(folder: Path, *names: str) -> None:
    """An empty file in the folder of a living run or race, for which whoever works there looks.

    Raises:
        ConfigError: it, or a folder on the way to it, leads elsewhere or cannot be made.
    """
    places = [folder.joinpath(*names[: count + 1]) for count in range(len(names))]
    try:
        for path in places:
            if os.path.lexists(path) and (kind := _foreign_kind(path)) is not None:
                raise _foreign_entry_error(path, kind)
        for path in places[:-1]:
            path.mkdir(exist_ok=True)
        places[-1].touch()
    except OSError as error:
        raise ConfigError(
            phrase("{path} cannot be written: {why}.", path=places[-1], why=error.strerror),
            code="run-folder",
            path=str(places[-1]),
            advice=phrase("Free space on the disk, or mend the folder's permissions."),
        ) from None


def _foreign_entry_error(path: Path, kind: Phrase) -> ConfigError:
    return ConfigError(
        phrase(
            "{path} is {kind}: asking for something there could change what lies elsewhere.",
            path=path,
            kind=kind,
        ),
        code="leads-elsewhere",
        path=str(path),
        advice=phrase("Put a file or folder of its own in its place."),
    )


def _foreign_kind(path: Path) -> Phrase | None:
    told = path.lstat()
    if stat.S_ISLNK(told.st_mode):
        return phrase("a link to {target}", target=path.readlink())
    if stat.S_ISREG(told.st_mode):
        if told.st_nlink == 1 or path.suffix == ".safetensors":
            return None
        return phrase("one of several names of the same file")
    # A socket is left by a guard that was killed.
    return None if stat.S_ISDIR(told.st_mode) or stat.S_ISSOCK(told.st_mode) else phrase("a pipe or a device")


def _raise_unwritable(error: OSError) -> NoReturn:
    raise error
