"""Run the remote end of the pipe: `rankdeck serve --stdio`, started by ssh on the host.

The server is one process with one thread. It runs rankdeck commands as a user on the host would, and sends
new data of the runs that the client follows. It stores no state, and runs continue without it. It exits when
the pipe ends, when it receives an invalid message, or when no ping has arrived for half a minute, because ssh
may take minutes to notice a lost connection, or never notice it.
"""

from __future__ import annotations

import os
import platform
import selectors
import signal
import subprocess
import sys
import tarfile
import time
import zlib
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path

import rankdeck
from rankdeck import run_dir
from rankdeck.base import files
from rankdeck.base.errors import RankdeckError
from rankdeck.base.home import expand_home
from rankdeck.base.phrases import phrase
from rankdeck.remote import snapshot, synced_files, wire
from rankdeck.remote.wire import MAX_BODY_BYTES, Message, Piece, Told, Whole
from rankdeck.run_dir import RunDir

SILENCE_TIMEOUT_S = 30.0
"""Time without any message after which the server exits; the client sends a ping each second."""
POLL_INTERVAL_S = 0.05
"""Interval between scans of a followed run's files."""
_MAX_PENDING_BYTES = 1 << 20
"""Number of unsent bytes at which the server stops reading output and files until some bytes are sent."""
_MAX_CONCURRENT = 64
"""Maximum number of running commands, and of followed runs."""
_GRACE_S = 2.0
_CHUNK_BYTES = 1 << 16


