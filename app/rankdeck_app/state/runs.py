"""Every run that can be found: a list that a thread of its own rescans once a second, and a Qt model of it.

run_scan.py looks. The thread hands over a new list when something differs, so the window never waits for a
disk; while thousands of rows are being made it does so a few times a second.
"""

from __future__ import annotations

import time
from dataclasses import replace
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

from rankdeck.run.row import RunInfo
from rankdeck.rundir import Labels
from rankdeck_app.language import tr
from rankdeck_app.state.run_scan import RunScan

RESCAN_MS = 1000
# Python runs one thread at a time: the window gets its turn after each slice of what takes long.
SLICE_S, PAUSE_S = 0.01, 0.005
TELL_EVERY_S = 0.5


class _Scanner(QObject):
    """Lives in the thread; `found` brings a list that differs from the last one, and how many runs there are
    besides. Between two looks it makes what is missing, a slice at a time, so that a look comes in between.
    """

    found = Signal(list, int)
    looked = Signal()
    _more = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._scan: RunScan | None = None
        self._last: list[RunInfo] | None = None
        self._told_s = 0.0
        self._is_working = False
        self._more.connect(self._work, Qt.ConnectionType.QueuedConnection)

    @Slot(Path, bool)
    def look(self, folder: Path, everything: bool) -> None:
        is_new = self._scan is None or self._scan.folder != folder
        if self._scan is None or is_new:
            self._scan = RunScan(folder)
        infos = self._scan.look(everything=everything)
        if not self._is_working or is_new:
            self._tell(infos)
        self.looked.emit()
        # Figures bring numpy: not beside what the window does first.
        if not self._is_working and (self._scan.unread or (self._scan.unfolded and not is_new)):
            self._is_working = True
            self._more.emit()

    @Slot()
    def _work(self) -> None:
        assert self._scan is not None
        if self._scan.unread:
            self._scan.read_on(SLICE_S)
        else:
            self._scan.fold_on(SLICE_S)
        self._is_working = bool(self._scan.unread or self._scan.unfolded)
        if not self._is_working or time.monotonic() - self._told_s >= TELL_EVERY_S:
            self._tell(self._scan.infos())
        if self._is_working:
            time.sleep(PAUSE_S)
            self._more.emit()

    def _tell(self, infos: list[RunInfo]) -> None:
        assert self._scan is not None
        self._told_s = time.monotonic()
        if infos != self._last:
            self._last = infos
            self.found.emit(infos, len(self._scan.unread))


def with_entries(infos: list[RunInfo]) -> list[RunInfo]:
    """Below each race the runs that are its entries."""
    return [row for info in infos for row in (info, *(info.race.entries if info.race else ()))]


class RunsModel(QAbstractListModel):
    """The list for views, entries below their race. `InfoRole` gives the RunInfo."""

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
            return f"{info.title} {info.strategy} {info.name} {tr(info.outcome)}"
        if role == Qt.ItemDataRole.AccessibleTextRole:
            at = tr("step {step} of {steps}", step=info.step, steps=info.steps) if info.steps else ""
            return ", ".join(filter(None, (info.title, info.strategy, tr(info.outcome), at)))
        if role == Qt.ItemDataRole.ToolTipRole:
            return str(info.path)
        return info if role == self.InfoRole else None

    def set_infos(self, infos: list[RunInfo]) -> None:
        """Replace the list; a run whose facts changed keeps its row, so that a selection stays."""
        if [info.path for info in infos] == [info.path for info in self._infos]:
            for row, (old, new) in enumerate(zip(self._infos, infos, strict=True)):
                if old is not new and old != new:
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
    """`infos` is the last list, in which a race is one row; `changed` says that it differs, `ended` that what
    was alive is over; `aged` comes once a second, when what is said of ages may be another."""

    changed = Signal()
    aged = Signal()
    ended = Signal(object)
    _wanted = Signal(Path, bool)

    def __init__(self, folder: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._folder = folder
        self.infos: list[RunInfo] = []
        self.num_unread = 0
        """Runs that are there and whose rows are still being made."""
        self.model = RunsModel(self)
        self.known = False
        self._by_path: dict[Path, RunInfo] = {}
        self._thread = QThread()
        self._thread.setObjectName("runs")
        self._scanner = _Scanner()
        self._scanner.moveToThread(self._thread)
        self._wanted.connect(self._scanner.look, Qt.ConnectionType.QueuedConnection)
        self._scanner.found.connect(self._found, Qt.ConnectionType.QueuedConnection)
        self._scanner.looked.connect(self._looked, Qt.ConnectionType.QueuedConnection)
        self._looking = False
        self._look_at_all = False
        self._timer = QTimer(self, interval=RESCAN_MS)
        self._timer.timeout.connect(self.rescan)
        self._timer.timeout.connect(self.aged)

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

    def rescan(self, *, everything: bool = False) -> None:
        """Look now, at runs that are over too if `everything` is asked for. While a look is under way (a slow
        disk) no second one is asked for, but what has to be looked at is looked at after it."""
        self._look_at_all = self._look_at_all or everything
        if not self._looking:
            self._looking = True
            self._wanted.emit(self._folder, self._look_at_all)
            self._look_at_all = False

    @Slot()
    def _looked(self) -> None:
        self._looking = False
        if self._look_at_all:
            self.rescan()

    @property
    def alive(self) -> list[RunInfo]:
        return [info for info in self.infos if info.is_alive]

    def info_of(self, path: Path) -> RunInfo | None:
        return self._by_path.get(path)

    def title_of(self, path: Path) -> str:
        """What a run is called; the folder's name until it has been read."""
        info = self.info_of(path)
        return path.name if info is None else info.title

    def relabel(self, path: Path, title: str, labels: Labels) -> None:
        """What a person has just said of a run is shown at once; the next look at all of them finds it."""
        if path in self._by_path:
            relabelled = replace(self._by_path[path], title=title, labels=labels)
            self._show([relabelled if info.path == path else info for info in self.infos])
            self.rescan(everything=True)

    @Slot(list, int)
    def _found(self, infos: list[RunInfo], num_unread: int) -> None:
        were_alive = {info.path for info in self.alive}
        self.num_unread, self.known = num_unread, True
        self._show(infos)
        for path in were_alive:
            info = self._by_path.get(path)
            if info is not None and not info.is_alive:
                self.ended.emit(info)

    def _show(self, infos: list[RunInfo]) -> None:
        self.infos = infos
        rows = with_entries(infos)
        self._by_path = {info.path: info for info in rows}
        self.model.set_infos(rows)
        self.changed.emit()
