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
from rankdeck.compare.run_ref import MIN_RUNS, RunRef, parse_run_ref
from rankdeck_app.io_thread import IoThread

SAVE_DELAY_MS = 500


class StateFile(QObject):
    """`content` says what is to be kept, at the moment of writing."""

    def __init__(
        self,
        path: Path,
        content: Callable[[], dict[str, Any]],
        parent: QObject,
        *,
        io_thread: IoThread | None = None,
        on_error: Callable[[OSError], object] | None = None,
    ) -> None:
        super().__init__(parent)
        self._path, self._make_state, self._on_error = path, content, on_error
        self._io_thread = io_thread or IoThread(self)
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
        text = json.dumps(self._make_state(), indent=1) + "\n"
        self._io_thread.submit(
            partial(write_private, self._path, text), on_error=self._on_error, key=self._path
        )

    def close(self) -> None:
        """Write what has not been written yet."""
        if self._timer.isActive():
            self.save_now()


# The comparisons that were looked at lately, the newest first, kept over a restart.

MAX_RECENT = 12


class RecentComparisons(QObject):
    """Each is a list of runs, the baseline first."""

    changed = Signal()

    def __init__(self, path: Path, parent: QObject, *, io_thread: IoThread | None = None) -> None:
        super().__init__(parent)
        self._state_file = StateFile(path, self._make_state, self, io_thread=io_thread)
        self.comparisons = self._read()

    def _read(self) -> list[tuple[RunRef, ...]]:
        try:
            told = self._state_file.read()["recent"]
            found = [tuple(parse_run_ref(word) for word in one if isinstance(word, str)) for one in told]
        except (ValueError, KeyError, TypeError):
            return []
        return [one for one in found if len(one) >= MIN_RUNS][:MAX_RECENT]

    def _make_state(self) -> dict[str, Any]:
        return {"recent": [list(map(str, one)) for one in self.comparisons]}

    def add(self, ats: Sequence[RunRef], before: Sequence[RunRef] = ()) -> None:
        """These runs are looked at; `before` they were others on the same page, which these replace."""
        fresh = tuple(ats)
        if len(fresh) < MIN_RUNS or (self.comparisons and self.comparisons[0] == fresh):
            return
        same = (set(fresh), set(before))
        self.comparisons = [fresh, *(one for one in self.comparisons if set(one) not in same)][:MAX_RECENT]
        self._state_file.save_soon()
        self.changed.emit()

    def close(self) -> None:
        self._state_file.close()


# How a person arranged the cards of dashboards: one layout per strategy, and one for scripts.
#
# A layout is JSON: `order` and `hidden` name cards, `charts` keeps how a card's curve is drawn.

SCRIPT = "script"

Layout = dict[str, Any]


class CardLayouts(QObject):
    """Layouts by kind; what was never arranged is empty."""

    def __init__(
        self, file: Path, parent: QObject | None = None, *, io_thread: IoThread | None = None
    ) -> None:
        super().__init__(parent)
        self._state_file = StateFile(file, lambda: dict(self._layouts), self, io_thread=io_thread)
        kept = self._state_file.read().items()
        self._layouts: dict[str, Layout] = {kind: one for kind, one in kept if isinstance(one, dict)}

    def get(self, kind: str) -> Layout:
        return self._layouts.get(kind, {})

    def set(self, kind: str, layout: Layout) -> None:
        """An empty layout is that of a new app."""
        if layout == self.get(kind):
            return
        if layout:
            self._layouts[kind] = layout
        else:
            self._layouts.pop(kind, None)
        self._state_file.save_soon()

    def close(self) -> None:
        self._state_file.close()