class _ChildCommand:
    """A running command."""

    def __init__(self, command: wire.Command) -> None:
        self.number = command.number
        folder = expand_home(command.folder or "~")
        # PWD is set too, because the server's own value names another folder. A session of its own lets a
        # signal reach all processes of the command.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rankdeck", *command.argv],
            cwd=folder,
            env={**os.environ, **command.environment, "PWD": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        pipes = {self.process.stdout: 1, self.process.stderr: 2}
        self.pipes = {pipe: stream for pipe, stream in pipes.items() if pipe is not None}
        for pipe in self.pipes:
            os.set_blocking(pipe.fileno(), False)


def _make_welcome() -> wire.Welcome:
    # Set by sshd: client address, client port, server address, server port.
    network = os.environ.get("SSH_CONNECTION", "").split()
    caller, address = (network[0], network[2]) if len(network) == 4 else ("", "")
    return wire.Welcome(
        protocol=wire.PROTOCOL,
        version=rankdeck.__version__,
        host=platform.node()[:200],
        address=address[:200],
        caller=caller[:200],
    )


class HostServer:
    """Server that reads requests from `read_end` and writes answers to `write_end`."""

    def __init__(
        self, read_end: int, write_end: int, *, silence_timeout_s: float = SILENCE_TIMEOUT_S
    ) -> None:
        self._pipe_fds = read_end, write_end
        self._silence_timeout_s = silence_timeout_s
        self._message_reader = wire.MessageReader(wire.TO_SERVER)
        self._message_writer = wire.MessageWriter()
        self._selector = selectors.DefaultSelector()
        self._children: list[_ChildCommand] = []
        self._client_files: dict[int, dict[str, tuple[int, int]]] = {}
        self._feeds: dict[int, RunFeed] = {}
        self._archives: dict[int, bytearray] = {}
        self._updates: Iterator[tuple[wire.Message, bytes]] = iter(())
        self._last_scan_s = 0.0

    def run(self) -> None:
        """Serve requests until the client disconnects or has been silent for too long."""
        read_end, write_end = self._pipe_fds
        for handle in self._pipe_fds:
            os.set_blocking(handle, False)
        self._selector.register(read_end, selectors.EVENT_READ)
        self._message_writer.put(_make_welcome())
        heard_s = time.monotonic()
        try:
            os.write(write_end, b"\n")  # a login may have printed an unterminated line
            while time.monotonic() - heard_s < self._silence_timeout_s:
                self._message_writer.write(write_end)
                if self._wait_for_input():
                    heard_s = time.monotonic()
                    if not self._message_reader.read(read_end):
                        return
                    for message, body in self._message_reader.messages():
                        self._on_message(message, body)
                self._poll_children()
                self._send_updates()
        except (wire.WireError, OSError) as error:
            print(error, file=sys.stderr)
        finally:
            self._stop_children()

    def _wait_for_input(self) -> bool:
        """Wait briefly for the pipe to be ready; return whether the client has sent something."""
        # A pipe with space is always writable: registered without a message to send, it would make the loop
        # spin.
        wants = set(self._pipe_fds) if self._message_writer else {self._pipe_fds[0]}
        if self._pipe_fds[1] in wants and self._pipe_fds[1] not in self._selector.get_map():
            self._selector.register(self._pipe_fds[1], selectors.EVENT_WRITE)
        elif self._pipe_fds[1] not in wants and self._pipe_fds[1] in self._selector.get_map():
            self._selector.unregister(self._pipe_fds[1])
        ready = self._selector.select(POLL_INTERVAL_S if self._feeds or self._children else 1.0)
        return any(key.fd == self._pipe_fds[0] for key, _ in ready)

    def _on_message(self, message: wire.ToServer, body: bytes) -> None:
        match message:
            case wire.Ping():
                self._message_writer.put(wire.Pong(sent=message.sent, now=time.time()))
            case wire.Command():
                self._start_command(message)
            case wire.Signal():
                self._send_signal(message)
            case wire.Put():
                self._receive_archive(message, body)
            case wire.Find():
                self._find_run(message)
            case wire.Have():
                have = self._client_files.setdefault(message.number, {})
                # A client is not trusted: its lists must not fill the memory.
                if len(self._client_files) > _MAX_CONCURRENT or len(have) >= synced_files.MAX_FILES:
                    raise wire.WireError("too many files")
                have[message.name] = message.size, message.checksum
            case wire.Follow():
                have = self._client_files.pop(message.number, {})
                if len(self._feeds) >= _MAX_CONCURRENT:
                    raise wire.WireError("too many runs")
                self._feeds[message.number] = RunFeed(message.number, RunDir(Path(message.path)), have)

    def _start_command(self, request: wire.Command) -> None:
        try:
            if len(self._children) >= _MAX_CONCURRENT:
                raise OSError(0, phrase("too many commands are running"))
            child = _ChildCommand(request)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            message = phrase("The command could not be started: {why}.", why=why)
            self._message_writer.put(
                wire.Refused(number=request.number, code="system", message=message[:4000])
            )
            return
        self._children.append(child)

    def _send_signal(self, request: wire.Signal) -> None:
        for child in self._children:
            if child.number == request.number and child.process.poll() is None:
                try:
                    os.killpg(child.process.pid, signal.Signals(request.signal))
                except (ValueError, OSError):
                    pass  # no such signal, or it has just ended

    def _poll_children(self) -> None:
        for child in list(self._children):
            # Polled before its pipes are read: if it has ended by now, all its output is in them.
            code = child.process.poll()
            for pipe, stream in list(child.pipes.items()):
                while self._message_writer.pending_bytes < _MAX_PENDING_BYTES:
                    try:
                        data = os.read(pipe.fileno(), _CHUNK_BYTES)
                    except BlockingIOError:
                        break
                    if not data:
                        del child.pipes[pipe]
                        pipe.close()
                        break
                    self._message_writer.put(wire.Output(number=child.number, stream=stream), data)
            # A process that it started may keep the pipes open forever; its own output is complete by now.
            if code is not None and self._message_writer.pending_bytes < _MAX_PENDING_BYTES:
                self._children.remove(child)
                for pipe in child.pipes:
                    pipe.close()
                self._message_writer.put(
                    wire.Ended(number=child.number, code=code if code >= 0 else 128 - code)
                )

    def _receive_archive(self, request: wire.Put, body: bytes) -> None:
        archive = self._archives.setdefault(request.number, bytearray())
        archive += body
        if len(archive) > snapshot.MAX_ARCHIVE_BYTES or len(self._archives) > _MAX_CONCURRENT:
            raise wire.WireError("an archive is too large, or there are too many archives")
        if not request.last:
            return
        try:
            path = snapshot.unpack(bytes(self._archives.pop(request.number)))
        except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
            why = getattr(error, "strerror", None) or error
            message = phrase("The code could not be unpacked: {why}.", why=why)
            self._message_writer.put(
                wire.Refused(number=request.number, code="system", message=message[:4000])
            )
        else:
            self._message_writer.put(wire.Unpacked(number=request.number, path=str(path)))

    def _find_run(self, request: wire.Find) -> None:
        try:
            os.chdir(expand_home("~"))  # as for a command, which starts in the home folder
            run = run_dir.find_run(request.run, run_dir.default_runs_folder())
        except RankdeckError as error:
            self._message_writer.put(wire.refusal_from_error(error, request.number))
            return
        try:
            self._message_writer.put(wire.Found(number=request.number, run=run.name, path=str(run.path)))
        except ValueError:
            message = phrase("The name of the run's folder is too long or not valid UTF-8.")
            advice = phrase("Rename the folder: use a shorter name in valid UTF-8.")
            self._message_writer.put(
                wire.Refused(number=request.number, code="run-name", message=message, advice=advice)
            )

    def _send_updates(self) -> None:
        """Queue updates of the followed runs while the queue has space; scan the runs again after a short
        interval."""
        while self._message_writer.pending_bytes < _MAX_PENDING_BYTES:
            for message, body in self._updates:
                self._message_writer.put(message, body)
                break
            else:
                now_s = time.monotonic()
                if now_s - self._last_scan_s < POLL_INTERVAL_S or not self._feeds:
                    return
                self._last_scan_s = now_s
                self._updates = (news for feed in list(self._feeds.values()) for news in feed.updates())

    def _stop_children(self) -> None:
        """Terminate the running commands, whose output no longer has a reader.

        Detached runs that these commands started are not stopped.
        """
        for child in self._children:
            if child.process.poll() is None:
                child.process.terminate()
        for child in self._children:
            try:
                child.process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
            for pipe in child.pipes:
                pipe.close()
        self._selector.close()


# Updates of one run for a client that follows it: the parts of its files that are new since the last scan.
# The client has the first bytes of some files and has sent their sizes and tail checksums. The exit record is
# sent last, after everything before it.

_FileStamp = tuple[int, int, int]


class RunFeed:
    """Source of the updates of one followed run.

    `have` maps file names to (size, tail checksum), for the files that the client already has.
    """

    def __init__(self, number: int, run: RunDir, have: Mapping[str, tuple[int, int]]) -> None:
        self._number = number
        self._run = run
        self._sent_bytes = {
            name: size for name, (size, checksum) in have.items() if self._is_same_file(name, size, checksum)
        }
        self._stamps: dict[str, _FileStamp] = {}
        self._reported_alive: bool | None = None

    def _is_same_file(self, name: str, size: int, checksum: int) -> bool:
        path = self._run.path / name
        try:
            return (
                synced_files.is_append_only(name)
                and 0 <= size <= path.stat().st_size
                and synced_files.tail_checksum(path, size) == checksum
            )
        except OSError:
            return False

    def updates(self) -> Iterator[tuple[Message, bytes]]:
        """Yield new data, one piece at a time. The caller may stop after any piece and call this again
        later."""
        # Checked before its files are read: what is written later is found by the next scan.
        is_alive = self._run.is_alive()
        for name in synced_files.replaced_files(self._run.path):
            yield from self._replaced_file_messages(name)
        if is_alive and self._reported_alive is not True:
            # The client removes end.json of a run that is alive again, so the file is sent anew even if its
            # stamp has not changed.
            self._stamps.pop(synced_files.END_FILE, None)
            yield self._status_message(is_alive)
        is_behind = False
        for name in synced_files.append_only_files(self._run.path):
            is_behind |= yield from self._piece_messages(name)
        if not is_alive and not is_behind:
            yield from self._replaced_file_messages(synced_files.END_FILE)
            if self._reported_alive is not False:
                yield self._status_message(is_alive)

    def _status_message(self, is_alive: bool) -> tuple[Message, bytes]:
        self._reported_alive = is_alive
        return Told(number=self._number, is_alive=is_alive), b""

    def _replaced_file_messages(self, name: str) -> Iterator[tuple[Message, bytes]]:
        path = self._run.path / name
        try:
            status = path.stat()
            # The inode too: a file that was replaced within one tick of the clock may have the same time and
            # size.
            stamp = status.st_mtime_ns, status.st_size, status.st_ino
            if self._stamps.get(name) == stamp:
                return
            data = files.read_bytes(path)
        except OSError:
            return
        for start in range(0, max(1, len(data)), MAX_BODY_BYTES):
            last = start + MAX_BODY_BYTES >= len(data)
            if last:
                self._stamps[name] = stamp
            yield Whole(number=self._number, name=name, last=last), data[start : start + MAX_BODY_BYTES]

    def _piece_messages(self, name: str) -> Generator[tuple[Message, bytes], None, bool]:
        """Yield new pieces of a file, and return whether more of it remains to be sent.

        Event files are sent in full, logs one piece at a time, so that no event waits for a log.
        """
        path, is_log = self._run.path / name, name.startswith("logs/")
        max_bytes = synced_files.MAX_LOG_BYTES if is_log else sys.maxsize
        while True:
            offset = self._sent_bytes.get(name, 0)
            try:
                size = min(max_bytes, path.stat().st_size)
                if size <= offset:
                    return False
                data = files.read_at(path, offset, min(MAX_BODY_BYTES, size - offset))
            except OSError:
                return False
            if not data:
                return False
            self._sent_bytes[name] = offset + len(data)
            yield Piece(number=self._number, name=name, offset=offset), data
            if is_log:
                return self._sent_bytes[name] < size
