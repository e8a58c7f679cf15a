"""Every run that can be found: a list that a thread of its own rescans once a second, and a Qt model of it.

A scan lists the runs folder and the index only when either changed, and looks again only at runs that are
not over: a thousand finished runs cost two `stat` calls. The thread hands over a new list when something
differs, so the window never waits for a disk.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PySide6.QtCore import (
    QAbstractListModel,
    QModelIndex,
    QObject,
    QPersistentModelIndex,
    Qt,
    QThread,
    QTimer,
    Signal,
    Slot,
)

from rankdeck.base.home import state_dir
from rankdeck.run.row import RunInfo, read_info
from rankdeck.rundir import RunDir, labels_stamp, list_runs

RESCAN_MS = 1000
# Runs of other folders vanish without a trace in the folder that is watched: look at all of them this often.
FULL_SCAN_EVERY = 30


class RunScan:
    """One folder's runs, remembered between looks. No Qt and no thread here: the scanner below calls it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stamp: tuple[int | None, ...] = ()
        self._looks = 0
        self._runs: list[RunDir] = []
        self._infos: dict[Path, RunInfo] = {}

    def look(self) -> list[RunInfo]:
        """Every run, newest first."""
        stamp = tuple(_mtime(path) for path in (self.folder, state_dir() / "runs.index"))
        if stamp != self._stamp or self._looks % FULL_SCAN_EVERY == 0:
            self._runs = list_runs(self.folder)
            self._stamp = stamp
            self._forget_changed()
        self._looks += 1
        infos = {run.path: self._info(run) for run in self._runs}
        self._infos = infos
        return sorted(infos.values(), key=lambda info: info.name, reverse=True)

    def _forget_changed(self) -> None:
        """A run that goes on has no last word any more, and one may be called otherwise."""
        for path, info in list(self._infos.items()):
            is_resumed = not info.is_alive and (info.outcome == "lost" or not (path / "end.json").exists())
            if is_resumed or labels_stamp(path) != info.labels_stamp:
                del self._infos[path]

    def _info(self, run: RunDir) -> RunInfo:
        known = self._infos.get(run.path)
        if known is None or (known.is_alive and run.outcome() != "running"):
            return read_info(run)
        if known.is_alive and known.num_devices is None:
            return read_info(run)  # its supervisor had not spoken yet
        return known


def _mtime(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


class _Scanner(QObject):
    """Lives in the thread; `found` brings a list that differs from the last one."""

    found = Signal(list)
    looked = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._scan: RunScan | None = None
        self._last: list[RunInfo] | None = None

    @Slot(Path)
    def look(self, folder: Path) -> None:
        if self._scan is None or self._scan.folder != folder:
            self._scan = RunScan(folder)
        infos = self._scan.look()
        if infos != self._last:
            self._last = infos
            self.found.emit(infos)
        self.looked.emit()


class RunsModel(QAbstractListModel):
    """The list for views. `InfoRole` gives the RunInfo."""

    InfoRole = int(Qt.ItemDataRole.UserRole)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._infos: list[RunInfo] = []

    def rowCount(self, parent: QModelIndex | QPersistentModelIndex | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(self._infos)

    def data(
        self, index: QModelIndex | QPersistentModelIndex, role: int = Qt.ItemDataRole.DisplayRole
    ) -> Any:
        if not index.isValid() or index.row() >= len(self._infos):
            return None
        info = self._infos[index.row()]
        if role == Qt.ItemDataRole.DisplayRole:
            return f"{info.title} {info.strategy} {info.name} {info.outcome}"
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return f"{info.title}, {info.strategy}, {info.outcome}"
        if role == Qt.ItemDataRole.ToolTipRole:
            return str(info.path)
        return info if role == self.InfoRole else None

    def set_infos(self, infos: list[RunInfo]) -> None:
        """Replace the list; a run whose facts changed keeps its row, so that a selection stays."""
        if [info.path for info in infos] == [info.path for info in self._infos]:
            for row, (old, new) in enumerate(zip(self._infos, infos, strict=True)):
                if old != new:
                    self._infos[row] = new
                    self.dataChanged.emit(self.index(row), self.index(row))
            return
        added = len(infos) - len(self._infos)
        if added > 0 and [info.path for info in infos[added:]] == [info.path for info in self._infos]:
            self.beginInsertRows(QModelIndex(), 0, added - 1)
            self._infos = infos[:added] + self._infos
            self.endInsertRows()
            self.set_infos(infos)
            return
        self.beginResetModel()
        self._infos = list(infos)
        self.endResetModel()


class Runs(QObject):
    """`infos` is the last list; `changed` says that it differs, `ended` that a living run is over."""

    changed = Signal()
    ended = Signal(object)
    _wanted = Signal(Path)

    def __init__(self, folder: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._folder = folder
        self.infos: list[RunInfo] = []
        self.model = RunsModel(self)
        self.known = False
        self._thread = QThread()
        self._thread.setObjectName("runs")
        self._scanner = _Scanner()
        self._scanner.moveToThread(self._thread)
        self._wanted.connect(self._scanner.look, Qt.ConnectionType.QueuedConnection)
        self._scanner.found.connect(self._found, Qt.ConnectionType.QueuedConnection)
        self._scanner.looked.connect(self._looked, Qt.ConnectionType.QueuedConnection)
        self._looking = False
        self._timer = QTimer(self, interval=RESCAN_MS)
        self._timer.timeout.connect(self.rescan)

    def start(self) -> None:
        self._thread.start(QThread.Priority.LowPriority)
        self._timer.start()
        self.rescan()

    def close(self) -> None:
        self._timer.stop()
        self._thread.quit()
        self._thread.wait()

    def set_folder(self, folder: Path) -> None:
        if folder != self._folder:
            self._folder = folder
            self.rescan()

    def rescan(self) -> None:
        """Look now; a look that is still under way (a slow disk) is not asked for twice."""
        if not self._looking:
            self._looking = True
            self._wanted.emit(self._folder)

    @Slot()
    def _looked(self) -> None:
        self._looking = False

    @property
    def alive(self) -> list[RunInfo]:
        return [info for info in self.infos if info.is_alive]

    def info_of(self, path: Path) -> RunInfo | None:
        return next((info for info in self.infos if info.path == path), None)

    def title_of(self, path: Path) -> str:
        """What a run is called; the folder's name until it has been read."""
        info = self.info_of(path)
        return path.name if info is None else info.title

    @Slot(list)
    def _found(self, infos: list[RunInfo]) -> None:
        were_alive = {info.path for info in self.alive}
        self.infos = infos
        self.known = True
        self.model.set_infos(infos)
        self.changed.emit()
        for info in infos:
            if info.path in were_alive and not info.is_alive:
                self.ended.emit(info)
