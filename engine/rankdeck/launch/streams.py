"""Relay what a script's ranks read and write. Every byte of output goes to the rank's log and to the output
of the foreground command.

If the command's stdout or stderr is a terminal, the rank's stream is a pseudo-terminal of the same size;
otherwise it is a pipe. One thread relays one stream of one rank, so a slow reader blocks only the processes
that write to that stream, as it would without Rankdeck. Once the reader of the command's output has gone,
output goes only to the log. If the command's stdout and stderr are the same file, a rank's stdout and stderr
share one stream and one log (.out), because the order of two separate streams could not be restored.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import signal
import stat
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

_CHUNK_BYTES = 1 << 16
_PIPE_BYTES = 2 * _CHUNK_BYTES
"""Maximum number of bytes in flight in a stream: one chunk in the relay, and the contents of the pipe."""
_POLL_INTERVAL_S = 0.01
_CANCEL_TIMEOUT_S = 1.0
"""How long a slow reader may delay a stop."""
_SIGNAL_KEYS = ((termios.VINTR, signal.SIGINT), (termios.VQUIT, signal.SIGQUIT))


class SharedOutput:
    """An output descriptor of the foreground command, shared by the streams of all ranks."""

    def __init__(self, handle: int | None) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self.is_terminal = handle is not None and os.isatty(handle)
        self.lost_reason: str | None = None
        """Why output was lost (such as a full disk); None if nothing was lost or if the reader has gone."""

    def write(self, data: bytes) -> None:
        """Write all of `data` without interleaving it with other writes; block if the reader is slow."""
        with self._lock:
            while data and self._handle is not None:
                try:
                    data = data[os.write(self._handle, data) :]
                except BlockingIOError:
                    # A process that shares the descriptor may have made it non-blocking.
                    select.select([], [self._handle], [])
                except OSError as error:
                    self._handle = None
                    if error.errno != errno.EPIPE and not self.is_terminal:
                        self.lost_reason = error.strerror or str(error)

    def is_same_target(self, other: SharedOutput) -> bool:
        """Check whether both outputs go to the same file or terminal, so that the order of their writes
        matters."""
        if self._handle is None or other._handle is None:
            return False
        status, others = os.fstat(self._handle), os.fstat(other._handle)
        is_place = self.is_terminal or not stat.S_ISCHR(status.st_mode)  # /dev/null has no order
        return is_place and (status.st_dev, status.st_ino) == (others.st_dev, others.st_ino)

    def terminal_size(self) -> bytes | None:
        """Return the terminal's rows and columns as the kernel packs them; None if the output is not a
        terminal."""
        if not self.is_terminal or self._handle is None:
            return None
        try:
            return fcntl.ioctl(self._handle, termios.TIOCGWINSZ, bytes(8))
        except OSError:
            return None


class StreamRelay(threading.Thread):
    """Thread that copies a rank's stream to its logs and to the command's output until all writers have
    closed the stream."""

    def __init__(self, source: int, logs: Sequence[Path], outlet: SharedOutput) -> None:
        super().__init__(daemon=True)
        self._source = source
        self._logs = [log for path in logs if (log := _open_log(path)) is not None]
        self._outlet = outlet
        self._is_busy = False
        self.num_relayed = 0

    def run(self) -> None:
        while chunk := self._read():
            for log in self._logs:
                _write_log(log, chunk)
            self._outlet.write(chunk)
            self.num_relayed += len(chunk)
            self._is_busy = False

    def is_idle(self) -> bool:
        """Check whether everything written so far has been relayed."""
        return not self._has_unread(0) and not self._is_busy

    def _has_unread(self, timeout_s: float | None) -> bool:
        return bool(select.select([self._source], [], [], timeout_s)[0])

    def _read(self) -> bytes:
        self._has_unread(None)
        self._is_busy = True  # set before reading, so that data is always either unread or counted as busy
        try:
            return os.read(self._source, _CHUNK_BYTES)
        except OSError:  # EIO: the last process has closed its end of a pseudo-terminal
            return b""


class RankStreams:
    """The three streams of one rank. `outlets` are the command's stdout and stderr, `logs` the log paths for
    the rank's stdout and stderr.

    `stdin`, `stdout` and `stderr` are the rank's ends of the streams; `terminal` is the descriptor of the
    rank's controlling terminal, None if it has none.
    """

    def __init__(
        self,
        attached: AttachedStreams,
        outlets: tuple[SharedOutput, SharedOutput],
        logs: tuple[Sequence[Path], Sequence[Path]],
    ) -> None:
        self._masters: list[tuple[int, SharedOutput]] = []
        self._child_fds: list[int] = []
        self.terminal: int | None = None
        self.keyboard: int | None = None
        self.relays: list[StreamRelay] = []
        self.stdout = self._output(outlets[0], logs[0])
        is_one = outlets[0].is_same_target(outlets[1])
        self.stderr = self.stdout if is_one else self._output(outlets[1], logs[1])
        self.stdin = self._input(attached, outlets[0])

    def _output(self, outlet: SharedOutput, logs: Sequence[Path]) -> int:
        ours, theirs = self._open_terminal(outlet) if outlet.is_terminal else os.pipe()
        self._child_fds.append(theirs)
        self.relays.append(StreamRelay(ours, logs, outlet))
        return theirs

    def _input(self, attached: AttachedStreams, outlet: SharedOutput) -> int:
        if attached.keyboard is not None:
            if self._masters:
                self.keyboard = self._masters[0][0]
                return self.terminal if self.terminal is not None else self.stdout
            self.keyboard, theirs = self._open_terminal(outlet)
            self._child_fds.append(theirs)
            return theirs
        if attached.stdin is not None:
            return attached.stdin
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._child_fds.append(null)
        return null

    def _open_terminal(self, outlet: SharedOutput) -> tuple[int, int]:
        ours, theirs = os.openpty()
        modes = termios.tcgetattr(theirs)
        # The command's own terminal converts line feeds; the log gets them as they were written.
        modes[1] &= ~termios.OPOST
        termios.tcsetattr(theirs, termios.TCSANOW, modes)
        self._masters.append((ours, outlet))
        if self.terminal is None:
            self.terminal = theirs
        self._resize(ours, outlet)
        return ours, theirs

    def resize(self) -> None:
        """Copy the size of the command's terminal to the rank's terminals."""
        for master, outlet in self._masters:
            self._resize(master, outlet)

    def foreground_group(self) -> int | None:
        """Return the foreground process group of the rank's terminal; None if it has no terminal or the
        terminal has no foreground group."""
        try:
            return (os.tcgetpgrp(self._masters[0][0]) or None) if self._masters else None
        except OSError:
            return None

    @staticmethod
    def _resize(master: int, outlet: SharedOutput) -> None:
        size = outlet.terminal_size()
        if size is not None:
            fcntl.ioctl(master, termios.TIOCSWINSZ, size)

    def start(self) -> None:
        """Close the rank's ends in this process and start the relay threads. Call this after all forks."""
        for handle in self._child_fds:
            os.close(handle)
        for relay in self.relays:
            relay.start()


