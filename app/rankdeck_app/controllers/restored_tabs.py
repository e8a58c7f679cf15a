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

POLL_INTERVAL_MS = 100


class RestoredTabs(QObject):
    """`kind` is that of the pages of runs; `runs` says which are there, so that no disk is asked here."""

    def __init__(
        self, editor: EditorArea, runs: Runs, open_runs: OpenRuns, kind: str, parent: QObject
    ) -> None:
        super().__init__(parent)
        self._runs = runs
        self._editor = editor
        self._open_runs = open_runs
        self._prefix = f"{kind}:"
        self._acquired_runs: dict[Path, LiveRun] = {}
        self._read_paths: set[Path] = set()
        self._timer = QTimer(self, interval=POLL_INTERVAL_MS)
        self._timer.timeout.connect(self._poll)
        editor.layout_changed.connect(self._release_built)

    def start(self) -> None:
        """The tabs are back."""
        if self._unbuilt_paths():
            self._timer.start()

    def close(self) -> None:
        self._timer.stop()
        self._acquired_runs.clear()

    def _unbuilt_paths(self) -> list[Path]:
        ids = self._editor.unbuilt_page_ids()
        return [Path(one.removeprefix(self._prefix)) for one in ids if one.startswith(self._prefix)]

    def _poll(self) -> None:
        """What the readers have; the next run is read once the one before is."""
        for path, run in self._acquired_runs.items():
            if run.drain():
                tone = OUTCOME_TONES.get(run.outcome or "running", "descriptionForeground")
                self._editor.describe_tab(f"{self._prefix}{path}", run.title, tone)
        is_reading = any(run.outcome is None or run.has_unread for run in self._acquired_runs.values())
        if is_reading or not self._runs.is_known:
            return
        unread = next((path for path in self._unbuilt_paths() if path not in self._read_paths), None)
        if unread is not None:
            self._read_paths.add(unread)
            if self._runs.find_info(unread) is not None:  # else its folder is gone
                self._acquired_runs[unread] = self._open_runs.acquire(unread)
        elif all(run.is_over for run in self._acquired_runs.values()):
            self._timer.stop()

    def _release_built(self) -> None:
        """A tab was built, and has its run by itself, or it was closed."""
        unseen = set(self._unbuilt_paths())
        for path in [path for path in self._acquired_runs if path not in unseen]:
            del self._acquired_runs[path]
            self._open_runs.release(path)
