"""Relabel, delete and restore runs and races.

A thread does the work (io_thread.py). A running run is not deleted, and a run's lock is held while the run is
moved, so that it cannot be resumed at the same time. A deleted run is moved to the system's trash or, if that
fails, to a `.trash` folder in its parent folder.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from PySide6.QtCore import QFile, QObject, Signal

from rankdeck.base import files
from rankdeck.base.errors import RankdeckError
from rankdeck.run.race_row import race_info
from rankdeck.run_dir import Labels, RaceDir, RunDir, is_race, read_labels, write_labels
from rankdeck_app.io_thread import IoThread
from rankdeck_app.language import error_text, tr

LOCAL_TRASH = ".trash"
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class TrashedRun:
    """A deleted run: its original path and its path in the trash."""

    path: Path
    trash_path: Path


class RunStoreError(RankdeckError):
    """Raised when a run cannot be changed, moved or restored; the message gives the reason."""


class RunStore(QObject):
    """Changes, deletes and restores runs on the io thread.

    `relabelled` carries a run's path, title and labels; `trashed` a list of TrashedRun; `restored` the paths
    of the restored runs; `failed` an error message, emitted once even if several runs fail with it.
    """

    relabelled = Signal(object, str, object)
    trashed = Signal(list)
    restored = Signal(list)
    failed = Signal(str)

    def __init__(self, disk: IoThread, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._io_thread = disk

    def change_labels(self, paths: Sequence[Path], change: Callable[[Labels], Labels]) -> None:
        """Replace each run's labels with the result of `change`, which can raise ConfigError."""

        def emit_changes(changed: list[tuple[Path, str, Labels]]) -> None:
            for run in changed:
                self.relabelled.emit(*run)

        self._run_each(partial(_write_labels, change), paths, emit_changes)

    def trash(self, paths: Sequence[Path]) -> None:
        self._run_each(lambda path: TrashedRun(path, move_to_trash(path)), paths, self.trashed.emit)

    def restore(self, trashed: Sequence[TrashedRun]) -> None:
        self._run_each(restore_from_trash, trashed, self.restored.emit)

    def _run_each(self, act: Callable[[T], R], to: Sequence[T], on_done: Callable[[list[R]], object]) -> None:
        """Apply `act` to each item of `to` on the io thread; `on_done` gets the results of the items that
        succeeded."""

        def work() -> tuple[list[R], list[Exception]]:
            done: list[R] = []
            refused: list[Exception] = []
            for item in to:
                try:
                    done.append(act(item))
                except (OSError, RankdeckError) as error:
                    refused.append(error)
            return done, refused

        def then(came_of_it: tuple[list[R], list[Exception]]) -> None:
            done, refused = came_of_it
            # Many runs usually fail for the same reason, which is reported once.
            for text in dict.fromkeys(map(error_text, refused)):
                self.failed.emit(text)
            if done:
                on_done(done)

        self._io_thread.submit(work, then)


def _write_labels(change: Callable[[Labels], Labels], path: Path) -> tuple[Path, str, Labels]:
    before = read_labels(path)
    labels = change(before)
    if labels != before:
        write_labels(path, labels)
    return path, read_title(path), labels


def read_title(path: Path) -> str:
    """Return the title of a run or a race."""
    return race_info(RaceDir(path)).title if is_race(path) else RunDir(path).title


@contextmanager
def _lock_run(path: Path) -> Iterator[None]:
    """Hold the lock of a run or a race within the context.

    Raises:
        RunStoreError: another process holds the lock.
    """
    try:
        handle = files.open_regular(RaceDir(path).lock if is_race(path) else path / "guard.lock")
    except OSError:
        yield  # it never started, so there is no lock
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            message = tr("{run} is running. Stop it first, then delete it.", run=read_title(path))
            raise RunStoreError(message) from None
        yield
    finally:
        os.close(handle)


def move_to_trash(path: Path) -> Path:
    """Move a run to the trash and return its new path.

    Raises:
        RunStoreError: the run is running or cannot be moved.
    """
    # The lock prevents a resume from starting while the folder moves.
    with _lock_run(path):
        file = QFile(str(path))
        if file.moveToTrash() and file.fileName() and Path(file.fileName()).is_dir():
            return Path(file.fileName())
        # moveToTrash fails if the user's data folder does not exist yet, so fall back to a folder next to the
        # run.
        target = path.parent / LOCAL_TRASH / path.name
        try:
            target.parent.mkdir(exist_ok=True)
            path.rename(target)
        except OSError as error:
            why = tr("{folder} cannot be moved to the trash: {why}.", folder=path, why=error.strerror)
            raise RunStoreError(why) from None
        return target


def restore_from_trash(trashed: TrashedRun) -> Path:
    """Move a run back to its original path, and return that path.

    Raises:
        RunStoreError: the run is no longer in the trash, or its original path is taken.
    """
    if trashed.path.exists():
        taken = tr("{folder} cannot be restored: the path already exists.", folder=trashed.path)
        raise RunStoreError(taken)
    try:
        trashed.trash_path.rename(trashed.path)
    except OSError as error:
        why = tr("{folder} cannot be restored: {why}.", folder=trashed.path, why=error.strerror)
        raise RunStoreError(why) from None
    folder = trashed.trash_path.parent
    if folder.name == "files":  # the system's trash records the original path
        (folder.parent / "info" / f"{trashed.trash_path.name}.trashinfo").unlink(missing_ok=True)
    elif folder.name == LOCAL_TRASH and not any(folder.iterdir()):
        folder.rmdir()
    return trashed.path
