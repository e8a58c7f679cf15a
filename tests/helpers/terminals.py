"""A command in a terminal of its own, as a person sits before it: what it shows, keys, sizes, modes."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.helpers.waiting import scale_timeout


class Terminal:
    """A context manager: the command is the leader of the terminal's session, and killed at the end."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        rows: int = 30,
        columns: int = 100,
    ) -> None:
        self.output = b""
        self.status: int | None = None
        self.pid, self.handle = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(cwd)
                os.execvpe(command[0], list(command), {**os.environ, **(env or {})})
            finally:
                os._exit(127)
        self.resize(rows, columns)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.status is None:
            try:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
        os.close(self.handle)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.handle, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self.handle, keys)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def modes(self) -> list[Any]:
        """What the terminal does with keys and output now."""
        return termios.tcgetattr(self.handle)

    def wait_for(self, pattern: bytes, deadline_s: float = 30.0) -> re.Match[bytes]:
        """The first match in what is shown from here on; what came before it is passed."""
        end_s = time.monotonic() + scale_timeout(deadline_s)
        while (match := re.search(pattern, self.output)) is None:
            if not self._read(end_s):
                raise AssertionError(f"{pattern!r} was not shown:\n{self.output.decode(errors='replace')}")
        self.output = self.output[match.end() :]
        return match

    def wait_until(self, condition: Callable[[], bool], deadline_s: float = 30.0) -> None:
        end_s = time.monotonic() + scale_timeout(deadline_s)
        while not condition():
            assert time.monotonic() < end_s, "the condition did not come true"
            time.sleep(0.02)

    def wait(self, deadline_s: float = 30.0) -> int:
        """The exit status, as subprocess tells it; the rest of what is shown is in `output`."""
        end_s = time.monotonic() + scale_timeout(deadline_s)
        while self._read(end_s):
            pass
        while self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            else:
                assert time.monotonic() < end_s, f"it goes on:\n{self.output.decode(errors='replace')}"
                time.sleep(0.01)
        return self.status

    def _read(self, end_s: float) -> bool:
        """Whether there may be more."""
        ready, _, _ = select.select([self.handle], [], [], max(0.0, end_s - time.monotonic()))
        try:
            data = os.read(self.handle, 1 << 16) if ready else b""
        except OSError:  # the command has left its terminal
            return False
        self.output += data
        return bool(data)
