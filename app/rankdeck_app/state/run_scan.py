"""One folder's runs and races between looks: which there are, their rows, and the figures that only a run's
events tell.

A look costs two `stat` calls as long as nothing is new. Rows come from the index where their files are the
same (rankdeck.run.row_index); others are read some at a time, newest first, and figures after them. Runs that
go on are read at every look. No Qt and no thread here: runs.py calls it in one.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rankdeck.base.home import state_dir
from rankdeck.run.row import RunInfo
from rankdeck.run.row_index import RunRows, Stamp, stamp_of
from rankdeck.rundir import RaceDir, RunDir, list_races, list_runs

if TYPE_CHECKING:
    from rankdeck.run.row_figures import FollowedFigures

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
