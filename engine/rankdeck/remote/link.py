"""Connect to a host through the local end of a pipe, and reconnect whenever the pipe breaks.

The owner calls `poll` repeatedly, from a single thread; no call waits longer than its timeout. A failure of
the first connection is an error; later connections are retried for as long as the owner polls. The link sends
its own pings to measure how old the received data is, because ssh notices a lost connection only after
about 15 seconds.
"""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import IO

import rankdeck
from rankdeck.remote import ssh, wire
from rankdeck.remote.clock import ClockOffset

PING_INTERVAL_S = 1.0
SILENCE_TIMEOUT_S = 10.0
"""Time without an answer after which a pipe is closed and replaced."""
_RETRY_DELAYS_S = (0.5, 1.0, 2.0, 4.0)
_MAX_STDERR_BYTES = 1 << 14


class HostLink:
    """Connection to the host with the ssh name `host`.

    `is_reachable` means that the host has been reached before, so even a failed first connection is retried.
    `on_message` is called with each message. `on_up` is called whenever a connection is established, because
    requests made through the previous pipe must be repeated.
    """

    def __init__(
        self,
        host: str,
        on_message: Callable[[wire.ToClient, bytes], None],
        on_up: Callable[[], None] = lambda: None,
        *,
        silence_timeout_s: float = SILENCE_TIMEOUT_S,
        is_reachable: bool = False,
    ) -> None:
        self.host = host
        self.clock = ClockOffset()
        self.version: str | None = None
        self.address = self.client_address = ""
        self._command = ssh.serve_command(host)
        self._on_message, self._on_up = on_message, on_up
        self._silence_timeout_s = silence_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self._is_up, self._was_up = False, is_reachable
        self._next_start_s = 0.0
        self._num_failed = 0
        self._last_ping_s = self._started_s = 0.0
        self._last_answer_s = time.monotonic()
        self._start()

    @property
    def is_up(self) -> bool:
        return self._is_up

    def age_s(self) -> float:
        """Return how many seconds ago the latest answered ping was sent."""
        return time.monotonic() - self._last_answer_s

    def send(self, message: wire.Message, body: bytes = b"") -> None:
        """Queue a message; it is lost if the pipe breaks before it is sent.

        Raises:
            ValueError: the message is too large.
        """
        self._message_writer.put(message, body)

    def poll(self, timeout_s: float) -> None:
        """Send and receive, waiting for at most `timeout_s`.

        Raises:
            MachineError: the first connection failed, or the host has no compatible Rankdeck.
        """
        now_s = time.monotonic()
        if self._process is None:
            if now_s >= self._next_start_s:
                self._start()
            else:
                time.sleep(min(timeout_s, self._next_start_s - now_s))
            return
        if self._is_up and now_s - self._last_ping_s >= PING_INTERVAL_S:
            self._last_ping_s = now_s
            self._message_writer.put(wire.Ping(sent=now_s))
        try:
            if self._poll_pipe(self._process, timeout_s):
                return
        except wire.WireError:
            pass
        self._schedule_retry()

    def _start(self) -> None:
        self._message_reader = wire.MessageReader(wire.TO_CLIENT, skips_greeting=True)
        self._message_writer = wire.MessageWriter()
        # A file, because nothing reads ssh's stderr until it has ended, and a full pipe would block it.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by _end
        self._started_s = time.monotonic()
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                start_new_session=True,  # Ctrl-C must not reach ssh
            )
        except OSError as error:
            self._stderr.close()
            raise ssh.connection_error(self.host, None, [f"{error.filename}: {error.strerror}"]) from None
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)

    def _poll_pipe(self, process: subprocess.Popen[bytes], timeout_s: float) -> bool:
        """Send and receive; return whether the pipe is still usable.

        Raises:
            WireError: a message is invalid.
        """
        assert process.stdin is not None
        assert process.stdout is not None
        read_end, write_end = process.stdout.fileno(), process.stdin.fileno()
        ready, writable, _ = select.select(
            [read_end], [write_end] if self._message_writer else [], [], timeout_s
        )
        if writable:
            try:
                self._message_writer.write(write_end)
            except OSError:
                return False
        if ready:
            goes_on = self._message_reader.read(read_end)
            for message, body in self._message_reader.messages():
                self._handle_message(message, body)
            return goes_on
        # Before the first message, ssh may take CONNECT_TIMEOUT_S to connect.
        silent_s = self.age_s() if self._is_up else time.monotonic() - self._started_s - ssh.CONNECT_TIMEOUT_S
        if silent_s < self._silence_timeout_s:
            return True
        # A retry over the same shared connection would hang too.
        ssh.close_shared_connection(self.host)
        return False

    def _handle_message(self, message: wire.ToClient, body: bytes) -> None:
        if isinstance(message, wire.Welcome):
            self.version, self.address, self.client_address = message.version, message.address, message.caller
            if (message.protocol, message.version) != (wire.PROTOCOL, rankdeck.__version__):
                self.close()
                raise ssh.missing_rankdeck_error(self.host, message.version)
            self._is_up = self._was_up = True
            self._num_failed = 0
            self._last_answer_s = time.monotonic()
            # The first ping is sent at once, because readers wait for the clock offset that it measures.
            self._last_ping_s = 0.0
            self._on_up()
        elif not self._is_up:
            raise wire.WireError("the first message is not a welcome")
        elif isinstance(message, wire.Pong):
            if not self._started_s <= message.sent <= time.monotonic():
                raise wire.WireError("a pong without a ping")
            self._last_answer_s = max(self._last_answer_s, message.sent)
            self.clock.add_answer(message.sent, message.now)
        else:
            self._on_message(message, body)

    def _schedule_retry(self) -> None:
        """Close the pipe and set the time of the next attempt to connect.

        Raises:
            MachineError: no connection to the host has been established so far.
        """
        code, lines = self._close_pipe()
        self._is_up = False
        if not self._was_up:
            raise ssh.connection_error(self.host, code, lines)
        self._next_start_s = (
            time.monotonic() + _RETRY_DELAYS_S[min(self._num_failed, len(_RETRY_DELAYS_S) - 1)]
        )
        self._num_failed += 1

    def _close_pipe(self) -> tuple[int | None, list[str]]:
        """Close the pipe and return ssh's exit code and stderr lines."""
        process, self._process = self._process, None
        if process is None or self._stderr is None:
            return None, []
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            code = process.wait(0.5)  # it exits at the end of its input
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        self._stderr.seek(0)
        lines = self._stderr.read(_MAX_STDERR_BYTES).decode(errors="replace").splitlines()
        self._stderr.close()
        return code, [line for line in lines if line.strip()]

    def close(self) -> None:
        """Close the connection. Runs on the host continue."""
        self._close_pipe()
        self._is_up = False

    def __enter__(self) -> HostLink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
