"""JSON files that save the app's state for the next start.

The io thread writes a file half a second after the last change, and when the app closes. If the disk fails,
only this state is lost.
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
    """A state file. `content` is called when the file is written, and returns the state to write."""

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
        """Return the saved state; empty if the file does not exist or is not a JSON object."""
        try:
            saved = json.loads(self._path.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return saved if isinstance(saved, dict) else {}

    def save_soon(self) -> None:
        self._timer.start()

    def save_now(self) -> None:
        self._timer.stop()
        # Serialized on this thread, because the state may change while the io thread writes.
        text = json.dumps(self._make_state(), indent=1) + "\n"
        self._io_thread.submit(
            # The key lets this write replace a pending one of the same file.
            partial(write_private, self._path, text),
            on_error=self._on_error,
            key=self._path,
        )

    def close(self) -> None:
        """Write pending changes."""
        if self._timer.isActive():
            self.save_now()


# Recently shown comparisons, newest first, restored after a restart.

MAX_RECENT = 12


class RecentComparisons(QObject):
    """Recent comparisons, each a list of runs that starts with the baseline."""

    changed = Signal()

    def __init__(self, path: Path, parent: QObject, *, io_thread: IoThread | None = None) -> None:
        super().__init__(parent)
        self._state_file = StateFile(path, self._make_state, self, io_thread=io_thread)
        self.comparisons = self._read()

    def _read(self) -> list[tuple[RunRef, ...]]:
        try:
            recent = self._state_file.read()["recent"]
            comparisons = [
                tuple(parse_run_ref(word) for word in entry if isinstance(word, str)) for entry in recent
            ]
        except (ValueError, KeyError, TypeError):
            return []
        return [entry for entry in comparisons if len(entry) >= MIN_RUNS][:MAX_RECENT]

    def _make_state(self) -> dict[str, Any]:
        return {"recent": [list(map(str, refs)) for refs in self.comparisons]}

    def add(self, ats: Sequence[RunRef], before: Sequence[RunRef] = ()) -> None:
        """Add a comparison of the runs `ats`, unless there are too few runs. It replaces the comparison of
        the runs `before`, which the same page showed previously."""
        fresh = tuple(ats)
        if len(fresh) < MIN_RUNS or (self.comparisons and self.comparisons[0] == fresh):
            return
        # Sets, because another order or baseline is still the same comparison.
        same = (set(fresh), set(before))
        self.comparisons = [fresh, *(refs for refs in self.comparisons if set(refs) not in same)][:MAX_RECENT]
        self._state_file.save_soon()
        self.changed.emit()

    def close(self) -> None:
        self._state_file.close()


# The user's arrangement of dashboard cards: one layout per strategy, and one for scripts. A layout is JSON:
# `order` and `hidden` name cards, `charts` says how a card's curve is drawn.

SCRIPT = "script"

Layout = dict[str, Any]


class CardLayouts(QObject):
    """Card layouts by kind of run (a strategy or a script); empty for a kind whose cards were never
    rearranged."""

    def __init__(
        self, file: Path, parent: QObject | None = None, *, io_thread: IoThread | None = None
    ) -> None:
        super().__init__(parent)
        self._state_file = StateFile(file, lambda: dict(self._layouts), self, io_thread=io_thread)
        saved = self._state_file.read().items()
        self._layouts: dict[str, Layout] = {
            kind: layout for kind, layout in saved if isinstance(layout, dict)
        }

    def get(self, kind: str) -> Layout:
        return self._layouts.get(kind, {})

    def set(self, kind: str, layout: Layout) -> None:
        """Set the layout for a kind of run; an empty layout restores the default."""
        if layout == self.get(kind):
            return
        if layout:
            self._layouts[kind] = layout
        else:
            self._layouts.pop(kind, None)
        self._state_file.save_soon()

    def close(self) -> None:
        self._state_file.close()
