"""A JSON file that keeps what a person was at, for the next start.

Written half a second after the last change and when the app closes, by the disk's thread; a disk that refuses
costs only that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from rankdeck.base.files import write_private
from rankdeck.compare.naming import LEAST_RUNS, RunAt, parse
from rankdeck_app.io_thread import IoThread

SAVE_DELAY_MS = 500


class KeptFile(QObject):
    """`content` says what is to be kept, at the moment of writing."""

    def __init__(
        self,
        path: Path,
        content: Callable[[], dict[str, Any]],
        parent: QObject,
        *,
        disk: IoThread | None = None,
        refused: Callable[[OSError], object] | None = None,
    ) -> None:
        super().__init__(parent)
        self._path, self._content, self._refused = path, content, refused
        self._disk = disk or IoThread(self)
        self._timer = QTimer(self, interval=SAVE_DELAY_MS, singleShot=True)
        self._timer.timeout.connect(self.save_now)

    def read(self) -> dict[str, Any]:
        """What was kept; empty where there is no file, or it holds no JSON object."""
        try:
            kept = json.loads(self._path.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return kept if isinstance(kept, dict) else {}

    def save_soon(self) -> None:
        self._timer.start()

    def save_now(self) -> None:
        self._timer.stop()
        text = json.dumps(self._content(), indent=1) + "\n"
        self._disk.do(partial(write_private, self._path, text), failed=self._refused, key=self._path)

    def close(self) -> None:
        """Write what has not been written yet."""
        if self._timer.isActive():
            self.save_now()


# The comparisons that were looked at lately, the newest first, kept over a restart.

MOST = 12


class RecentComparisons(QObject):
    """Each is a list of runs, the baseline first."""

    changed = Signal()

    def __init__(self, path: Path, parent: QObject, *, disk: IoThread | None = None) -> None:
        super().__init__(parent)
        self._file = KeptFile(path, self._content, self, disk=disk)
        self.all = self._read()

    def _read(self) -> list[tuple[RunAt, ...]]:
        try:
            told = self._file.read()["recent"]
            found = [tuple(parse(word) for word in one if isinstance(word, str)) for one in told]
        except (ValueError, KeyError, TypeError):
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


# How a person arranged the cards of dashboards: one layout per strategy, and one for scripts.
#
# A layout is JSON: `order` and `hidden` name cards, `charts` keeps how a card's curve is drawn.

SCRIPT = "script"

Layout = dict[str, Any]


class CardLayouts(QObject):
    """Layouts by kind; what was never arranged is empty."""

    def __init__(self, file: Path, parent: QObject | None = None, *, disk: IoThread | None = None) -> None:
        super().__init__(parent)
        self._kept = KeptFile(file, lambda: dict(self._layouts), self, disk=disk)
        kept = self._kept.read().items()
        self._layouts: dict[str, Layout] = {kind: one for kind, one in kept if isinstance(one, dict)}

    def of(self, kind: str) -> Layout:
        return self._layouts.get(kind, {})

    def keep(self, kind: str, layout: Layout) -> None:
        """An empty layout is that of a new app."""
        if layout == self.of(kind):
            return
        if layout:
            self._layouts[kind] = layout
        else:
            self._layouts.pop(kind, None)
        self._kept.save_soon()

    def close(self) -> None:
        self._kept.close()
