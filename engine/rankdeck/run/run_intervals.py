"""When a run ran: a spell for each of its attempts, without the time in which it lay stopped between them.

A list reads them from the ends of the files (row.py), the fold knows them of all events (attempt.py). How
long a run lasted is worked out here from either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple


class RunInterval(NamedTuple):
    """Unix seconds; `ended` is None while it goes on. An attempt that began by itself after another bears the
    time of the person's command, as that one does."""

    started: float
    ended: float | None = None


def total_duration_s(spells: Iterable[RunInterval], now: float) -> float | None:
    """The seconds of all spells until a moment, none of them twice; None where there is no spell."""
    lasted, counted_until = None, -math.inf
    for began, ended in spells:
        until = now if ended is None else min(now, ended)
        lasted = (lasted or 0.0) + max(0.0, until - max(began, counted_until))
        counted_until = max(counted_until, until)
    return lasted
