"""The folder of a race: strategies that trained the same first steps, one after another.

    <runs>/<YYYYMMDD-HHMMSS>-race-gpt-4-<4 hex>/
      race.json             what was asked, predicted and measured (run/race.py)
      asked.toml            the configuration that was asked for, for the owner alone; entries differ in its
                            strategy alone
      race.lock             (flock = alive) held by who races, and by the guard of the entry that runs
      stop.request          somebody wants it to stop
      entries/1-ddp/ ...    ordinary runs, which no list of runs holds: a race is one row there

Who deletes the folder has deleted all of it. Read directory.py before.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path

from rankdeck.base import files
from rankdeck.base.errors import ConfigError
from rankdeck.base.home import expanded
from rankdeck.base.parsing import json_of
from rankdeck.base.phrases import phrase
from rankdeck.rundir.directory import slug
from rankdeck.rundir.labels import read_labels
from rankdeck.rundir.listing import indexed_paths, several_named

FIRST_STEPS = "first_steps"
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
            return read_labels(self.path).name or str(json_of(files.read_text(self.file))["title"])
        except (OSError, ValueError, LookupError, TypeError):
            return ""

    @property
    def file(self) -> Path:
        return self.path / "race.json"

    @property
    def asked(self) -> Path:
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
        files.write_private(race.asked, asked_toml)
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
    try:
        path = expanded(text)
        if is_race(path):
            return RaceDir(path)
    except (OSError, ValueError):  # too long, a null byte
        return None
    races = list_races(folder)
    matching = (
        [race for race in races if race.name == text]
        or [race for race in races if text and text == race.title]
        or [race for race in races if text and text in race.name]
    )
    if len(matching) > 1:
        raise several_named(text, [race.name for race in matching])
    return matching[0] if matching else None
