"""A rank's ties to its supervisor: heartbeats go up a pipe that never makes the rank wait, death comes down.

A beat is 40 bytes (step, time, phase), less than a pipe writes at once, so beats never mix. A full pipe drops
them, and a supervisor that is gone is no error: the kernel ends the rank anyway. The supervisor opens no file
for this; a rank opens the pipe through the supervisor's own entry in /proc. Read launch/supervisor.py next.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
import time
from typing import NamedTuple

_PR_SET_PDEATHSIG = 1
_BEAT = struct.Struct("<qd24s")
_READ_BYTES = _BEAT.size * 1600  # a whole number of beats, most of a pipe


class Beat(NamedTuple):
    """A rank was in `phase` of `step` at `at_s` (CLOCK_MONOTONIC, the same for every process)."""

    step: int
    phase: str
    at_s: float


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when the thread that forked it ends; survives exec.

    With `parent`, a process whose parent is another one by now, because it has ended already, ends here.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


class HeartbeatWriter:
    """The rank's end. Nothing here ever waits or raises."""

    def __init__(self, path: str) -> None:
        self._phases: dict[str, bytes] = {}
        try:
            self._handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            self._handle = -1

    def beat(self, step: int, phase: str) -> None:
        """Say that `step` is in `phase` now: about 2 us."""
        if self._handle < 0:
            return
        name = self._phases.get(phase)
        if name is None:
            # 24 bytes, never cut inside a character.
            name = self._phases[phase] = phase.encode()[:24].decode(errors="ignore").encode()
        try:
            os.write(self._handle, _BEAT.pack(step, time.monotonic(), name))
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


class HeartbeatReader:
    """The supervisor's end for one rank. `last` is None before the first beat.

    `longest_gap_s` is the longest time between two beats of the steps so far: what is normal for this run.
    """

    def __init__(self) -> None:
        self._handle, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.close(write_end)
        self.last: Beat | None = None
        self.longest_gap_s = 0.0

    @property
    def path(self) -> str:
        """What the rank opens."""
        return f"/proc/{os.getpid()}/fd/{self._handle}"

    def read(self) -> Beat | None:
        """Take in what has come; the newest beat."""
        while True:
            try:
                chunk = os.read(self._handle, _READ_BYTES)
            except BlockingIOError:
                return self.last
            if not chunk:
                return self.last
            for step, at_s, phase in _BEAT.iter_unpack(chunk):
                if self.last is not None and self.last.step > 0:
                    self.longest_gap_s = max(self.longest_gap_s, at_s - self.last.at_s)
                self.last = Beat(step, phase.rstrip(b"\0").decode(errors="replace"), at_s)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
