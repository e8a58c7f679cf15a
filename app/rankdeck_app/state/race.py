"""A race as its folder tells it, read anew while somebody looks.

race.json is written after each entry; how far the one that runs has come, its own files say. Both are read by
a thread. Read rankdeck/run/race.py before.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QObject, QTimer, Signal

from rankdeck.run.race import RUNNING, Race, entry_run, read_race
from rankdeck.run.row import last_step
from rankdeck.rundir import RaceDir
from rankdeck_app.language import in_words
from rankdeck_app.state.lookup import Lookup

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
        self._lookup = Lookup(self)
        self._lookup.found.connect(self._found)
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
        if not self._lookup.is_looking:
            folder = self.folder
            self._lookup.ask(lambda: look_at(folder))

    def close(self) -> None:
        self._timer.stop()
        self._lookup.close()

    def _found(self, seen: RaceSeen | None) -> None:
        before = self.seen if self.was_read else None
        self.seen, self.was_read = seen or RaceSeen(), True
        for entry in self.race.entries if self.race is not None else ():
            entry.problem = None if entry.problem is None else in_words(entry.problem)
        if self.is_over:
            self._timer.stop()
        if self.seen != before:
            self.changed.emit()
