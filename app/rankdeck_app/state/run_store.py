"""What a person does to runs and races: says something of them, throws away what is over, brings it back.

A thread does it (io_thread.py). A run that is alive is not thrown away; while it is moved its lock is held,
so that nobody resumes it meanwhile. It goes to the system's trash, or where there is none into `.trash`
beside it.
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
    """A run that was thrown away: where it was, and where it is now."""

    path: Path
    trash_path: Path


class RunStoreError(RankdeckError):
    """Something could not be done to a run; the message says what and why."""


class RunStore(QObject):
    """`relabelled` carries a run's path, what it is called now and its labels; `trashed` what was thrown away
    (a list of Trashed), `restored` the paths that are back, `failed` a sentence for each thing that could not
    be done.
    """

    relabelled = Signal(object, str, object)
    trashed = Signal(list)
    restored = Signal(list)
    failed = Signal(str)

    def __init__(self, disk: IoThread, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._io_thread = disk

    def change_labels(self, paths: Sequence[Path], change: Callable[[Labels], Labels]) -> None:
        """What is said of each run becomes what `change` makes of it; it may raise ConfigError."""

        def tell(changed: list[tuple[Path, str, Labels]]) -> None:
            for run in changed:
                self.relabelled.emit(*run)

        self._run_each(partial(_write_labels, change), paths, tell)

    def trash(self, paths: Sequence[Path]) -> None:
        self._run_each(lambda path: TrashedRun(path, move_to_trash(path)), paths, self.trashed.emit)

    def restore(self, trashed: Sequence[TrashedRun]) -> None:
        self._run_each(restore_from_trash, trashed, self.restored.emit)

    def _run_each(self, act: Callable[[T], R], to: Sequence[T], tell: Callable[[list[R]], object]) -> None:
        """On the disk, one after the other; what came of those to which it could be done is told together."""

        def work() -> tuple[list[R], list[Exception]]:
            done: list[R] = []
            refused: list[Exception] = []
            for one in to:
                try:
                    done.append(act(one))
                except (OSError, RankdeckError) as error:
                    refused.append(error)
            return done, refused

        def then(came_of_it: tuple[list[R], list[Exception]]) -> None:
            done, refused = came_of_it
            for words in dict.fromkeys(map(error_text, refused)):
                self.failed.emit(words)
            if done:
                tell(done)

        self._io_thread.submit(work, then)


def _write_labels(change: Callable[[Labels], Labels], path: Path) -> tuple[Path, str, Labels]:
    before = read_labels(path)
    labels = change(before)
    if labels != before:
        write_labels(path, labels)
    return path, read_title(path), labels


def read_title(path: Path) -> str:
    """What a run or a race is called."""
    return race_info(RaceDir(path)).title if is_race(path) else RunDir(path).title


@contextmanager
def _lock_run(path: Path) -> Iterator[None]:
    """The lock of a run or a race. Raises KeepingError: somebody else has it."""
    try:
        handle = files.open_regular(RaceDir(path).lock if is_race(path) else path / "guard.lock")
    except OSError:
        yield  # it never started
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            told = tr("{run} is running. Stop it first, then delete it.", run=read_title(path))
            raise RunStoreError(told) from None
        yield
    finally:
        os.close(handle)


def move_to_trash(path: Path) -> Path:
    """Where the run is now.

    Raises:
        KeepingError: it is alive, gone, or cannot be moved.
    """
    with _lock_run(path):
        file = QFile(str(path))
        if file.moveToTrash() and file.fileName() and Path(file.fileName()).is_dir():
            return Path(file.fileName())
        target = path.parent / LOCAL_TRASH / path.name
        try:
            target.parent.mkdir(exist_ok=True)
            path.rename(target)
        except OSError as error:
            why = tr("{folder} cannot be moved to the trash: {why}.", folder=path, why=error.strerror)
            raise RunStoreError(why) from None
        return target


def restore_from_trash(trashed: TrashedRun) -> Path:
    """Put a run where it was, and say where that is.

    Raises:
        KeepingError: it is in the trash no more, or something else is in its place.
    """
    if trashed.path.exists():
        taken = tr("{folder} cannot be brought back: something else is there now.", folder=trashed.path)
        raise RunStoreError(taken)
    try:
        trashed.trash_path.rename(trashed.path)
    except OSError as error:
        why = tr("{folder} cannot be brought back: {why}.", folder=trashed.path, why=error.strerror)
        raise RunStoreError(why) from None
    folder = trashed.trash_path.parent
    if folder.name == "files":  # the system's trash keeps a note of where a thing was
        (folder.parent / "info" / f"{trashed.trash_path.name}.trashinfo").unlink(missing_ok=True)
    elif folder.name == LOCAL_TRASH and not any(folder.iterdir()):
        folder.rmdir()
    return trashed.path
