"""The comparisons that were looked at lately, the newest first, kept over a restart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, Signal

from rankdeck.compare.naming import LEAST_RUNS, RunAt, parse
from rankdeck_app.disk import Disk
from rankdeck_app.state.kept_file import KeptFile

MOST = 12


class RecentComparisons(QObject):
    """Each is a list of runs, the baseline first."""

    changed = Signal()

    def __init__(self, path: Path, parent: QObject, *, disk: Disk | None = None) -> None:
        super().__init__(parent)
        self._file = KeptFile(path, self._content, self, disk=disk)
        self.all = self._read()

    def _read(self) -> list[tuple[RunAt, ...]]:
        try:
            told = self._file.read()["recent"]
            found = [tuple(parse(word) for word in one if isinstance(word, str)) for one in told]
        except (OSError, ValueError, KeyError, TypeError):
            return []
        return [one for one in found if len(one) >= LEAST_RUNS][:MOST]

    def _content(self) -> dict[str, Any]:
        return {"recent": [list(map(str, one)) for one in self.all]}

    def note(self, ats: Sequence[RunAt], before: Sequence[RunAt] = ()) -> None:
        """These runs are looked at; `before` they were others on the same page, which these replace."""
        fresh = tuple(ats)
        if len(fresh) < LEAST_RUNS or (self.all and self.all[0] == fresh):
            return
        same = (set(fresh), set(before))
        self.all = [fresh, *(one for one in self.all if set(one) not in same)][:MOST]
        self._file.save_soon()
        self.changed.emit()

    def close(self) -> None:
        self._file.close()
