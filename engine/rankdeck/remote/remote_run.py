"""Mirror a run from another host into a local run directory, in a thread, while the run is watched.

Readers read the copy like any run; the link measures how old the copy is. After a lost connection, copying
continues where it stopped.
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
from rankdeck.remote import synced_files, wire
from rankdeck.remote.clock import ClockOffset
from rankdeck.remote.link import HostLink
from rankdeck.run_dir import ORIGIN_FILE, RunDir, RunOrigin, slug

_POLL_INTERVAL_S = 0.05
_RUN_NUMBER = 0
"""Number of the request to follow the run; commands about the run are numbered from 1."""


class RemoteRun:
    """The run called `name` on a host; a context manager. Set `is_reachable` if the run was just started on
    that host.

    If `keeps_copy` is true, the copy is permanent, and mirroring fails if another process is writing the same
    copy.
    """

    def __init__(self, host: str, name: str, *, is_reachable: bool = False, keeps_copy: bool = False) -> None:
        self._host, self._name, self._keeps_copy = host, name, keeps_copy
        self._mirror: RunMirror | None = None
        self._path: str | None = None
        self._private_folder: tempfile.TemporaryDirectory[str] | None = None
        self._error: RankdeckError | None = None
        self._requests: SimpleQueue[list[str]] = SimpleQueue()
        self._pending_requests: dict[int, list[str]] = {}
        self._num_requests = 0
        self._has_status = False
        self._copy_ready, self._stop_event = threading.Event(), threading.Event()
        self.link = HostLink(host, self._handle_message, self._resend_requests, is_reachable=is_reachable)
        self._thread = threading.Thread(target=self._run_thread, name=f"link to {host}", daemon=True)

    def __enter__(self) -> RemoteRun:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_event.set()
        self._thread.join()
        self.link.close()
        if self._mirror is not None:
            self._mirror.close()
        if self._private_folder is not None:
            self._private_folder.cleanup()

    def copy(self) -> RunDir:
        """Wait until the copy is readable and return it; the copy of a run that has ended is complete by
        then.

        Raises:
            RankdeckError: there is no such run or host, or no space for a copy.
        """
        run = self.wait_for_copy(None)
        assert run is not None
        return run

    def wait_for_copy(self, seconds: float | None) -> RunDir | None:
        """Wait for the copy like `copy`, but return None if it is not readable within `seconds`."""
        if not self._copy_ready.wait(seconds):
            return None
        if self._error is not None:
            raise self._error
        assert self._mirror is not None
        return self._mirror.run

    def request(self, argv: list[str]) -> None:
        """Run `rankdeck ARGV`, a command that concerns this run, on the host; ignore its output.

        The command is run again if the connection breaks before it has ended.
        """
        self._requests.put(argv)

    @property
    def error(self) -> RankdeckError | None:
        """The error that ended mirroring; None while mirroring continues."""
        return self._error

    def _run_thread(self) -> None:
        try:
            while not self._stop_event.is_set():
                self.link.poll(_POLL_INTERVAL_S)
                self._record_clock()
                while not self._requests.empty():
                    self._num_requests += 1
                    self._pending_requests[self._num_requests] = self._requests.get()
                    if self.link.is_up:
                        self._send_request(self._num_requests)
        except RankdeckError as error:
            self._error = error
        except OSError as error:
            message = phrase(
                "The local copy of {run} cannot be written: {why}.", run=self._name, why=error.strerror
            )
            self._error = RankdeckError(message, code="no-copy")
        finally:
            self._copy_ready.set()

    def _record_clock(self) -> None:
        """Store the host's clock offset; the copy is not ready until its times can be corrected."""
        if self._mirror is not None and self.link.clock.offset_s is not None:
            self._mirror.update_clock(self.link.clock)
            if self._has_status:
                self._copy_ready.set()

    def _send_request(self, number: int) -> None:
        self.link.send(wire.Command(number=number, argv=self._pending_requests[number]))

    def _resend_requests(self) -> None:
        for number in self._pending_requests:
            self._send_request(number)
        self._request_updates()

    def _request_updates(self) -> None:
        if self._mirror is None or self._path is None:
            self.link.send(wire.Find(number=_RUN_NUMBER, run=self._name))
            return
        for have in self._mirror.have_messages(_RUN_NUMBER):
            self.link.send(have)
        self.link.send(wire.Follow(number=_RUN_NUMBER, path=self._path))

    def _handle_message(self, message: wire.ToClient, body: bytes) -> None:
        match message:
            case wire.Found():
                self._mirror = self._make_mirror(message.run)
                before = self._mirror.run.origin
                ahead_s = 0.0 if before is None else before.ahead_s
                self._mirror.write_origin(RunOrigin(self._host, message.path, ahead_s=ahead_s))
                self._path = message.path
                self._request_updates()
            case wire.Refused() if message.number == _RUN_NUMBER:
                raise RankdeckError(message.message, code=message.code, advice=message.advice or None)
            case wire.Piece() | wire.Whole() | wire.Told() if self._mirror is not None:
                self._mirror.apply(message, body)
                self._has_status = self._has_status or isinstance(message, wire.Told)
            case wire.Ended() | wire.Refused():
                self._pending_requests.pop(message.number, None)
            case wire.Output():
                pass
            case _:
                raise wire.WireError(f"unexpected message: {type(message).__name__}")

    def _make_mirror(self, name: str) -> RunMirror:
        try:
            return RunMirror(host_copies_folder(self._host), name)
        except BlockingIOError:
            if self._keeps_copy:
                message = phrase("Another process on this machine is already copying {run}.", run=self._name)
                raise RankdeckError(message, code="copied-already") from None
            # Another process is writing that copy and may end at any time: make a private one.
            self._private_folder = tempfile.TemporaryDirectory(prefix="rankdeck-copy-")
            return RunMirror(Path(self._private_folder.name), name)


