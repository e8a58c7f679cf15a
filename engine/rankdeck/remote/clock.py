"""Estimate how far another host's clock is ahead of the local clock. Guards import this module, so it uses
only the standard library."""

from __future__ import annotations

import time
from collections import deque

WINDOW_S = 30.0


class ClockOffset:
    """Offset of a remote clock, measured by the shortest round trip of the last `WINDOW_S` seconds.

    The error of the offset is at most half of that round trip.
    """

    def __init__(self) -> None:
        self.offset_s: float | None = None
        self.max_error_s = 0.0
        self._samples: deque[tuple[float, float, float]] = deque(maxlen=120)

    def add_answer(self, asked_s: float, there: float) -> None:
        """Add a sample from an answer that has just arrived.

        `asked_s` is the local time of the request (CLOCK_MONOTONIC), `there` the remote time in the answer.
        """
        back = time.time()
        self.add_sample(back - (time.monotonic() - asked_s), there, back)

    def add_sample(self, sent: float, there: float, back: float) -> None:
        """Add a sample of both clocks, in Unix seconds.

        The request was sent at the local time `sent` and answered at the remote time `there`; the answer
        arrived at the local time `back`.
        """
        if not sent <= back:
            return  # the local clock was set back
        self._samples.append((back - sent, there - (sent + back) / 2, back))
        while self._samples[0][2] < back - WINDOW_S:
            self._samples.popleft()
        trip_s, self.offset_s, _ = min(self._samples)
        self.max_error_s = trip_s / 2
