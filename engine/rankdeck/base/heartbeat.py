"""Heartbeats of ranks in memory shared with their supervisor, and the signal that kills the ranks when the
supervisor ends.

The supervisor creates an anonymous memory file with a slot for each rank. Ranks open the file through the
supervisor's entry in /proc and map it into their memory, so a beat needs no system call. Beats alternate
between the two records of a slot, and each record has its sequence number at both ends: if a rank is killed
while writing, the previous beat survives. observer/ writes to the same slots from a user's script. Read
launch/supervisor.py next.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import signal
import struct
import sys
import time
from typing import NamedTuple

from rankdeck.base.phrases import tr_noop

_PR_SET_PDEATHSIG = 1
_BEAT = struct.Struct("<qqdd24sq")
"""Record of a beat: sequence number, step, time, the longest time that this phase has taken so far, phase,
sequence number again."""
_BEATS_PER_SLOT = 2
STACKS_ENV = "RANKDECK_STACKS"
"""Environment variable that names the file to which a rank writes its stacks on SIGUSR1, even while it is
blocked in a collective."""
STEP = "step"
NOT_STARTED = "not begun"
"""Phase that the supervisor reports for a rank without a heartbeat."""
FIRST_STEP = "first step"
"""Phase of an attempt's first step, which takes longer than any other step."""
SAVING = "saving"
VERIFYING = tr_noop("verifying the strategy")
"""Phase of the check before the first step, in which a rank waits for the results of other ranks."""
CHECK_BUILD = "model of the check"
CHECK_STEP = "step of the check"
CHECK_PHASES = (VERIFYING, CHECK_BUILD, CHECK_STEP)
_FIRST_STEP = FIRST_STEP.encode()
# Exit status 0 does not prove success, as os._exit(0) in a user's loss returns it too; and a crash after the
# work is not a failure. The last heartbeat is in memory, so a full disk cannot hide it.
FINISHED = "finished"
"""Phase of the last beat of a rank that has done all its work, regardless of how its process ends."""
_LOST_LINES = re.compile(r"(?:finished|failed), lost (\d+) (\d+)")
_SLOT_BYTES = _BEATS_PER_SLOT * _BEAT.size


class Beat(NamedTuple):
    """A heartbeat: the rank was in `phase` of `step` at `at_s` (CLOCK_MONOTONIC, the same clock in all
    processes).

    A user's script reports the last completed step; `is_step_complete` is then true.
    """

    step: int
    phase: str
    at_s: float
    is_step_complete: bool = False


def finished_phase(num_lost: int, error_number: int) -> str:
    """Return the phase of a finished rank's last beat.

    The phase includes the number of event lines that the rank could not write, and the errno, because the
    event file itself cannot record them.
    """
    return FINISHED + _lost_suffix(num_lost, error_number)


def failed_phase(num_lost: int, error_number: int) -> str:
    """Return the phase of a failed rank's last beat, with lost lines and errno as in `finished_phase`."""
    return "failed" + _lost_suffix(num_lost, error_number)


def _lost_suffix(num_lost: int, error_number: int) -> str:
    # Capped, because a phase has at most 24 bytes.
    return f", lost {min(num_lost, 99_999)} {error_number}" if num_lost else ""


def parse_lost_lines(phase: str) -> tuple[int, str] | None:
    """Return (number of lost lines, the system's error text) from the phase of a rank's last beat; None if no
    line was lost."""
    match = _LOST_LINES.fullmatch(phase)
    return (int(match[1]), os.strerror(int(match[2]))) if match else None


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when the thread that forked it ends, even after an exec.

    If `parent` is the id of a process that is no longer this process's parent, exit at once.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # If the parent ended before prctl was called, no signal will come.
    if parent is not None and os.getppid() != parent:
        os._exit(1)


class HeartbeatWriter:
    """Writer of a rank's heartbeats to slot `rank` of the supervisor's memory file at `path`. No method
    blocks or raises."""

    def __init__(self, path: str, rank: int) -> None:
        self._slot = rank * _SLOT_BYTES
        self._phases: dict[str, bytes] = {}
        self._number = 0
        self._phase = b""
        self._at_s = 0.0
        self._longest_s: dict[bytes, float] = {}
        self._page: mmap.mmap | None = None
        try:
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return
        try:
            # A write beyond the end of the file would raise SIGBUS.
            if os.fstat(handle).st_size >= self._slot + _SLOT_BYTES:
                self._page = mmap.mmap(handle, 0)
        except (OSError, ValueError):
            pass
        finally:
            os.close(handle)

    def beat(self, step: int, phase: str) -> None:
        """Report that the rank is now in `phase` of `step`; takes about 1 us."""
        if self._page is None:
            return
        name = self._phases.get(phase)
        if name is None:
            # At most 24 bytes, and never cut inside a character.
            name = self._phases[phase] = phase.encode()[:24].decode(errors="ignore").encode()
        now, number = time.monotonic(), self._number + 1
        longest_s = self._longest_s
        if number > 1 and now - self._at_s > longest_s.get(self._phase, 0.0):
            longest_s[self._phase] = now - self._at_s
        # A phase that has not occurred yet may take as long as the first step.
        gap_s = longest_s.get(name) or longest_s.get(_FIRST_STEP, 0.0)
        offset = self._slot + number % _BEATS_PER_SLOT * _BEAT.size
        _BEAT.pack_into(self._page, offset, number, step, now, gap_s, name, number)
        self._number, self._phase, self._at_s = number, name, now

    def close(self) -> None:
        if self._page is not None:
            self._page.close()
            self._page = None


class HeartbeatPage:
    """The supervisor's memory file, with a slot and a reader for each of `num_ranks` ranks."""

    def __init__(self, num_ranks: int) -> None:
        # Memory and not a file, so that heartbeats work while the disk is full.
        self._handle = os.memfd_create("rankdeck-heartbeats")
        os.ftruncate(self._handle, num_ranks * _SLOT_BYTES)
        self._page = mmap.mmap(self._handle, 0)
        self.readers = [HeartbeatReader(self._page, rank) for rank in range(num_ranks)]

    @property
    def path(self) -> str:
        """Path under which ranks open the memory file."""
        return f"/proc/{os.getpid()}/fd/{self._handle}"

    def close(self) -> None:
        """Close the memory file; the last beats remain available from the readers."""
        if self._handle >= 0:
            for reader in self.readers:
                reader.close()
            self._page.close()
            os.close(self._handle)
            self._handle = -1


class HeartbeatReader:
    """A reader of one rank's slot. `last` is None before the first beat.

    `longest_gap_s` is the longest time that the last beat's phase has taken so far in this run. For a user's
    script, it is the longest time between two consecutive beats since the first step.
    """

    def __init__(self, page: mmap.mmap, rank: int) -> None:
        self._page: mmap.mmap | None = page
        self._slot = slice(rank * _SLOT_BYTES, (rank + 1) * _SLOT_BYTES)
        self._number = 0
        self.last: Beat | None = None
        self.longest_gap_s = 0.0

    def read(self) -> Beat | None:
        """Return the newest beat; None before the first one."""
        if self._page is None:
            return self.last
        for number, step, at_s, longest_gap_s, phase, again in _BEAT.iter_unpack(self._page[self._slot]):
            # Different numbers at both ends: the record is being written, or its rank was killed while
            # writing it.
            if number == again and number > self._number:
                self._number, self.longest_gap_s = number, longest_gap_s
                self.last = Beat(step, phase.rstrip(b"\0").decode(errors="replace"), at_s)
        return self.last

    def close(self) -> None:
        self._page = None