class KeyboardRelay(threading.Thread):
    """Thread that copies the keys typed at the command's terminal to the terminal of rank 0.

    `pressed` is called with the signal of each signal key (such as Ctrl-C), so that the caller can send it to
    the other ranks, whose own terminals get no keys.
    """

    def __init__(self, source: int, master: int, pressed: Callable[[int], None]) -> None:
        super().__init__(daemon=True)
        self._source = source
        self._master = master
        self._on_signal_key = pressed

    def run(self) -> None:
        try:
            while chunk := os.read(self._source, _CHUNK_BYTES):
                # A script may have turned off ISIG, and its terminal then makes no signals of keys.
                modes = termios.tcgetattr(self._master)
                if modes[3] & termios.ISIG:
                    for key_index, number in _SIGNAL_KEYS:
                        if modes[6][key_index] in chunk:
                            self._on_signal_key(number)
                while chunk:
                    chunk = chunk[os.write(self._master, chunk) :]
        except OSError:
            return


def wait_for_relays(
    relays: Sequence[StreamRelay],
    timeout_s: float,
    *,
    waits_for_reader: bool = True,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> None:
    """Wait until everything written so far has been relayed.

    The wait for a process that keeps a stream open without writing is limited to `timeout_s`. After that, if
    `waits_for_reader` is set, the function still waits until slow readers have taken what has been written,
    but not for further output. Once `is_cancelled` returns True, the wait ends within `_CANCEL_TIMEOUT_S`.
    """
    deadline = time.monotonic() + timeout_s
    due: dict[StreamRelay, int] = {}
    given_up_at = None
    while open_ones := [relay for relay in relays if relay.is_alive()]:
        if is_cancelled():
            given_up_at = given_up_at or time.monotonic()
            is_over = time.monotonic() > given_up_at + _CANCEL_TIMEOUT_S
            if is_over or all(relay.is_idle() for relay in open_ones):
                return
        elif time.monotonic() > deadline:
            # All that was written by now is within these bytes. With a time limit of 0.3 s instead, a
            # script's last line was lost in about one of twenty test runs.
            due = due or {relay: relay.num_relayed + _PIPE_BYTES for relay in open_ones}
            if not waits_for_reader or all(
                relay.is_idle() or relay.num_relayed > due[relay] for relay in open_ones
            ):
                return
        time.sleep(_POLL_INTERVAL_S)


def _open_log(path: Path) -> int | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError:
        return None


def _write_log(log: int, data: bytes) -> None:
    """Write to a log. If the disk is full, drop the rest of the data."""
    try:
        while data:
            data = data[os.write(log, data) :]
    except OSError:
        pass


# The streams of a foreground command, as descriptors that it passes to the guard, and the guard to the
# supervisor.  If the command's output is a terminal, each rank's output is one too. The supervisor never
# reads the command's terminal, because a shell may take it back at any time. The command reads it instead, as
# the process that the shell suspends and continues, and forwards the bytes through `keyboard`.

_FIRST_FD = 3  # 0, 1 and 2 are the guard's own


@dataclass(frozen=True)
class AttachedStreams:
    """The command's stream descriptors. If `stdin` is None, ranks read from /dev/null; if `stdout` or
    `stderr` is None, that output goes only to the logs.

    `keyboard` is the read end of a pipe that carries the typed keys. If it is set, `stdin` is not used: rank
    0's stdin is its own terminal, which gets these bytes and provides line editing and signals. The command's
    terminal must deliver every key (ISIG, ICANON, ECHO, ICRNL and IXON off) and keep OPOST on, because a
    rank's terminal does not convert line feeds.
    """

    stdin: int | None = 0
    stdout: int | None = 1
    stderr: int | None = 2
    keyboard: int | None = None

    def duplicate(self) -> AttachedStreams:
        """Return duplicates to pass to the guard, leaving out closed descriptors."""
        return AttachedStreams(**{name: _duplicate_fd(handle) for name, handle in asdict(self).items()})

    def for_rank(self, rank: int) -> AttachedStreams:
        """Return the streams for one rank. Only rank 0 gets the keyboard."""
        if rank == 0 or self.keyboard is None:
            return self
        return replace(self, stdin=None, keyboard=None)

    def fds(self) -> list[int]:
        return [handle for handle in asdict(self).values() if handle is not None]

    def to_argument(self) -> str:
        return json.dumps(asdict(self))

    def close(self) -> None:
        for handle in self.fds():
            os.close(handle)


NO_STREAMS = AttachedStreams(None, None, None)


def parse_attached(text: str) -> AttachedStreams:
    values: Mapping[str, int | None] = json.loads(text)
    return AttachedStreams(**values)


def _duplicate_fd(handle: int | None) -> int | None:
    if handle is None:
        return None
    try:
        return fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, _FIRST_FD)
    except OSError:
        return None
