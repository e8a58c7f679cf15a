"""Reads the runs of restored tabs whose pages are not built yet.

A page is built when it is first shown, but the problems of its run should be visible earlier. So the runs are
read in advance, one after another: the Problems panel lists each run's problems, and the run's tab shows its
title and outcome. Live runs are followed until their tab is built or closed.
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
    """Reader for the runs of restored tabs. `kind` is the page kind of run tabs. `runs` lists the existing
    runs, so that the window's thread need not read the disk."""

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
        """Start reading. Call this once the tabs are restored."""
        if self._unbuilt_paths():
            self._timer.start()

    def close(self) -> None:
        self._timer.stop()
        self._acquired_runs.clear()

    def _unbuilt_paths(self) -> list[Path]:
        ids = self._editor.unbuilt_page_ids()
        return [
            Path(page_id.removeprefix(self._prefix)) for page_id in ids if page_id.startswith(self._prefix)
        ]

    def _poll(self) -> None:
        """Process what the readers have read, and start reading the next run once the previous one has been
        read."""
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
            if self._runs.find_info(unread) is not None:  # otherwise its folder is gone
                self._acquired_runs[unread] = self._open_runs.acquire(unread)
        # Everything is read and no run is live, so there is nothing left to poll.
        elif all(run.is_over for run in self._acquired_runs.values()):
            self._timer.stop()

    def _release_built(self) -> None:
        """Release the runs of tabs that were closed or whose pages were built."""
        unbuilt = set(self._unbuilt_paths())
        for path in [path for path in self._acquired_runs if path not in unbuilt]:
            del self._acquired_runs[path]
            self._open_runs.release(path)