# The copy of a remote run in a local run directory, which readers read like any other.  The copy has the
# first bytes of every file that grows, so the sizes are all it needs to continue; a checksum of their ends
# shows whether the files are still the same. While the remote run is alive, the copying process holds the
# copy's lock. Data from a host is written only into this directory, under names that synced_files.py allows.

_NO_FOLLOW_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC
_MIN_FREE_BYTES = 256 << 20
"""Disk space that copies leave free."""
_CLOCK_TOLERANCE_S = 0.05


def host_copies_folder(host: str) -> Path:
    """Return the folder with the copies of a host's runs, without creating it."""
    return copies_dir() / slug(host) / "runs"


class RunMirror:
    """The local copy of the run `name`, in `folder`.

    Raises:
        WireError: the name is not valid for a run.
        BlockingIOError: another process is writing this copy.
        OSError: the folder cannot be created or written.
    """

    def __init__(self, folder: Path, name: str) -> None:
        if not synced_files.is_run_name(name):
            raise wire.WireError("invalid run name")
        self.run = RunDir(folder / name)
        self._origin: RunOrigin | None = None
        self._partial_files: dict[str, bytearray] = {}
        self._sizes: dict[str, int] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for path in (self.run.path, self.run.events_folder, self.run.logs_folder):
            path.mkdir(mode=0o700, exist_ok=True)
            if path.is_symlink():
                raise OSError(errno.ELOOP, phrase("it is a symbolic link"), str(path))
        flags = os.O_RDWR | os.O_CREAT | _NO_FOLLOW_FLAGS
        self._copy_lock = os.open(self.run.path / "copy.lock", flags, 0o600)
        try:
            fcntl.flock(self._copy_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._guard_lock = os.open(self.run.path / "guard.lock", flags, 0o600)
        except OSError:
            os.close(self._copy_lock)
            raise

    def write_origin(self, origin: RunOrigin) -> None:
        """Write the origin of the copy to a file.

        Raises:
            OSError: the file cannot be written.
        """
        self._origin = origin
        files.replace_file(self.run.path / ORIGIN_FILE, msgspec.json.encode(origin))

    def update_clock(self, clock: ClockOffset) -> None:
        """Write the host's clock offset if it has changed enough to matter in charts.

        Raises:
            OSError: the file cannot be written.
        """
        if self._origin is None or clock.offset_s is None:
            return
        if abs(clock.offset_s - self._origin.ahead_s) > _CLOCK_TOLERANCE_S + 2 * clock.max_error_s:
            self.write_origin(replace(self._origin, ahead_s=round(clock.offset_s, 3)))

    def have_messages(self, number: int) -> Iterator[wire.Have]:
        """Yield messages about the files that the copy already has, to send before `Follow`."""
        for name in synced_files.append_only_files(self.run.path):
            path = self.run.path / name
            try:
                size = path.lstat().st_size
                checksum = synced_files.tail_checksum(path, size)
            except OSError:
                continue
            self._sizes[name] = size
            yield wire.Have(number=number, name=name, size=size, checksum=checksum)

    def apply(self, message: wire.Piece | wire.Whole | wire.Told, body: bytes) -> None:
        """Apply an update from the host.

        Raises:
            WireError: the message is invalid.
            OSError: the disk is full or cannot be written to.
        """
        match message:
            case wire.Piece():
                self._append(message, body)
            case wire.Whole():
                self._replace(message, body)
            case wire.Told():
                self._set_alive(is_alive=message.is_alive)

    def _append(self, piece: wire.Piece, body: bytes) -> None:
        name = piece.name
        if not synced_files.is_append_only(name) or (
            name not in self._sizes and len(self._sizes) >= synced_files.MAX_FILES
        ):
            raise wire.WireError("unexpected file")
        if shutil.disk_usage(self.run.path).free < _MIN_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.run.path))
        # O_NONBLOCK: opening a pipe must not block.
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | _NO_FOLLOW_FLAGS
        handle = os.open(self.run.path / name, flags, 0o600)
        try:
            size = os.fstat(handle).st_size
            if piece.offset == 0 and size:
                os.ftruncate(handle, 0)  # the host's file was replaced
            elif piece.offset != size:
                raise wire.WireError("a piece of a file is missing")
            offset = piece.offset
            while body:
                written = os.pwrite(handle, body, offset)
                offset, body = offset + written, body[written:]
            self._sizes[name] = offset
        finally:
            os.close(handle)

    def _replace(self, message: wire.Whole, body: bytes) -> None:
        if (
            not synced_files.is_replaced_file(message.name)
            or len(self._partial_files) > len(self._sizes) + 64
        ):
            raise wire.WireError("unexpected file")
        content = self._partial_files.setdefault(message.name, bytearray())
        content += body
        if len(content) > files.MAX_FILE_BYTES:
            raise wire.WireError("a file is too large")
        if message.last:
            files.replace_file(self.run.path / message.name, bytes(self._partial_files.pop(message.name)))

    def _set_alive(self, *, is_alive: bool) -> None:
        if is_alive:
            (self.run.path / synced_files.END_FILE).unlink(missing_ok=True)  # the run was resumed
            # Local readers consider a run alive if its lock is held.
            fcntl.flock(self._guard_lock, fcntl.LOCK_EX)
        else:
            fcntl.flock(self._guard_lock, fcntl.LOCK_UN)
        is_lost = not is_alive and self.run.exit_record() is None
        if self._origin is not None and self._origin.is_lost != is_lost:
            self.write_origin(replace(self._origin, is_lost=is_lost))

    def close(self) -> None:
        """Release the copy's locks, after which the copy no longer shows whether the run is alive."""
        for handle in (self._guard_lock, self._copy_lock):
            os.close(handle)
