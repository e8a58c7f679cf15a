"""Tabs of runs that came back with the last session and that nobody has looked at yet.

Their pages are built when they are first shown; what is wrong with their runs is to be known before. So each
run is read in turn, as its tab would: Problems lists it, and its tab is marked. Runs that are alive are
followed until their tab is built, or closed.
"""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QObject, QTimer

from rankdeck_app.shell.editor_area import EditorArea
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.state.open_runs import OpenRuns
from rankdeck_app.state.runs import Runs
from rankdeck_app.widgets.run_list import OUTCOME_TONES

TAKE_EVERY_MS = 100


class UnseenTabs(QObject):
    """`kind` is that of the pages of runs; `runs` says which are there, so that no disk is asked here."""

    def __init__(
        self, editor: EditorArea, runs: Runs, open_runs: OpenRuns, kind: str, parent: QObject
    ) -> None:
        super().__init__(parent)
        self._runs = runs
        self._editor = editor
        self._open_runs = open_runs
        self._prefix = f"{kind}:"
        self._held: dict[Path, LiveRun] = {}
        self._looked_at: set[Path] = set()
        self._timer = QTimer(self, interval=TAKE_EVERY_MS)
        self._timer.timeout.connect(self._take)
        editor.layout_changed.connect(self._let_go)

    def start(self) -> None:
        """The tabs are back."""
        if self._unseen():
            self._timer.start()

    def close(self) -> None:
        self._timer.stop()
        self._held.clear()

    def _unseen(self) -> list[Path]:
        ids = self._editor.unbuilt()
        return [Path(one.removeprefix(self._prefix)) for one in ids if one.startswith(self._prefix)]

    def _take(self) -> None:
        """What the readers have; the next run is read once the one before is."""
        for path, run in self._held.items():
            if run.drain():
                tone = OUTCOME_TONES.get(run.outcome or "running", "descriptionForeground")
                self._editor.describe(f"{self._prefix}{path}", run.title, tone)
        is_reading = any(run.outcome is None or run.has_more for run in self._held.values())
        if is_reading or not self._runs.known:
            return
        unread = next((path for path in self._unseen() if path not in self._looked_at), None)
        if unread is not None:
            self._looked_at.add(unread)
            if self._runs.info_of(unread) is not None:  # else its folder is gone
                self._held[unread] = self._open_runs.acquire(unread)
        elif all(run.is_over for run in self._held.values()):
            self._timer.stop()

    def _let_go(self) -> None:
        """A tab was built, and has its run by itself, or it was closed."""
        unseen = set(self._unseen())
        for path in [path for path in self._held if path not in unseen]:
            del self._held[path]
            self._open_runs.release(path)
