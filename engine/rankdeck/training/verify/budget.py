"""How long the check may take: 3 s or 5 % of the run, whichever is more, by rank 0's clock.

What the run takes is estimated from one device's steps, and rather too low than too high. Read check.py next.
"""

from __future__ import annotations

import math
import time

LEAST_S, SHARE_OF_RUN = 3.0, 0.05


class Budget:
    """Counts from when it is made. One without a limit allows everything."""

    def __init__(self, *, has_limit: bool) -> None:
        self._began_s = time.perf_counter()
        self._limit_s = LEAST_S if has_limit else math.inf

    @property
    def spent_s(self) -> float:
        return time.perf_counter() - self._began_s

    def allow_for(self, run_s: float) -> None:
        """Allow a share of a run that takes at least so long."""
        self._limit_s = max(self._limit_s, SHARE_OF_RUN * run_s)

    def has(self, seconds: float) -> bool:
        """Whether so much is left."""
        return self.spent_s + seconds <= self._limit_s
