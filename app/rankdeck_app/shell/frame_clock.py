"""The single timer of all live views: it runs only while there are subscribers, and slower while the window
is hidden.

A frame is measured from the tick to the end of the painting that the tick caused: after calling the
subscribers, the clock posts itself an event with a lower priority than Qt's repaints; the arrival of this
event ends the frame.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from PySide6.QtCore import SIGNAL, QCoreApplication, QEvent, QObject, Qt, QTimer, Signal

MAX_FRAMES = 300
HIDDEN_HZ = 10
_FRAME_END = QEvent.Type(QEvent.registerEventType())


@dataclass(frozen=True)
class FrameStats:
    """Statistics of the most recent frames: the frame rate and two percentiles of the frame time."""

    rate_hz: float
    p50_ms: float
    p99_ms: float


class FrameClock(QObject):
    """Timer of live views. `measured` carries FrameStats once a second, and None when the timer stops."""

    measured = Signal(object)
    _frame = Signal()

    def __init__(self, rate_hz: int = 30) -> None:
        super().__init__()
        self._rate_hz = rate_hz
        self._is_slow = False
        self._started_s = 0.0
        self._measured_s = 0.0
        self._frames: deque[tuple[float, float]] = deque(maxlen=MAX_FRAMES)
        self._timer = QTimer(self)
        # A coarse timer may be off by 5 %.
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._tick)

    def subscribe(self, subscriber: Callable[[], object]) -> None:
        """Call `subscriber` every frame. A method of a QObject is unsubscribed when the object is
        destroyed."""
        self._frame.connect(subscriber)
        self._update_timer()

    def set_slow(self, slow: bool) -> None:
        """Limit the rate to 10 Hz (for a hidden or minimised window), or remove this limit."""
        self._is_slow = slow
        self._update_timer()

    def set_rate(self, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        self._update_timer()

    def stop(self) -> None:
        """Drop all subscribers; called when the window is closing."""
        if self._has_subscribers():
            self._frame.disconnect()
        self._update_timer()

    def stats(self) -> FrameStats | None:
        """Return the rate and times of the most recent frames; None if there are fewer than two frames."""
        if len(self._frames) < 2:
            return None
        durations = sorted(duration for _, duration in self._frames)
        span_s = self._frames[-1][0] - self._frames[0][0]
        return FrameStats(
            rate_hz=(len(self._frames) - 1) / span_s if span_s > 0 else 0.0,
            p50_ms=durations[len(durations) // 2] * 1e3,
            p99_ms=durations[min(len(durations) - 1, int(len(durations) * 0.99))] * 1e3,
        )

    def _has_subscribers(self) -> bool:
        # Qt also knows which subscribers were destroyed.
        return self.receivers(SIGNAL("_frame()")) > 0

    def _update_timer(self) -> None:
        if not self._has_subscribers():
            if self._timer.isActive():
                self._timer.stop()
                self._frames.clear()
                self.measured.emit(None)
            return
        rate_hz = min(self._rate_hz, HIDDEN_HZ) if self._is_slow else self._rate_hz
        interval_ms = round(1000 / rate_hz)
        # Restarting a running timer would delay the next frame.
        if not self._timer.isActive() or self._timer.interval() != interval_ms:
            self._frames.clear()
            self._timer.start(interval_ms)

    def _tick(self) -> None:
        self._started_s = time.perf_counter()
        self._frame.emit()
        self._update_timer()
        QCoreApplication.postEvent(self, QEvent(_FRAME_END), Qt.EventPriority.LowEventPriority.value - 1)

    def customEvent(self, event: QEvent) -> None:
        if event.type() != _FRAME_END:
            return
        now_s = time.perf_counter()
        self._frames.append((self._started_s, now_s - self._started_s))
        if now_s - self._measured_s >= 1.0:
            self._measured_s = now_s
            self.measured.emit(self.stats())
