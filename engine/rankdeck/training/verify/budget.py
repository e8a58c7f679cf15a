"""Limit the check's time to 3 s or 5 % of the run's time, whichever is more, by rank 0's clock.

The run's time is estimated from one device's steps; the estimate errs on the low side. Time in which other
processes used the processor does not count, because it would prolong the run as well. Read check.py next.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

MIN_BUDGET_S, SHARE_OF_RUN = 3.0, 0.05
_SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""File with the nanoseconds that this thread has run, the nanoseconds that it has waited to run, and the
number of its time slices. Source: Linux, Documentation/scheduler/sched-stats.rst."""


def unpreempted_clock_s() -> float:
    """Return the seconds on a clock that stops while this thread waits for a processor."""
    now_s = time.perf_counter()
    try:
        return now_s - int(_SCHEDSTAT.read_text("ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):  # a kernel without it
        return now_s


class CheckBudget:
    """Time budget that starts when the object is created; without a limit, any amount of time is allowed."""

    def __init__(self, *, has_limit: bool) -> None:
        self._started_s = unpreempted_clock_s()
        self._limit_s = MIN_BUDGET_S if has_limit else math.inf

    @property
    def spent_s(self) -> float:
        return unpreempted_clock_s() - self._started_s

    def discard_since(self, spent_s: float) -> None:
        """Reset the time spent to its earlier value `spent_s`; the time since then does not count."""
        self._started_s += self.spent_s - spent_s

    def extend_for_run(self, run_s: float) -> None:
        """Extend the limit to a share of `run_s`, the minimum time of the run."""
        self._limit_s = max(self._limit_s, SHARE_OF_RUN * run_s)

    def allows(self, seconds: float) -> bool:
        """Check whether at least `seconds` seconds are left."""
        return self.spent_s + seconds <= self._limit_s
