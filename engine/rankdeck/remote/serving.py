"""The far end of the pipe: `rankdeck serve --stdio`, started by ssh on the host that somebody asks.

One process, one thread. It runs commands of rankdeck as a person there would, and sends what is new of the
runs that are followed; it holds nothing that outlives it, and runs go on without it. It leaves when the pipe
ends, when something comes that is no message, and when nobody has sent a ping for half a minute: ssh may take
minutes to find out that the other side is gone, or never does.
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
from rankdeck import rundir
from rankdeck.base import files
from rankdeck.base.errors import RankdeckError
from rankdeck.base.home import expanded
from rankdeck.base.phrases import phrase
from rankdeck.remote import snapshot, travelling, wire
from rankdeck.remote.wire import MAX_BODY_BYTES, Message, Piece, Told, Whole
from rankdeck.rundir import RunDir

SILENT_S = 30.0
"""The other side sends a ping each second."""
LOOK_S = 0.05
"""How often the files of a followed run are looked at."""
_ENOUGH_BYTES = 1 << 20
"""While so much waits to be written, nothing is read that would wait behind it."""
_MOST_AT_ONCE = 64
"""Commands, and runs that are followed."""
_GRACE_S = 2.0
_CHUNK_BYTES = 1 << 16


class _Child:
    """A command that runs."""

    def __init__(self, asked: wire.Command) -> None:
        self.number = asked.number
        folder = expanded(asked.folder or "~")
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rankdeck", *asked.argv],
            cwd=folder,
            env={**os.environ, **asked.environment, "PWD": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        pipes = {self.process.stdout: 1, self.process.stderr: 2}
        self.pipes = {pipe: stream for pipe, stream in pipes.items() if pipe is not None}
        for pipe in self.pipes:
            os.set_blocking(pipe.fileno(), False)


def _welcome() -> wire.Welcome:
    # client's address and port, server's address and port, as sshd sets it
    network = os.environ.get("SSH_CONNECTION", "").split()
    caller, address = (network[0], network[2]) if len(network) == 4 else ("", "")
    return wire.Welcome(
        protocol=wire.PROTOCOL,
        version=rankdeck.__version__,
        host=platform.node()[:200],
        address=address[:200],
        caller=caller[:200],
    )


class Serving:
    """Answers what comes at `read_end` at `write_end`."""

    def __init__(self, read_end: int, write_end: int, *, silent_s: float = SILENT_S) -> None:
        self._ends = read_end, write_end
        self._silent_s = silent_s
        self._inbox = wire.Inbox(wire.TO_FAR)
        self._outbox = wire.Outbox()
        self._selector = selectors.DefaultSelector()
        self._children: list[_Child] = []
        self._have: dict[int, dict[str, tuple[int, int]]] = {}
        self._feeds: dict[int, RunFeed] = {}
        self._archives: dict[int, bytearray] = {}
        self._news: Iterator[tuple[wire.Message, bytes]] = iter(())
        self._looked_s = 0.0

    def run(self) -> None:
        """Until the other side has gone."""
        read_end, write_end = self._ends
        for handle in self._ends:
            os.set_blocking(handle, False)
        self._selector.register(read_end, selectors.EVENT_READ)
        self._outbox.put(_welcome())
        heard_s = time.monotonic()
        try:
            os.write(write_end, b"\n")  # a login may have printed a line and not ended it
            while time.monotonic() - heard_s < self._silent_s:
                self._outbox.write(write_end)
                if self._wait():
                    heard_s = time.monotonic()
                    if not self._inbox.read(read_end):
                        return
                    for message, body in self._inbox.messages():
                        self._on_message(message, body)
                self._look_at_children()
                self._look_at_runs()
        except (wire.WireError, OSError) as error:
            print(error, file=sys.stderr)
        finally:
            self._end_children()

    def _wait(self) -> bool:
        """Until there is something to do, a moment at most; whether the other side has said something."""
        wants = set(self._ends) if self._outbox else {self._ends[0]}
        if self._ends[1] in wants and self._ends[1] not in self._selector.get_map():
            self._selector.register(self._ends[1], selectors.EVENT_WRITE)
        elif self._ends[1] not in wants and self._ends[1] in self._selector.get_map():
            self._selector.unregister(self._ends[1])
        ready = self._selector.select(LOOK_S if self._feeds or self._children else 1.0)
        return any(key.fd == self._ends[0] for key, _ in ready)

    def _on_message(self, message: wire.ToFar, body: bytes) -> None:
        match message:
            case wire.Ping():
                self._outbox.put(wire.Pong(sent=message.sent, now=time.time()))
            case wire.Command():
                self._begin(message)
            case wire.Signal():
                self._signal(message)
            case wire.Put():
                self._put(message, body)
            case wire.Find():
                self._find(message)
            case wire.Have():
                have = self._have.setdefault(message.number, {})
                if len(self._have) > _MOST_AT_ONCE or len(have) >= travelling.MOST_FILES:
                    raise wire.WireError("too many files")
                have[message.name] = message.size, message.checksum
            case wire.Follow():
                have = self._have.pop(message.number, {})
                if len(self._feeds) >= _MOST_AT_ONCE:
                    raise wire.WireError("too many runs")
                self._feeds[message.number] = RunFeed(message.number, RunDir(Path(message.path)), have)

    def _begin(self, asked: wire.Command) -> None:
        try:
            if len(self._children) >= _MOST_AT_ONCE:
                raise OSError(0, phrase("too many commands run at once"))
            child = _Child(asked)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            words = phrase("The command could not be started: {why}.", why=why)
            self._outbox.put(wire.Refused(number=asked.number, code="system", message=words[:4000]))
            return
        self._children.append(child)

    def _signal(self, asked: wire.Signal) -> None:
        for child in self._children:
            if child.number == asked.number and child.process.poll() is None:
                try:
                    os.killpg(child.process.pid, signal.Signals(asked.signal))
                except (ValueError, OSError):
                    pass  # no such signal, or it has just ended

    def _look_at_children(self) -> None:
        for child in list(self._children):
            # Before its pipes: what it said last is in them then.
            code = child.process.poll()
            for pipe, stream in list(child.pipes.items()):
                while self._outbox.waiting_bytes < _ENOUGH_BYTES:
                    try:
                        data = os.read(pipe.fileno(), _CHUNK_BYTES)
                    except BlockingIOError:
                        break
                    if not data:
                        del child.pipes[pipe]
                        pipe.close()
                        break
                    self._outbox.put(wire.Output(number=child.number, stream=stream), data)
            # Who was started by it may hold its pipes for ever: what it said itself is there by now.
            if code is not None and self._outbox.waiting_bytes < _ENOUGH_BYTES:
                self._children.remove(child)
                for pipe in child.pipes:
                    pipe.close()
                self._outbox.put(wire.Ended(number=child.number, code=code if code >= 0 else 128 - code))

    def _put(self, asked: wire.Put, body: bytes) -> None:
        archive = self._archives.setdefault(asked.number, bytearray())
        archive += body
        if len(archive) > snapshot.LARGEST_BYTES or len(self._archives) > _MOST_AT_ONCE:
            raise wire.WireError("an archive is too large")
        if not asked.last:
            return
        try:
            path = snapshot.unpack(bytes(self._archives.pop(asked.number)))
        except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
            why = getattr(error, "strerror", None) or error
            words = phrase("The code could not be unpacked: {why}.", why=why)
            self._outbox.put(wire.Refused(number=asked.number, code="system", message=words[:4000]))
        else:
            self._outbox.put(wire.Unpacked(number=asked.number, path=str(path)))

    def _find(self, asked: wire.Find) -> None:
        try:
            os.chdir(expanded("~"))  # as a command that is started in the home folder
            run = rundir.find_run(asked.run, rundir.default_runs_folder())
        except RankdeckError as error:
            self._outbox.put(wire.answer_of(error, asked.number))
            return
        try:
            self._outbox.put(wire.Found(number=asked.number, run=run.name, path=str(run.path)))
        except ValueError:
            words = phrase("The name of the run's folder cannot be sent.")
            advice = phrase("Give the folder a shorter name, in UTF-8.")
            self._outbox.put(wire.Refused(number=asked.number, code="run-name", message=words, advice=advice))

    def _look_at_runs(self) -> None:
        """Send what is new while there is room; then look again after a moment."""
        while self._outbox.waiting_bytes < _ENOUGH_BYTES:
            for message, body in self._news:
                self._outbox.put(message, body)
                break
            else:
                now_s = time.monotonic()
                if now_s - self._looked_s < LOOK_S or not self._feeds:
                    return
                self._looked_s = now_s
                self._news = (news for feed in list(self._feeds.values()) for news in feed.news())

    def _end_children(self) -> None:
        """Nobody reads what they would say. Runs that they began in the background go on."""
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


# One run as somebody on another host follows it: what is new of its files since they were looked at.
#
# The other side has the first bytes of some files; it said how many, and the checksum of their end. The
# run's last word goes last, when everything before it was sent.

_Stamp = tuple[int, int, int]


class RunFeed:
    """`have`: name -> (bytes, checksum of their end), of what the other side has."""

    def __init__(self, number: int, run: RunDir, have: Mapping[str, tuple[int, int]]) -> None:
        self._number = number
        self._run = run
        self._sent = {name: size for name, (size, checksum) in have.items() if self._is(name, size, checksum)}
        self._stamps: dict[str, _Stamp] = {}
        self._told: bool | None = None

    def _is(self, name: str, size: int, checksum: int) -> bool:
        path = self._run.path / name
        try:
            return (
                travelling.grows(name)
                and 0 <= size <= path.stat().st_size
                and travelling.checksum_of_end(path, size) == checksum
            )
        except OSError:
            return False

    def news(self) -> Iterator[tuple[Message, bytes]]:
        """What is new, a piece at a time; whoever takes them may stop at any piece and ask again later."""
        # Before its files: what is written after that is seen by the next look.
        is_alive = self._run.is_alive()
        for name in travelling.whole_files(self._run.path):
            yield from self._whole(name)
        if is_alive and self._told is not True:
            self._stamps.pop(travelling.END, None)
            yield self._tell(is_alive)
        is_behind = False
        for name in travelling.growing_files(self._run.path):
            is_behind |= yield from self._pieces(name)
        if not is_alive and not is_behind:
            yield from self._whole(travelling.END)
            if self._told is not False:
                yield self._tell(is_alive)

    def _tell(self, is_alive: bool) -> tuple[Message, bytes]:
        self._told = is_alive
        return Told(number=self._number, is_alive=is_alive), b""

    def _whole(self, name: str) -> Iterator[tuple[Message, bytes]]:
        path = self._run.path / name
        try:
            found = path.stat()
            stamp = found.st_mtime_ns, found.st_size, found.st_ino
            if self._stamps.get(name) == stamp:
                return
            data = files.read_bytes(path)
        except OSError:
            return
        for begin in range(0, max(1, len(data)), MAX_BODY_BYTES):
            last = begin + MAX_BODY_BYTES >= len(data)
            if last:
                self._stamps[name] = stamp
            yield Whole(number=self._number, name=name, last=last), data[begin : begin + MAX_BODY_BYTES]

    def _pieces(self, name: str) -> Generator[tuple[Message, bytes], None, bool]:
        """Events to their end, of a log one piece: whether it has more. No event waits for a log."""
        path, is_log = self._run.path / name, name.startswith("logs/")
        most = travelling.LARGEST_LOG_BYTES if is_log else sys.maxsize
        while True:
            offset = self._sent.get(name, 0)
            try:
                size = min(most, path.stat().st_size)
                if size <= offset:
                    return False
                data = files.read_at(path, offset, min(MAX_BODY_BYTES, size - offset))
            except OSError:
                return False
            if not data:
                return False
            self._sent[name] = offset + len(data)
            yield Piece(number=self._number, name=name, offset=offset), data
            if is_log:
                return self._sent[name] < size
