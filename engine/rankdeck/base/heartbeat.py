"""A rank's ties to its supervisor: heartbeats lie in memory that both share, death comes down.

The supervisor makes one page without a file, with a slot for each rank, which opens it through the
supervisor's own entry in /proc: a beat costs the rank no call into the kernel. Beats go into the two places
of a slot in turn, each with its number in front and behind: a rank that is killed in the middle of one leaves
the one before. observer/ writes the same slots from a person's own script. Read launch/supervisor.py next.
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
"""Its number, step, time, how long that phase has lasted at most so far, phase, its number again."""
_BEATS_PER_SLOT = 2
STACKS_ENV = "RANKDECK_STACKS"
"""In a rank's environment: the file that SIGUSR1 makes it write its stacks to, even when it is blocked inside
a collective."""
STEP = "step"
NOT_STARTED = "not begun"
"""Of a rank that has never beaten, as its supervisor sees it."""
FIRST_STEP = "first step"
"""Of an attempt: it takes longer than any other."""
SAVING = "saving"
VERIFYING = tr_noop("verifying the strategy")
"""The check before the first step: a rank waits for what the others compute."""
CHECK_BUILD = "model of the check"
CHECK_STEP = "step of the check"
CHECK_PHASES = (VERIFYING, CHECK_BUILD, CHECK_STEP)
_FIRST_STEP = FIRST_STEP.encode()
FINISHED = "finished"
"""The phase of the last beat of a rank that has done all its work, however its process ends then."""
_LOST_LINES = re.compile(r"(?:finished|failed), lost (\d+) (\d+)")
_SLOT_BYTES = _BEATS_PER_SLOT * _BEAT.size


class Beat(NamedTuple):
    """A rank was in `phase` of `step` at `at_s` (CLOCK_MONOTONIC, the same for every process).

    A person's own script beats with the last step that has ended: `is_step_complete` then.
    """

    step: int
    phase: str
    at_s: float
    is_step_complete: bool = False


def finished_phase(num_lost: int, error_number: int) -> str:
    """The phase of a last beat: with the number of event lines that a rank could not write, and why (errno):
    its file cannot say it."""
    return FINISHED + _lost_suffix(num_lost, error_number)


def failed_phase(num_lost: int, error_number: int) -> str:
    """The same of a rank that failed, and may have lost the words for it."""
    return "failed" + _lost_suffix(num_lost, error_number)


def _lost_suffix(num_lost: int, error_number: int) -> str:
    return f", lost {min(num_lost, 99_999)} {error_number}" if num_lost else ""


def parse_lost_lines(phase: str) -> tuple[int, str] | None:
    """What `finished_phase` says: how many lines, and why, in the system's words; None where none were
    lost."""
    found = _LOST_LINES.fullmatch(phase)
    return (int(found[1]), os.strerror(int(found[2]))) if found else None


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when the thread that forked it ends; survives exec.

    With `parent`, a process whose parent is another one by now, because it has ended already, ends here.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


class HeartbeatWriter:
    """The rank's end: slot `rank` of the page. Nothing here ever waits or raises."""

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
            if os.fstat(handle).st_size >= self._slot + _SLOT_BYTES:
                self._page = mmap.mmap(handle, 0)
        except (OSError, ValueError):
            pass
        finally:
            os.close(handle)

    def beat(self, step: int, phase: str) -> None:
        """Say that `step` is in `phase` now: about 1 us."""
        if self._page is None:
            return
        name = self._phases.get(phase)
        if name is None:
            # 24 bytes, never cut inside a character.
            name = self._phases[phase] = phase.encode()[:24].decode(errors="ignore").encode()
        now, number = time.monotonic(), self._number + 1
        longest_s = self._longest_s
        if number > 1 and now - self._at_s > longest_s.get(self._phase, 0.0):
            longest_s[self._phase] = now - self._at_s
        # What has not been seen yet may take as long as the first step.
        gap_s = longest_s.get(name) or longest_s.get(_FIRST_STEP, 0.0)
        place = self._slot + number % _BEATS_PER_SLOT * _BEAT.size
        _BEAT.pack_into(self._page, place, number, step, now, gap_s, name, number)
        self._number, self._phase, self._at_s = number, name, now

    def close(self) -> None:
        if self._page is not None:
            self._page.close()
            self._page = None


class HeartbeatPage:
    """The supervisor's end: a slot for each of `num_ranks` ranks, and a reader of each."""

    def __init__(self, num_ranks: int) -> None:
        self._handle = os.memfd_create("rankdeck-heartbeats")
        os.ftruncate(self._handle, num_ranks * _SLOT_BYTES)
        self._page = mmap.mmap(self._handle, 0)
        self.readers = [HeartbeatReader(self._page, rank) for rank in range(num_ranks)]

    @property
    def path(self) -> str:
        """What a rank opens."""
        return f"/proc/{os.getpid()}/fd/{self._handle}"

    def close(self) -> None:
        """What was read last stays."""
        if self._handle >= 0:
            for reader in self.readers:
                reader.close()
            self._page.close()
            os.close(self._handle)
            self._handle = -1


class HeartbeatReader:
    """One rank's slot. `last` is None before the first beat.

    `longest_gap_s` is the longest that the phase of the last beat has lasted so far, what is normal for this
    run; of a person's own script the longest time between any two beats of its steps.
    """

    def __init__(self, page: mmap.mmap, rank: int) -> None:
        self._page: mmap.mmap | None = page
        self._slot = slice(rank * _SLOT_BYTES, (rank + 1) * _SLOT_BYTES)
        self._number = 0
        self.last: Beat | None = None
        self.longest_gap_s = 0.0

    def read(self) -> Beat | None:
        """The newest beat."""
        if self._page is None:
            return self.last
        for number, step, at_s, longest_gap_s, phase, again in _BEAT.iter_unpack(self._page[self._slot]):
            if number == again and number > self._number:
                self._number, self.longest_gap_s = number, longest_gap_s
                self.last = Beat(step, phase.rstrip(b"\0").decode(errors="replace"), at_s)
        return self.last

    def close(self) -> None:
        self._page = None
