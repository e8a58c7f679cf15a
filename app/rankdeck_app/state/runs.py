"""The list of all runs, which a thread refreshes once a second, and the list's Qt model.

The thread reads the runs, so the UI never waits for a disk. The thread emits the list only when the list has
changed; while rows are still being read, it does so at most every half second.
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
from rankdeck.run.row_index import FileStamp, RunRows, is_unsettled, read_stamp
from rankdeck.run_dir import Labels, RaceDir, RunDir, list_races, list_runs
from rankdeck_app.language import tr

if TYPE_CHECKING:
    from rankdeck.run.row_metrics import RunMetricsReader


RESCAN_INTERVAL_MS = 1000
# Python runs one thread at a time: pause after each slice, so that the UI thread gets its turn.
SLICE_S, PAUSE_S = 0.01, 0.005
REPORT_INTERVAL_S = 0.5


class _Scanner(QObject):
    """Scanner object that lives in the scan thread.

    `infos_found` carries the changed list and the number of runs whose rows have not been read yet. Between
    two scans, the scanner reads missing rows and metrics in slices, so that a requested scan is not delayed.
    """

    infos_found = Signal(list, int)
    scanned = Signal()
    _work_requested = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._scan: RunScan | None = None
        self._last_infos: list[RunInfo] | None = None
        self._last_report_s = 0.0
        self._is_working = False
        # Queued, so that a scan requested meanwhile runs between two slices.
        self._work_requested.connect(self._work, Qt.ConnectionType.QueuedConnection)

    @Slot(Path, bool)
    def scan(self, folder: Path, everything: bool) -> None:
        is_new = self._scan is None or self._scan.folder != folder
        if self._scan is None or is_new:
            self._scan = RunScan(folder)
        infos = self._scan.scan(is_full_requested=everything)
        if not self._is_working or is_new:
            self._report(infos)
        self.scanned.emit()
        # Reading metrics imports numpy, which must not slow down the window's start.
        if not self._is_working and (self._scan.unread or (self._scan.missing_metrics and not is_new)):
            self._is_working = True
            self._work_requested.emit()

    @Slot()
    def _work(self) -> None:
        assert self._scan is not None
        if self._scan.unread:
            self._scan.read_rows(SLICE_S)
        else:
            self._scan.read_metrics(SLICE_S)
        self._is_working = bool(self._scan.unread or self._scan.missing_metrics)
        if not self._is_working or time.monotonic() - self._last_report_s >= REPORT_INTERVAL_S:
            self._report(self._scan.infos())
        if self._is_working:
            time.sleep(PAUSE_S)
            self._work_requested.emit()

    def _report(self, infos: list[RunInfo]) -> None:
        assert self._scan is not None
        self._last_report_s = time.monotonic()
        if infos != self._last_infos:
            self._last_infos = infos
            self.infos_found.emit(infos, len(self._scan.unread))


def with_entries(infos: list[RunInfo]) -> list[RunInfo]:
    """Return the list, with each race followed by its entries."""
    return [row for info in infos for row in (info, *(info.race.entries if info.race else ()))]


class RunsModel(QAbstractListModel):
    """Qt model of the run list: each race is followed by its entries. `InfoRole` requests a row's RunInfo."""

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
        """Replace the list. A run whose values changed keeps its row, so that the selection is not lost."""
        if [info.path for info in infos] == [info.path for info in self._infos]:
            for row, (old, new) in enumerate(zip(self._infos, infos, strict=True)):
                if old is not new and old != new:
                    self._infos[row] = new
                    self.dataChanged.emit(self.index(row), self.index(row))
            return
        added = len(infos) - len(self._infos)
        # Only new runs at the top: inserting rows keeps the selection, which a reset would lose.
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
    """The list of all runs.

    `infos` is the latest list, in which a race is one row. `changed` is emitted when the list changes,
    `run_ended` when a run has ended, and `ages_changed` once a second, to update relative times.
    """

    changed = Signal()
    ages_changed = Signal()
    run_ended = Signal(object)
    _scan_requested = Signal(Path, bool)

    def __init__(self, folder: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._folder = folder
        self.infos: list[RunInfo] = []
        self.num_unread = 0
        """Number of runs whose rows are still being read."""
        self.model = RunsModel(self)
        self.is_known = False
        self._by_path: dict[Path, RunInfo] = {}
        self._thread = QThread()
        self._thread.setObjectName("runs")
        self._scanner = _Scanner()
        self._scanner.moveToThread(self._thread)
        self._scan_requested.connect(self._scanner.scan, Qt.ConnectionType.QueuedConnection)
        self._scanner.infos_found.connect(self._on_infos_found, Qt.ConnectionType.QueuedConnection)
        self._scanner.scanned.connect(self._on_scanned, Qt.ConnectionType.QueuedConnection)
        self._is_scanning = False
        self._is_full_requested = False
        self._timer = QTimer(self, interval=RESCAN_INTERVAL_MS)
        self._timer.timeout.connect(self.rescan)
        self._timer.timeout.connect(self.ages_changed)

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

    def rescan(self, *, is_full: bool = False) -> None:
        """Scan now; if `is_full` is True, scan ended runs too.

        While a scan is still running, as on a slow disk, a full scan is queued; any other request is ignored.
        """
        self._is_full_requested = self._is_full_requested or is_full
        if not self._is_scanning:
            self._is_scanning = True
            self._scan_requested.emit(self._folder, self._is_full_requested)
            self._is_full_requested = False

    @Slot()
    def _on_scanned(self) -> None:
        self._is_scanning = False
        if self._is_full_requested:
            self.rescan()

    @property
    def alive_runs(self) -> list[RunInfo]:
        return [info for info in self.infos if info.is_alive]

    def find_info(self, path: Path) -> RunInfo | None:
        return self._by_path.get(path)

    def get_title(self, path: Path) -> str:
        """Return a run's title, or the name of its directory until the title has been read."""
        info = self.find_info(path)
        return path.name if info is None else info.title

    def update_labels(self, path: Path, title: str, labels: Labels) -> None:
        """Show a run's new title and labels at once, before a full scan reads them."""
        if path in self._by_path:
            relabelled = replace(self._by_path[path], title=title, labels=labels)
            self._set_infos([relabelled if info.path == path else info for info in self.infos])
            self.rescan(is_full=True)

    @Slot(list, int)
    def _on_infos_found(self, infos: list[RunInfo], num_unread: int) -> None:
        were_alive = {info.path for info in self.alive_runs}
        self.num_unread, self.is_known = num_unread, True
        self._set_infos(infos)
        for path in were_alive:
            info = self._by_path.get(path)
            if info is not None and not info.is_alive:
                self.run_ended.emit(info)

    def _set_infos(self, infos: list[RunInfo]) -> None:
        self.infos = infos
        rows = with_entries(infos)
        self._by_path = {info.path: info for info in rows}
        self.model.set_infos(rows)
        self.changed.emit()


# A folder's runs and races between scans: their directories, their rows, and the metrics that only a run's
# events have. A scan takes two `stat` calls while nothing is new. Rows come from the index if their files are
# unchanged (rankdeck.run.row_index); others are read in slices, newest first, and metrics after them. Live
# runs are read at every scan. This class needs no Qt and no thread: `Runs` calls it in a thread.

# Runs of other folders can vanish without a change in the watched folder, so every so many scans all are
# checked.
FULL_SCAN_INTERVAL = 30
_SAVE_INTERVAL = 500
_READ_BYTES = 1 << 20


class RunScan:
    """Repeated scan of a folder.

    `unread` lists the runs without a row, `missing_metrics` those without metrics, newest first.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stamps: tuple[int | None, ...] = (None, None)
        self._num_scans = 0
        self._rows = RunRows()
        self._runs: dict[Path, RunDir | RaceDir] = {}
        self._infos: dict[Path, RunInfo] = {}
        self._live_readers: dict[Path, RunMetricsReader] = {}
        self._current_reader: tuple[Path, RunMetricsReader, tuple[FileStamp, int]] | None = None
        self._without_metrics: set[Path] = set()
        """Runs whose row has no metrics yet."""
        self.unread: list[RunDir | RaceDir] = []
        self.missing_metrics: list[Path] = []

    def scan(self, *, is_full_requested: bool = False, timeout_s: float = 0.25) -> list[RunInfo]:
        """Return every run that has a row, newest first.

        Missing rows are read for at most `timeout_s` seconds; the remaining runs are left in `unread`.
        """
        index, here = (_mtime_ns(path) for path in (state_dir() / "runs.index", self.folder))
        is_full = is_full_requested or self._num_scans % FULL_SCAN_INTERVAL == 0 or index != self._stamps[0]
        if is_full or here != self._stamps[1] or is_unsettled(max(index or 0, here or 0)):
            self._list_runs()
        self._stamps = index, here
        self._num_scans += 1
        for path in list(self._infos) if is_full else [p for p, info in self._infos.items() if info.is_alive]:
            self._update_row(path)
        self.unread = [run for path, run in self._runs.items() if path not in self._infos]
        self.read_rows(timeout_s)
        self._update_live_runs()
        self.missing_metrics = [
            path for path in self._runs if path in self._without_metrics and not self._infos[path].is_alive
        ]
        return self.infos()

    def infos(self) -> list[RunInfo]:
        return [info for path in self._runs if (info := self._infos.get(path)) is not None]

    def _list_runs(self) -> None:
        listed: list[RunDir | RaceDir] = [*list_runs(self.folder), *list_races(self.folder)]
        self._runs = {run.path: run for run in sorted(listed, key=lambda run: run.name, reverse=True)}
        removed = self._infos.keys() - self._runs.keys()
        self._rows.forget(removed)
        self._without_metrics -= removed
        for path in removed:
            del self._infos[path]

    def _update_row(self, path: Path) -> None:
        """Update a run's row, which keeps its previous metrics until new ones have been read."""
        before = self._infos.get(path)
        try:
            info = self._rows.info(self._runs[path])
        except OSError:
            return  # it is being deleted: the next list lacks it
        if info.metrics is None:
            self._without_metrics.add(path)
            info = replace(info, metrics=None if before is None else before.metrics)
        else:
            self._without_metrics.discard(path)
        if info != before:
            self._infos[path] = info

    # Slow work, in slices

    def read_rows(self, for_s: float) -> None:
        """Read missing rows for at most `for_s` seconds, newest first."""
        end_s = time.monotonic() + for_s
        done = 0
        for run in self.unread:
            self._update_row(run.path)
            done += 1
            if time.monotonic() >= end_s:
                break
        del self.unread[:done]
        self._save_if_due()

    def read_metrics(self, for_s: float) -> None:
        """Read missing metrics for at most `for_s` seconds, newest first; runs with many steps are read in
        chunks."""
        end_s = time.monotonic() + for_s
        while self.missing_metrics and time.monotonic() < end_s:
            path = self.missing_metrics[0]
            if self._current_reader is None or self._current_reader[0] != path:
                self._current_reader = path, _make_reader(RunDir(path)), read_stamp(path)
            _, followed, stamp = self._current_reader
            if followed.read_chunk(_READ_BYTES):
                continue
            self._current_reader = None
            del self.missing_metrics[0]
            self._without_metrics.discard(path)
            self._rows.with_metrics(RunDir(path), followed.metrics(), stamp)
            self._infos[path] = replace(self._infos[path], metrics=followed.metrics())
        self._save_if_due()

    def _update_live_runs(self) -> None:
        """Update the metrics of live runs. After a run has ended, `read_metrics` reads its metrics once more
        in full."""
        alive = {path: info for path, info in self._infos.items() if info.is_alive and info.race is None}
        self._live_readers = {path: reader for path, reader in self._live_readers.items() if path in alive}
        # Not in the first scan, because reading metrics imports numpy.
        for path, info in alive.items() if self._num_scans > 1 else ():
            if path not in self._live_readers:
                self._live_readers[path] = _make_reader(RunDir(path))
            self._live_readers[path].read_chunk()
            self._infos[path] = replace(info, metrics=self._live_readers[path].metrics())

    # The index

    def _save_if_due(self) -> None:
        if self._rows.num_unsaved >= _SAVE_INTERVAL or not (self.unread or self.missing_metrics):
            self.save()

    def save(self) -> None:
        self._rows.save()


def _make_reader(run: RunDir) -> RunMetricsReader:
    from rankdeck.run.row_metrics import RunMetricsReader  # imports numpy: not at start

    return RunMetricsReader(run)


def _mtime_ns(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
