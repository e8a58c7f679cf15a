"""How long the check may take: 3 s or 5 % of the run, whichever is more, by rank 0's clock.

What the run takes is estimated from one device's steps, and rather too low than too high. Time in which
other processes had the processor is not counted, because it would make the run longer as well. Read check.py
next.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

MIN_BUDGET_S, SHARE_OF_RUN = 3.0, 0.05
_SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Nanoseconds that this thread ran and that it was ready to run, and how often. Source: Linux,
Documentation/scheduler/sched-stats.rst."""


def unpreempted_clock_s() -> float:
    """A clock that stands still while this thread waits for a processor."""
    now_s = time.perf_counter()
    try:
        return now_s - int(_SCHEDSTAT.read_text("ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):  # a kernel without it
        return now_s


class CheckBudget:
    """Counts from when it is made. One without a limit allows everything."""

    def __init__(self, *, has_limit: bool) -> None:
        self._started_s = unpreempted_clock_s()
        self._limit_s = MIN_BUDGET_S if has_limit else math.inf

    @property
    def spent_s(self) -> float:
        return unpreempted_clock_s() - self._started_s

    def discard_since(self, spent_s: float) -> None:
        """Count nothing of what was spent after that."""
        self._started_s += self.spent_s - spent_s

    def extend_for_run(self, run_s: float) -> None:
        """Allow a share of a run that takes at least so long."""
        self._limit_s = max(self._limit_s, SHARE_OF_RUN * run_s)

    def allows(self, seconds: float) -> bool:
        """Whether so much is left."""
        return self.spent_s + seconds <= self._limit_s
