"""What a person does to runs and races: says something of them, throws away what is over, brings it back.

All of it is done by a thread, one thing after the other, so that a slow disk never blocks a click. A run that
is alive is not thrown away; while it is moved its lock is held, so that nobody resumes it meanwhile. It goes
to the system's trash, or where there is none into `.trash` beside it.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from PySide6.QtCore import QFile, QObject, Qt, Signal

from rankdeck.base import files
from rankdeck.base.errors import ConfigError
from rankdeck.run.race_row import race_info
from rankdeck.rundir import Labels, RaceDir, RunDir, is_race, read_labels, write_labels
from rankdeck_app.language import tr
from rankdeck_app.state.problem_list import text_of

OWN_TRASH = ".trash"


@dataclass(frozen=True)
class Trashed:
    """A run that was thrown away: where it was, and where it is now."""

    path: Path
    now_at: Path


class KeepingError(Exception):
    """Something could not be done to a run; the message says what and why."""


class RunKeeper(QObject):
    """`relabelled` carries a run's path, what it is called now and its labels; `trashed` what was thrown away
    (a list of Trashed), `restored` the paths that are back, `failed` a sentence for each thing that could not
    be done.
    """

    relabelled = Signal(object, str, object)
    trashed = Signal(list)
    restored = Signal(list)
    failed = Signal(str)
    _emitted = Signal(object)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._emitted.connect(lambda emit: emit(), Qt.ConnectionType.QueuedConnection)

    def change_labels(self, paths: Sequence[Path], change: Callable[[Labels], Labels]) -> None:
        """What is said of each run becomes what `change` makes of it; it may raise ConfigError."""
        self._do(lambda: self._change_labels(paths, change))

    def trash(self, paths: Sequence[Path]) -> None:
        self._do(lambda: self._trash(paths))

    def restore(self, trashed: Sequence[Trashed]) -> None:
        self._do(lambda: self._restore(trashed))

    def close(self) -> None:
        """Once everything that was asked for is done; a disk that holds it up is not waited for."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(timeout=5)
            self._thread = None

    # In the thread

    def _do(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="keeper", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except RuntimeError:
                return  # the window was closed while a disk held this up

    def _tell(self, emit: Callable[[], None]) -> None:
        self._emitted.emit(emit)

    def _say(self, failure: str) -> None:
        self._tell(lambda: self.failed.emit(failure))

    def _change_labels(self, paths: Sequence[Path], change: Callable[[Labels], Labels]) -> None:
        for path in paths:
            try:
                before = read_labels(path)
                labels = change(before)
                if labels != before:
                    write_labels(path, labels)
            except ConfigError as error:
                self._say(text_of(error.problem))
                return
            self._tell_labels(path, labels)

    def _tell_labels(self, path: Path, labels: Labels) -> None:
        title = _title(path)
        self._tell(lambda: self.relabelled.emit(path, title, labels))

    def _trash(self, paths: Sequence[Path]) -> None:
        done: list[Trashed] = []
        for path in paths:
            try:
                done.append(Trashed(path, move_to_trash(path)))
            except KeepingError as error:
                self._say(str(error))
        if done:
            self._tell(lambda: self.trashed.emit(done))

    def _restore(self, trashed: Sequence[Trashed]) -> None:
        done: list[Path] = []
        for one in trashed:
            try:
                bring_back(one)
                done.append(one.path)
            except KeepingError as error:
                self._say(str(error))
        if done:
            self._tell(lambda: self.restored.emit(done))


def _title(path: Path) -> str:
    return race_info(RaceDir(path)).title if is_race(path) else RunDir(path).title


@contextmanager
def _held(path: Path) -> Iterator[None]:
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
            told = tr("{run} is running. Stop it first, then delete it.", run=_title(path))
            raise KeepingError(told) from None
        yield
    finally:
        os.close(handle)


def move_to_trash(path: Path) -> Path:
    """Where the run is now.

    Raises:
        KeepingError: it is alive, gone, or cannot be moved.
    """
    with _held(path):
        file = QFile(str(path))
        if file.moveToTrash() and file.fileName() and Path(file.fileName()).is_dir():
            return Path(file.fileName())
        target = path.parent / OWN_TRASH / path.name
        try:
            target.parent.mkdir(exist_ok=True)
            path.rename(target)
        except OSError as error:
            why = tr("{folder} cannot be moved to the trash: {why}.", folder=path, why=error.strerror)
            raise KeepingError(why) from None
        return target


def bring_back(trashed: Trashed) -> None:
    """Put a run where it was.

    Raises:
        KeepingError: it is in the trash no more, or something else is in its place.
    """
    if trashed.path.exists():
        taken = tr("{folder} cannot be brought back: something else is there now.", folder=trashed.path)
        raise KeepingError(taken)
    try:
        trashed.now_at.rename(trashed.path)
    except OSError as error:
        why = tr("{folder} cannot be brought back: {why}.", folder=trashed.path, why=error.strerror)
        raise KeepingError(why) from None
    folder = trashed.now_at.parent
    if folder.name == "files":  # the system's trash keeps a note of where a thing was
        (folder.parent / "info" / f"{trashed.now_at.name}.trashinfo").unlink(missing_ok=True)
    elif folder.name == OWN_TRASH and not any(folder.iterdir()):
        folder.rmdir()
