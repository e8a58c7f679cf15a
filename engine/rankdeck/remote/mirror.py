"""The copy of one run of another host, in a run's directory of this one: readers of runs read it as any
other.

It has the first bytes of every file that grows, so how much is here is all that has to be known to go on;
the checksum of their end tells whether it is the same file still. While the run goes on there, its lock is
held here by whoever copies. Nothing that a host sends is written anywhere but in this directory, under
names that travelling.py knows.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from rankdeck.base import files
from rankdeck.base.home import copies_dir
from rankdeck.base.phrases import phrase
from rankdeck.remote import travelling, wire
from rankdeck.remote.clock import Clock
from rankdeck.rundir import ORIGIN, HostedRun, RunDir, slug

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
