"""The newest race of what is being configured: what its strategies were measured to take, beside the plan.

A race counts as long as the draft is what it raced, but for the strategy and what no step depends on, as an
answer of the plan does. What races were asked is read by a thread, and only while somebody looks. Read
plan.py before.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from rankdeck.base import files
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run.race import RUNNING, Race, RaceEntry, entry_run, read_race
from rankdeck.run.row import last_step
from rankdeck.rundir import RaceDir
from rankdeck_app.io_thread import IoThread
from rankdeck_app.language import in_words
from rankdeck_app.state.draft import Draft
from rankdeck_app.state.plan import full_options, relevant_tables
from rankdeck_app.state.runs import Runs

_MOST_READ = 200
"""Older races are no longer of what is configured now."""


class DraftRace(QObject):
    """`changed`: another race, or more of it. `race` is None where there is none of the draft as it is."""

    changed = Signal()

    def __init__(self, draft: Draft, runs: Runs, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._draft, self._runs = draft, runs
        self._wanted = False
        self._asked: dict[Path, str | None] = {}
        self._watch: RaceWatch | None = None
        self._thread = IoThread(self, name="races", started=True)
        draft.changed.connect(self._choose)
        runs.changed.connect(self._choose)

    @property
    def path(self) -> Path | None:
        return None if self._watch is None else self._watch.folder.path

    @property
    def race(self) -> Race | None:
        return None if self._watch is None else self._watch.race

    @property
    def is_running(self) -> bool:
        return self.race is not None and self.race.outcome == RUNNING

    @property
    def winner(self) -> RaceEntry | None:
        """The entry that won, once the race is over; none of a rehearsal."""
        race = self.race
        return None if race is None or self.is_running else race.entry(race.verdicts.winner)

    def entry_of(self, line: PlanLine) -> RaceEntry | None:
        """The entry that ran what a line of the plan is about."""
        if self.race is None or line.changes:
            return None
        options = _as_json(full_options(line))
        for entry in self.race.field:
            same = entry.strategy == line.strategy
            if same and _as_json(full_options(entry.predicted)) == options:
                return entry
        return None

    def want(self, wanted: bool) -> None:
        """Somebody looks at the plan now, or no longer does."""
        self._wanted = wanted
        if self._watch is not None:
            self._watch.watch(wanted)
        self._choose()

    def close(self) -> None:
        self._thread.leave()
        if self._watch is not None:
            self._watch.close()

    def _races(self) -> Iterator[Path]:
        """The newest first."""
        paths = (info.path for info in self._runs.infos if info.race is not None)
        return islice(paths, _MOST_READ)

    def _choose(self) -> None:
        config = self._draft.config
        if not self._wanted:
            return
        unread = [path for path in self._races() if path not in self._asked]
        if unread and not self._thread.is_busy:
            self._thread.do(lambda: {path: _asked_by(RaceDir(path)) for path in unread}, self._read)
        question = None if config is None else _question(tomllib.loads(config.to_toml()))
        known = (path for path in self._races() if self._asked.get(path) is not None)
        self._follow(next((path for path in known if self._asked[path] == question), None))

    def _read(self, asked: dict[Path, str | None]) -> None:
        self._asked |= asked
        self._choose()

    def _follow(self, path: Path | None) -> None:
        if path == self.path:
            return
        if self._watch is not None:
            self._watch.close()
            self._watch.deleteLater()
        self._watch = None
        if path is not None:
            self._watch = RaceWatch(path, self)
            self._watch.changed.connect(self.changed)
            self._watch.watch(self._wanted)
        self.changed.emit()


def _asked_by(folder: RaceDir) -> str | None:
    """What the race was asked; None where that cannot be read."""
    try:
        return _question(files.read_toml(folder.asked))
    except (OSError, ValueError):
        return None


def _question(tables: dict[str, Any]) -> str:
    return _as_json(relevant_tables(tables))


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


# A race as its folder tells it, read anew while somebody looks.
#
# race.json is written after each entry; how far the one that runs has come, its own files say. Both are
# read by a thread.

EVERY_MS = 500


@dataclass(frozen=True)
class RaceSeen:
    """What was read at one moment. `race` is None where its file cannot be read; `step` is how far the entry
    that runs has come."""

    race: Race | None = None
    step: int = 0


def look_at(folder: RaceDir) -> RaceSeen:
    """Read the folder. Raises OSError."""
    race = read_race(folder)
    running = next((entry for entry in race.entries if entry.state == RUNNING), None) if race else None
    return RaceSeen(race, 0 if running is None else last_step(entry_run(folder, running)))


class RaceWatch(QObject):
    """`changed`: something new was read. Nothing is read before `watch(True)`, nor after the race is over."""

    changed = Signal()

    def __init__(self, path: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.folder = RaceDir(path)
        self.seen = RaceSeen()
        self.was_read = False
        self._thread = IoThread(self, name="race", started=True)
        self._timer = QTimer(self, interval=EVERY_MS)
        self._timer.timeout.connect(self.look)

    @property
    def race(self) -> Race | None:
        return self.seen.race

    @property
    def is_over(self) -> bool:
        return self.was_read and (self.race is None or self.race.outcome != RUNNING)

    def watch(self, wanted: bool) -> None:
        """Follow the race, or leave it."""
        if not wanted:
            self._timer.stop()
        elif not self.is_over:
            self.look()
            self._timer.start()

    def look(self) -> None:
        if not self._thread.is_busy:
            self._thread.do(
                partial(look_at, self.folder), self._found, lambda _error: self._found(RaceSeen())
            )

    def close(self) -> None:
        self._timer.stop()
        self._thread.leave()

    def _found(self, seen: RaceSeen) -> None:
        before = self.seen if self.was_read else None
        self.seen, self.was_read = seen, True
        for entry in self.race.entries if self.race is not None else ():
            entry.problem = None if entry.problem is None else in_words(entry.problem)
        if self.is_over:
            self._timer.stop()
        if self.seen != before:
            self.changed.emit()
