"""The newest race of the draft, whose measured step times are shown next to the plan.

A race belongs to the draft if their configurations differ only in the strategy and in keys that the planner's
answers do not depend on. While the plan is shown, a thread reads the configurations with which races were
started. Read plan.py first.
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
from rankdeck.run_dir import RaceDir
from rankdeck_app.io_thread import IoThread
from rankdeck_app.language import translate_problem
from rankdeck_app.state.draft import Draft
from rankdeck_app.state.plan import full_options, relevant_tables
from rankdeck_app.state.runs import Runs

_MAX_RACES_READ = 200
"""Maximum number of races to read, newest first; older races are unlikely to match the current draft."""


class DraftRace(QObject):
    """The draft's race; `changed` is emitted when the race changes or has new results.

    `race` is None if no race matches the draft.
    """

    changed = Signal()

    def __init__(self, draft: Draft, runs: Runs, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._draft, self._runs = draft, runs
        self._is_wanted = False
        self._questions: dict[Path, str | None] = {}
        self._monitor: RaceMonitor | None = None
        # A thread of its own: reading many races must not delay the app's other files.
        self._thread = IoThread(self, name="races", started=True)
        draft.changed.connect(self._update_race)
        runs.changed.connect(self._update_race)

    @property
    def path(self) -> Path | None:
        return None if self._monitor is None else self._monitor.folder.path

    @property
    def race(self) -> Race | None:
        return None if self._monitor is None else self._monitor.race

    @property
    def is_running(self) -> bool:
        return self.race is not None and self.race.outcome == RUNNING

    @property
    def winner(self) -> RaceEntry | None:
        """The winning entry once the race is over; always None in a rehearsal."""
        race = self.race
        return None if race is None or self.is_running else race.entry(race.verdicts.winner)

    def find_entry(self, line: PlanLine) -> RaceEntry | None:
        """Return the race entry that has the same strategy and options as a plan line, or None."""
        if self.race is None or line.changes:
            return None
        options = _to_json(full_options(line))
        for entry in self.race.unique_entries:
            same = entry.strategy == line.strategy
            if same and _to_json(full_options(entry.predicted)) == options:
                return entry
        return None

    def set_wanted(self, is_shown: bool) -> None:
        """Set whether the plan is shown; while it is hidden, no races are read."""
        self._is_wanted = is_shown
        if self._monitor is not None:
            self._monitor.set_active(is_shown)
        self._update_race()

    def close(self) -> None:
        self._thread.abandon()
        if self._monitor is not None:
            self._monitor.close()

    def _list_races(self) -> Iterator[Path]:
        """Return the race directories, newest first."""
        paths = (info.path for info in self._runs.infos if info.race is not None)
        return islice(paths, _MAX_RACES_READ)

    def _update_race(self) -> None:
        config = self._draft.config
        if not self._is_wanted:
            return
        # The file is written once, when the race starts, so each race is read only once.
        unread = [path for path in self._list_races() if path not in self._questions]
        if unread and not self._thread.is_busy:
            self._thread.submit(
                lambda: {path: _read_question(RaceDir(path)) for path in unread}, self._on_questions_read
            )
        # Configurations are compared as written: a race started with `auto` matches a draft with `auto`, even
        # if the devices have changed since.
        question = None if config is None else _make_question(tomllib.loads(config.to_toml()))
        readable = (path for path in self._list_races() if self._questions.get(path) is not None)
        self._monitor_race(next((path for path in readable if self._questions[path] == question), None))

    def _on_questions_read(self, questions: dict[Path, str | None]) -> None:
        self._questions |= questions
        self._update_race()

    def _monitor_race(self, path: Path | None) -> None:
        if path == self.path:
            return
        if self._monitor is not None:
            self._monitor.close()
            self._monitor.deleteLater()
        self._monitor = None
        if path is not None:
            self._monitor = RaceMonitor(path, self)
            self._monitor.changed.connect(self.changed)
            self._monitor.set_active(self._is_wanted)
        self.changed.emit()


def _read_question(folder: RaceDir) -> str | None:
    """Return the configuration that a race was started with, as JSON; None if it cannot be read."""
    try:
        return _make_question(files.read_toml(folder.request_file))
    except (OSError, ValueError):
        return None


def _make_question(tables: dict[str, Any]) -> str:
    return _to_json(relevant_tables(tables))


def _to_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


# A race's state, polled from its directory while it is shown. race.json is written after each entry; the
# running entry's progress is in its own run directory. A thread reads both.

POLL_INTERVAL_MS = 500


@dataclass(frozen=True)
class RaceSnapshot:
    """State of a race when it was read.

    `race` is None if its file cannot be read. `step` is the running entry's step.
    """

    race: Race | None = None
    step: int = 0


def read_race_snapshot(folder: RaceDir) -> RaceSnapshot:
    """Read the state of a race.

    Raises:
        OSError: the race directory cannot be read.
    """
    race = read_race(folder)
    running = next((entry for entry in race.entries if entry.state == RUNNING), None) if race else None
    return RaceSnapshot(race, 0 if running is None else last_step(entry_run(folder, running)))


class RaceMonitor(QObject):
    """Monitor of a race directory; `changed` is emitted when new data has been read.

    Nothing is read before `set_active(True)`, nor after the race is over.
    """

    changed = Signal()

    def __init__(self, path: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.folder = RaceDir(path)
        self.snapshot = RaceSnapshot()
        self.has_read = False
        self._thread = IoThread(self, name="race", started=True)
        self._timer = QTimer(self, interval=POLL_INTERVAL_MS)
        self._timer.timeout.connect(self.poll)

    @property
    def race(self) -> Race | None:
        return self.snapshot.race

    @property
    def is_over(self) -> bool:
        return self.has_read and (self.race is None or self.race.outcome != RUNNING)

    def set_active(self, is_active: bool) -> None:
        """Start or stop monitoring the race."""
        if not is_active:
            self._timer.stop()
        elif not self.is_over:
            self.poll()
            self._timer.start()

    def poll(self) -> None:
        # A poll is skipped instead of queued, or polls would pile up on a slow disk.
        if not self._thread.is_busy:
            self._thread.submit(
                partial(read_race_snapshot, self.folder),
                self._on_read,
                lambda _error: self._on_read(RaceSnapshot()),
            )

    def close(self) -> None:
        self._timer.stop()
        self._thread.abandon()

    def _on_read(self, snapshot: RaceSnapshot) -> None:
        before = self.snapshot if self.has_read else None
        self.snapshot, self.has_read = snapshot, True
        for entry in self.race.entries if self.race is not None else ():
            entry.problem = None if entry.problem is None else translate_problem(entry.problem)
        if self.is_over:
            self._timer.stop()
        if self.snapshot != before:
            self.changed.emit()
