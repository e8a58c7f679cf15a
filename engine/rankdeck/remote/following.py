"""A run of another host, copied here while somebody watches it, in a thread of its own.

The watcher reads the copy as any run; this says how old it is. What was cut off goes on where it was.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import msgspec

from rankdeck.base import files
from rankdeck.base.errors import RankdeckError
from rankdeck.base.home import copies_dir
from rankdeck.base.phrases import phrase
from rankdeck.remote import travelling, wire
from rankdeck.remote.clock import Clock
from rankdeck.remote.link import Link
from rankdeck.rundir import ORIGIN, HostedRun, RunDir, slug

_TURN_S = 0.05
_NUMBER = 0
"""Of what is followed; the commands about it are counted from 1 on."""


class RemoteRun:
    """The run that `name` names on a host. A context manager. `is_known`: it was begun there just now.
    `is_kept`: the copy is to stay, and it is an error where somebody else makes it.
    """

    def __init__(self, host: str, name: str, *, is_known: bool = False, is_kept: bool = False) -> None:
        self._host, self._name, self._is_kept = host, name, is_kept
        self._mirror: Mirror | None = None
        self._path: str | None = None
        self._for_itself: tempfile.TemporaryDirectory[str] | None = None
        self._error: RankdeckError | None = None
        self._asked: SimpleQueue[list[str]] = SimpleQueue()
        self._unanswered: dict[int, list[str]] = {}
        self._num_asked = 0
        self._is_told = False
        self._is_found, self._is_over = threading.Event(), threading.Event()
        self.link = Link(host, self._take, self._ask, is_known=is_known)
        self._thread = threading.Thread(target=self._work, name=f"link to {host}", daemon=True)

    def __enter__(self) -> RemoteRun:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self.link.close()
        if self._mirror is not None:
            self._mirror.close()
        if self._for_itself is not None:
            self._for_itself.cleanup()

    def copy(self) -> RunDir:
        """Wait until the copy can be read: of a run that is over all of it is here then.

        Raises:
            RankdeckError: there is no such run, no such host, or no room for a copy.
        """
        run = self.copy_within(None)
        assert run is not None
        return run

    def copy_within(self, seconds: float | None) -> RunDir | None:
        """The same; None where it cannot be read by then."""
        if not self._is_found.wait(seconds):
            return None
        if self._error is not None:
            raise self._error
        assert self._mirror is not None
        return self._mirror.run

    def ask(self, argv: list[str]) -> None:
        """Run `rankdeck ARGV` there, about this run, and again where the connection breaks before it has
        ended; what it says is lost.
        """
        self._asked.put(argv)

    @property
    def error(self) -> RankdeckError | None:
        """Why nothing more will come."""
        return self._error

    def _work(self) -> None:
        try:
            while not self._is_over.is_set():
                self.link.poll(_TURN_S)
                self._tell_clock()
                while not self._asked.empty():
                    self._num_asked += 1
                    self._unanswered[self._num_asked] = self._asked.get()
                    if self.link.is_up:
                        self._send(self._num_asked)
        except RankdeckError as error:
            self._error = error
        except OSError as error:
            message = phrase(
                "The copy of {run} cannot be written: {why}.", run=self._name, why=error.strerror
            )
            self._error = RankdeckError(message, code="no-copy")
        finally:
            self._is_found.set()

    def _tell_clock(self) -> None:
        """Nobody reads the copy before its times can be put right."""
        if self._mirror is not None and self.link.clock.offset_s is not None:
            self._mirror.tell_clock(self.link.clock)
            if self._is_told:
                self._is_found.set()

    def _send(self, number: int) -> None:
        self.link.send(wire.Command(number=number, argv=self._unanswered[number]))

    def _ask(self) -> None:
        for number in self._unanswered:
            self._send(number)
        self._follow()

    def _follow(self) -> None:
        if self._mirror is None or self._path is None:
            self.link.send(wire.Find(number=_NUMBER, run=self._name))
            return
        for have in self._mirror.have(_NUMBER):
            self.link.send(have)
        self.link.send(wire.Follow(number=_NUMBER, path=self._path))

    def _take(self, message: wire.ToNear, body: bytes) -> None:
        match message:
            case wire.Found():
                self._mirror = self._copy_of(message.run)
                before = self._mirror.run.copied_from
                ahead_s = 0.0 if before is None else before.ahead_s
                self._mirror.tell_origin(HostedRun(self._host, message.path, ahead_s=ahead_s))
                self._path = message.path
                self._follow()
            case wire.Refused() if message.number == _NUMBER:
                raise RankdeckError(message.message, code=message.code, advice=message.advice or None)
            case wire.Piece() | wire.Whole() | wire.Told() if self._mirror is not None:
                self._mirror.take(message, body)
                self._is_told = self._is_told or isinstance(message, wire.Told)
            case wire.Ended() | wire.Refused():
                self._unanswered.pop(message.number, None)
            case wire.Output():
                pass
            case _:
                raise wire.WireError("nobody asked for it")

    def _copy_of(self, name: str) -> Mirror:
        try:
            return Mirror(folder_of(self._host), name)
        except BlockingIOError:
            if self._is_kept:
                words = phrase("Somebody else here copies {run} just now.", run=self._name)
                raise RankdeckError(words, code="copied-already") from None
            # Somebody else here copies it just now, and may end at any time.
            self._for_itself = tempfile.TemporaryDirectory(prefix="rankdeck-copy-")
            return Mirror(Path(self._for_itself.name), name)


# The copy of one run of another host, in a run's directory of this one: readers of runs read it as any
# other.
#
# It has the first bytes of every file that grows, so how much is here is all that has to be known to go on;
# the checksum of their end tells whether it is the same file still. While the run goes on there, its lock
# is held here by whoever copies. Nothing that a host sends is written anywhere but in this directory, under
# names that travelling.py knows.

_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC
_LEAST_FREE_BYTES = 256 << 20
"""What another host sends never fills the disk."""
_FINE_S = 0.05


def folder_of(host: str) -> Path:
    """Where the copies of a host's runs are. Nothing is created."""
    return copies_dir() / slug(host) / "runs"


