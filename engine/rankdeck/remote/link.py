"""The near end of the pipe to one host: begun, heard, and begun anew whenever it breaks.

Whoever has one calls `poll` again and again, a thread of its own or not. Nothing here waits longer than it
was told to. A connection that never came about is an error; one that came about once is tried again for as
long as somebody asks. How old what is shown is says our own ping, since ssh notices a cut after a quarter
of a minute.
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
from rankdeck.remote.clock import Clock

PING_S = 1.0
GIVEN_UP_S = 10.0
"""A pipe that has not answered for so long is closed, and another one begun."""
_PAUSES_S = (0.5, 1.0, 2.0, 4.0)
_MOST_SAID_BYTES = 1 << 14


class Link:
    """A host, by a name that ssh knows; one that `is_known` has answered already. `on_message` gets what
    comes, `on_up` is called each time that a pipe has come about: what was asked for in the one before has to
    be asked for again.
    """

    def __init__(
        self,
        host: str,
        on_message: Callable[[wire.ToNear, bytes], None],
        on_up: Callable[[], None] = lambda: None,
        *,
        given_up_s: float = GIVEN_UP_S,
        is_known: bool = False,
    ) -> None:
        self.host = host
        self.clock = Clock()
        self.version: str | None = None
        self.address = self.caller = ""
        self._command = ssh.command(host)
        self._on_message, self._on_up = on_message, on_up
        self._given_up_s = given_up_s
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        self._is_up, self._was_up = False, is_known
        self._next_s = 0.0
        self._num_failed = 0
        self._pinged_s = self._began_s = 0.0
        self._answered_s = time.monotonic()
        self._begin()

    @property
    def is_up(self) -> bool:
        return self._is_up

    def age_s(self) -> float:
        """Seconds since the question that was answered last."""
        return time.monotonic() - self._answered_s

    def send(self, message: wire.Message, body: bytes = b"") -> None:
        """Lost where the pipe breaks before it has gone. Raises: ValueError, it is too large."""
        self._outbox.put(message, body)

    def poll(self, timeout_s: float) -> None:
        """Let go on what there is, and wait `timeout_s` at most.

        Raises:
            MachineError: there is no connection, and was none before; or no rankdeck that one can talk to.
        """
        now_s = time.monotonic()
        if self._process is None:
            if now_s >= self._next_s:
                self._begin()
            else:
                time.sleep(min(timeout_s, self._next_s - now_s))
            return
        if self._is_up and now_s - self._pinged_s >= PING_S:
            self._pinged_s = now_s
            self._outbox.put(wire.Ping(sent=now_s))
        try:
            if self._turn(self._process, timeout_s):
                return
        except wire.WireError:
            pass
        self._broken()

    def _begin(self) -> None:
        self._inbox = wire.Inbox(wire.TO_NEAR, skips_greeting=True)
        self._outbox = wire.Outbox()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by _end
        self._began_s = time.monotonic()
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                start_new_session=True,  # Ctrl-C is for whoever watches
            )
        except OSError as error:
            self._said.close()
            raise ssh.why_not(self.host, None, [f"{error.filename}: {error.strerror}"]) from None
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)

    def _turn(self, process: subprocess.Popen[bytes], timeout_s: float) -> bool:
        """Whether the pipe is as good as it was. Raises: WireError; and what `on_message` does."""
        assert process.stdin is not None
        assert process.stdout is not None
        read_end, write_end = process.stdout.fileno(), process.stdin.fileno()
        ready, writable, _ = select.select([read_end], [write_end] if self._outbox else [], [], timeout_s)
        if writable:
            try:
                self._outbox.write(write_end)
            except OSError:
                return False
        if ready:
            goes_on = self._inbox.read(read_end)
            for message, body in self._inbox.messages():
                self._take(message, body)
            return goes_on
        silent_s = self.age_s() if self._is_up else time.monotonic() - self._began_s - ssh.CONNECT_S
        if silent_s < self._given_up_s:
            return True
        ssh.forget_shared(self.host)
        return False

    def _take(self, message: wire.ToNear, body: bytes) -> None:
        if isinstance(message, wire.Welcome):
            self.version, self.address, self.caller = message.version, message.address, message.caller
            if (message.protocol, message.version) != (wire.PROTOCOL, rankdeck.__version__):
                self.close()
                raise ssh.no_rankdeck(self.host, message.version)
            self._is_up = self._was_up = True
            self._num_failed = 0
            self._answered_s = time.monotonic()
            self._pinged_s = 0.0
            self._on_up()
        elif not self._is_up:
            raise wire.WireError("it did not say who it is")
        elif isinstance(message, wire.Pong):
            if not self._began_s <= message.sent <= time.monotonic():
                raise wire.WireError("an answer to a question that was not asked")
            self._answered_s = max(self._answered_s, message.sent)
            self.clock.answered(message.sent, message.now)
        else:
            self._on_message(message, body)

    def _broken(self) -> None:
        """Close what is left of it, and say when to begin anew. Raises: as `poll`."""
        code, said = self._end()
        self._is_up = False
        if not self._was_up:
            raise ssh.why_not(self.host, code, said)
        self._next_s = time.monotonic() + _PAUSES_S[min(self._num_failed, len(_PAUSES_S) - 1)]
        self._num_failed += 1

    def _end(self) -> tuple[int | None, list[str]]:
        """The pipe's last exit code and words."""
        process, self._process = self._process, None
        if process is None or self._said is None:
            return None, []
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            code = process.wait(0.5)  # at the end of its input it leaves by itself
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        self._said.seek(0)
        said = self._said.read(_MOST_SAID_BYTES).decode(errors="replace").splitlines()
        self._said.close()
        return code, [line for line in said if line.strip()]

    def close(self) -> None:
        """End the connection; runs there go on."""
        self._end()
        self._is_up = False

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
