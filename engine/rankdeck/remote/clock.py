"""Estimate how far another machine's clock is ahead. Standard library only, because guards import this."""

from __future__ import annotations

import time
from collections import deque

WINDOW_S = 30.0


class ClockOffset:
    """Clock offset from the answer with the shortest round trip in `WINDOW_S`; half the trip is the largest
    error."""

    def __init__(self) -> None:
        self.offset_s: float | None = None
        self.max_error_s = 0.0
        self._samples: deque[tuple[float, float, float]] = deque(maxlen=120)

    def add_answer(self, asked_s: float, there: float) -> None:
        """Add the other clock's time, just received; it was requested at `asked_s` (CLOCK_MONOTONIC)."""
        back = time.time()
        self.add_sample(back - (time.monotonic() - asked_s), there, back)

    def add_sample(self, sent: float, there: float, back: float) -> None:
        """Add a sample: `sent` and `back` by the local clock, `there` by the other, in between (Unix
        seconds)."""
        if not sent <= back:
            return  # the local clock was set back
        self._samples.append((back - sent, there - (sent + back) / 2, back))
        while self._samples[0][2] < back - WINDOW_S:
            self._samples.popleft()
        trip_s, self.offset_s, _ = min(self._samples)
        self.max_error_s = trip_s / 2
