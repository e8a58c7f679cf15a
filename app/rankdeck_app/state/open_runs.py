"""The runs that tabs show, each read by one LiveRun however many tabs show it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

if TYPE_CHECKING:
    from rankdeck_app.state.live_run import LiveRun


class OpenRuns(QObject):
    """`opened` and `closed` carry the LiveRun; a run is read from its first tab to its last."""

    opened = Signal(object)
    closed = Signal(object)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._runs: dict[Path, tuple[LiveRun, int]] = {}

    def acquire(self, path: Path, title: str = "") -> LiveRun:
        """The run at a path, being read from now on; `title` is what it is called until it has been. Every
        acquire needs its `release`.
        """
        run, users = self._runs.get(path, (None, 0))
        if run is None:
            from rankdeck_app.state.live_run import LiveRun  # brings numpy: not before a run is opened

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
        """End every reader; the window goes."""
        for path in list(self._runs):
            run, _ = self._runs.pop(path)
            run.close()
