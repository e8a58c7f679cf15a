"""Every run that can be found: a list that a thread of its own rescans once a second, and a Qt model of it.

The thread hands over a new list when something differs, so the window never waits for a
disk; while thousands of rows are being made it does so a few times a second.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from rankdeck.run.row import RunInfo
from rankdeck.run.row_index import RunRows, Stamp, stamp_of
from rankdeck.rundir import Labels, RaceDir, RunDir, list_races, list_runs
from rankdeck_app.language import tr

if TYPE_CHECKING:
    from rankdeck.run.row_figures import FollowedFigures


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


# One folder's runs and races between looks: which there are, their rows, and the figures that only a run's
# events tell.
#
# A look costs two `stat` calls as long as nothing is new. Rows come from the index where their files are
# the same (rankdeck.run.row_index); others are read some at a time, newest first, and figures after them.
# Runs that go on are read at every look. No Qt and no thread here: `Runs` calls it in one.

# Runs of other folders vanish without a trace in the folder that is watched: look at all of them this often.
FULL_SCAN_EVERY = 30
_SAVE_EVERY = 500
_PASS_BYTES = 1 << 20


class RunScan:
    """`unread` are runs without a row yet, `unfolded` those without figures; both newest first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stamps: tuple[int | None, ...] = (None, None)
        self._looks = 0
        self._rows = RunRows()
        self._runs: dict[Path, RunDir | RaceDir] = {}
        self._infos: dict[Path, RunInfo] = {}
        self._followed: dict[Path, FollowedFigures] = {}
        self._folding: tuple[Path, FollowedFigures, tuple[Stamp, int]] | None = None
        self._bare: set[Path] = set()
        """Whose row came without figures."""
        self.unread: list[RunDir | RaceDir] = []
        self.unfolded: list[Path] = []

    def look(self, *, everything: bool = False, for_s: float = 0.25) -> list[RunInfo]:
        """Every run with a row, newest first. Rows that have to be made are made for `for_s` seconds at most:
        the others are `unread`."""
        index, here = (_mtime(path) for path in (state_dir() / "runs.index", self.folder))
        is_full = everything or self._looks % FULL_SCAN_EVERY == 0 or index != self._stamps[0]
        if is_full or here != self._stamps[1]:
            self._list()
        self._stamps = index, here
        self._looks += 1
        for path in list(self._infos) if is_full else [p for p, one in self._infos.items() if one.is_alive]:
            self._look_at(path)
        self.unread = [run for path, run in self._runs.items() if path not in self._infos]
        self.read_on(for_s)
        self._follow_living()
        self.unfolded = [path for path in self._runs if path in self._bare and not self._infos[path].is_alive]
        return self.infos()

    def infos(self) -> list[RunInfo]:
        return [info for path in self._runs if (info := self._infos.get(path)) is not None]

    def _list(self) -> None:
        found: list[RunDir | RaceDir] = [*list_runs(self.folder), *list_races(self.folder)]
        self._runs = {one.path: one for one in sorted(found, key=lambda one: one.name, reverse=True)}
        gone = self._infos.keys() - self._runs.keys()
        self._rows.forget(gone)
        self._bare -= gone
        for path in gone:
            del self._infos[path]

    def _look_at(self, path: Path) -> None:
        """The row as it is now; its figures stay on show until they are made anew."""
        before = self._infos.get(path)
        try:
            info = self._rows.info(self._runs[path])
        except OSError:
            return  # it is being removed: the next list is without it
        if info.figures is None:
            self._bare.add(path)
            info = replace(info, figures=None if before is None else before.figures)
        else:
            self._bare.discard(path)
        if info != before:
            self._infos[path] = info

    # What takes its time

    def read_on(self, for_s: float) -> None:
        """Make rows, newest first."""
        end_s = time.monotonic() + for_s
        done = 0
        for run in self.unread:
            self._look_at(run.path)
            done += 1
            if time.monotonic() >= end_s:
                break
        del self.unread[:done]
        self._save_some()

    def fold_on(self, for_s: float) -> None:
        """Make figures, newest first; what a run of many steps takes is taken in parts."""
        end_s = time.monotonic() + for_s
        while self.unfolded and time.monotonic() < end_s:
            path = self.unfolded[0]
            if self._folding is None or self._folding[0] != path:
                self._folding = path, _follow(RunDir(path)), stamp_of(path)
            _, followed, stamp = self._folding
            if followed.read_on(_PASS_BYTES):
                continue
            self._folding = None
            del self.unfolded[0]
            self._bare.discard(path)
            self._rows.with_figures(RunDir(path), followed.figures(), stamp)
            self._infos[path] = replace(self._infos[path], figures=followed.figures())
        self._save_some()

    def _follow_living(self) -> None:
        """The figures of runs that go on; those of a run that is over are made once more, of all of it."""
        alive = {path: info for path, info in self._infos.items() if info.is_alive and info.race is None}
        self._followed = {path: one for path, one in self._followed.items() if path in alive}
        for path, info in alive.items() if self._looks > 1 else ():
            if path not in self._followed:
                self._followed[path] = _follow(RunDir(path))
            self._followed[path].read_on()
            self._infos[path] = replace(info, figures=self._followed[path].figures())

    # The index

    def _save_some(self) -> None:
        if self._rows.num_unsaved >= _SAVE_EVERY or not (self.unread or self.unfolded):
            self.save()

    def save(self) -> None:
        self._rows.save()


def _follow(run: RunDir) -> FollowedFigures:
    from rankdeck.run.row_figures import FollowedFigures  # brings numpy: not with the first paint

    return FollowedFigures(run)


def _mtime(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
