"""How far the clock of another machine is ahead of this one's. Standard library only: guards ask too."""

from __future__ import annotations

import time
from collections import deque

WINDOW_S = 30.0


class ClockOffset:
    """By the quickest of the answers of the last half minute: half of its way is how wrong it may be."""

    def __init__(self) -> None:
        self.offset_s: float | None = None
        self.max_error_s = 0.0
        self._samples: deque[tuple[float, float, float]] = deque(maxlen=120)

    def add_answer(self, asked_s: float, there: float) -> None:
        """The time of that clock has come just now; it was asked for at `asked_s` (CLOCK_MONOTONIC)."""
        back = time.time()
        self.add_sample(back - (time.monotonic() - asked_s), there, back)

    def add_sample(self, sent: float, there: float, back: float) -> None:
        """`sent` and `back` by this clock, `there` by that one, in between (Unix seconds)."""
        if not sent <= back:
            return  # this clock was set
        self._samples.append((back - sent, there - (sent + back) / 2, back))
        while self._samples[0][2] < back - WINDOW_S:
            self._samples.popleft()
        trip_s, self.offset_s, _ = min(self._samples)
        self.max_error_s = trip_s / 2
