"""Describe when a run was active: one interval per attempt, without the pauses between them.

A list of runs reads the intervals from the ends of the files (row.py); the run state collects them from all
events (attempt.py). This module computes the total duration from the intervals of either source.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple


class RunInterval(NamedTuple):
    """The interval of one attempt in Unix seconds; `ended` is None while the attempt is running.

    An attempt that was restarted automatically has the start time of the attempt before it: the time of the
    user's command.
    """

    started: float
    ended: float | None = None


def total_duration_s(intervals: Iterable[RunInterval], now: float) -> float | None:
    """Return the seconds of all intervals until `now`, counting overlaps once; None without intervals."""
    lasted, counted_until = None, -math.inf
    for started, ended in intervals:
        until = now if ended is None else min(now, ended)
        lasted = (lasted or 0.0) + max(0.0, until - max(started, counted_until))
        counted_until = max(counted_until, until)
    return lasted
