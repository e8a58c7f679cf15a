"""Runs that are open in tabs; each is read by one LiveRun, however many tabs show it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

if TYPE_CHECKING:
    from rankdeck_app.state.live_run import LiveRun


class OpenRuns(QObject):
    """Open runs with their reference counts; `opened` and `closed` carry the LiveRun."""

    opened = Signal(object)
    closed = Signal(object)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._runs: dict[Path, tuple[LiveRun, int]] = {}

    def acquire(self, path: Path, title: str = "") -> LiveRun:
        """Return the run at a path, and start reading it if it is not open yet; `title` is shown until the
        run's own title has been read.

        Every `acquire` needs a `release`.
        """
        run, users = self._runs.get(path, (None, 0))
        if run is None:
            from rankdeck_app.state.live_run import LiveRun  # imports numpy: not at the app's start

            run = LiveRun(path, self, title=title)
            self._runs[path] = (run, 1)
            run.start()
            self.opened.emit(run)
        else:
            self._runs[path] = (run, users + 1)
        return run

    def release(self, path: Path) -> None:
        run, users = self._runs.get(path, (None, 0))
        if run is None:
            return
        if users > 1:
            self._runs[path] = (run, users - 1)
            return
        del self._runs[path]
        run.close()
        self.closed.emit(run)
        run.deleteLater()

    def get(self, path: Path) -> LiveRun | None:
        return self._runs.get(path, (None, 0))[0]

    def list_runs(self) -> list[LiveRun]:
        return [run for run, _ in self._runs.values()]

    def close(self) -> None:
        """Stop all readers; called when the window is closing."""
        for path in list(self._runs):
            run, _ = self._runs.pop(path)
            run.close()