class Mirror:
    """The copy of the run `name`.

    Raises:
        WireError: no run is called so.
        BlockingIOError: another process copies it there.
        OSError: the folder cannot be made or written.
    """

    def __init__(self, folder: Path, name: str) -> None:
        if not travelling.is_run_name(name):
            raise wire.WireError("no name of a run")
        self.run = RunDir(folder / name)
        self._origin: HostedRun | None = None
        self._parts: dict[str, bytearray] = {}
        self._sizes: dict[str, int] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for path in (self.run.path, self.run.events_folder, self.run.logs_folder):
            path.mkdir(mode=0o700, exist_ok=True)
            if path.is_symlink():
                raise OSError(errno.ELOOP, phrase("it is a link"), str(path))
        flags = os.O_RDWR | os.O_CREAT | _NO_LINK
        self._own = os.open(self.run.path / "copy.lock", flags, 0o600)
        try:
            fcntl.flock(self._own, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._alive = os.open(self.run.path / "guard.lock", flags, 0o600)
        except OSError:
            os.close(self._own)
            raise

    def tell_origin(self, origin: HostedRun) -> None:
        """Raises: OSError, it cannot be written."""
        self._origin = origin
        files.write_own(self.run.path / ORIGIN, msgspec.json.encode(origin))

    def tell_clock(self, clock: Clock) -> None:
        """Of the host, as far as it matters to who looks at charts. Raises: as `tell_origin`."""
        if self._origin is None or clock.offset_s is None:
            return
        if abs(clock.offset_s - self._origin.ahead_s) > _FINE_S + 2 * clock.within_s:
            self.tell_origin(replace(self._origin, ahead_s=round(clock.offset_s, 3)))

    def have(self, number: int) -> Iterator[wire.Have]:
        """What is here already, to be said before it is followed."""
        for name in travelling.growing_files(self.run.path):
            path = self.run.path / name
            try:
                size = path.lstat().st_size
                checksum = travelling.checksum_of_end(path, size)
            except OSError:
                continue
            self._sizes[name] = size
            yield wire.Have(number=number, name=name, size=size, checksum=checksum)

    def take(self, message: wire.Piece | wire.Whole | wire.Told, body: bytes) -> None:
        """Raises: WireError, it does not fit; OSError, the disk has no room."""
        match message:
            case wire.Piece():
                self._add(message, body)
            case wire.Whole():
                self._replace(message, body)
            case wire.Told():
                self._tell(is_alive=message.is_alive)

    def _add(self, piece: wire.Piece, body: bytes) -> None:
        name = piece.name
        if not travelling.grows(name) or (
            name not in self._sizes and len(self._sizes) >= travelling.MOST_FILES
        ):
            raise wire.WireError("no file that travels")
        if shutil.disk_usage(self.run.path).free < _LEAST_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.run.path))
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | _NO_LINK
        handle = os.open(self.run.path / name, flags, 0o600)
        try:
            size = os.fstat(handle).st_size
            if piece.offset == 0 and size:
                os.ftruncate(handle, 0)  # another file there by now
            elif piece.offset != size:
                raise wire.WireError("a piece of a file is missing")
            offset = piece.offset
            while body:
                written = os.pwrite(handle, body, offset)
                offset, body = offset + written, body[written:]
            self._sizes[name] = offset
        finally:
            os.close(handle)

    def _replace(self, whole: wire.Whole, body: bytes) -> None:
        if not travelling.is_whole(whole.name) or len(self._parts) > len(self._sizes) + 64:
            raise wire.WireError("no file that travels")
        parts = self._parts.setdefault(whole.name, bytearray())
        parts += body
        if len(parts) > files.LARGEST_BYTES:
            raise wire.WireError("a file is too large")
        if whole.last:
            files.write_own(self.run.path / whole.name, bytes(self._parts.pop(whole.name)))

    def _tell(self, *, is_alive: bool) -> None:
        if is_alive:
            (self.run.path / travelling.END).unlink(missing_ok=True)  # it was resumed
            fcntl.flock(self._alive, fcntl.LOCK_EX)
        else:
            fcntl.flock(self._alive, fcntl.LOCK_UN)
        is_lost = not is_alive and self.run.end() is None
        if self._origin is not None and self._origin.is_lost != is_lost:
            self.tell_origin(replace(self._origin, is_lost=is_lost))

    def close(self) -> None:
        """Nobody knows any more whether the run goes on."""
        for handle in (self._alive, self._own):
            os.close(handle)
