"""State for viewing a run at an earlier time: the requested time, and the run as it was then.

A thread reads the run's history (rankdeck.run.run_history), so that dragging the time slider is smooth even
if the disk is slow. Until the run at the requested time has been read, views keep showing the previously
viewed time, and indicate this. The history is neither read nor stored in memory unless the user views it.
"""

from __future__ import annotations

import time
from functools import partial

from PySide6.QtCore import QObject, QTimer, Signal

from rankdeck.run.plan_lines import PlanLine
from rankdeck.run.prediction import read_prediction
from rankdeck.run.run_history import RunHistory, offset_step_time
from rankdeck.run.run_state import RunState
from rankdeck.run_dir import RunDir
from rankdeck_app.io_thread import IoThread
from rankdeck_app.state.past_run import PastRun
from rankdeck_app.state.run_view import RunView

_PLAY_INTERVAL_MS = 30
_PLAYBACK_S = 30.0
"""Seconds that the playback of a whole run takes; a run shorter than this is played in real time."""
_STALE_READ_TIMEOUT_S = 0.15
"""Seconds that a read may take before a request for another time cancels it, so that views update even while
the user is dragging the time slider."""


class _PastReader:
    """Reader of a run's earlier states. It works in a thread; `wanted_time` is the latest requested time."""

    def __init__(self, run: RunDir) -> None:
        self.wanted_time: float | None = None
        self._run, self._past = run, RunHistory(run)

    def read(self, time_s: float) -> tuple[float, RunState, PlanLine | None] | None:
        """Return `time_s`, the run state at that time, and the prediction for the attempt that was running at
        that time.

        Return None if another time has been requested in the meantime.
        """
        until = time.monotonic() + _STALE_READ_TIMEOUT_S

        def goes_on() -> bool:
            is_on_its_way = self.wanted_time is not None and time.monotonic() < until
            return self.wanted_time == time_s or is_on_its_way

        state = self._past.state_at(time_s, goes_on)
        if state is None:
            return None
        attempt = max((number for number, item in state.attempts.items() if item.started), default=0)
        return time_s, state, read_prediction(self._run, attempt)


class TimeMachine(QObject):
    """The viewed time of a run.

    `viewed_time` is the requested time (Unix seconds), or None for the present. `time_changed` is emitted
    when another time is requested, `past_loaded` when the run at that time has been loaded.
    """

    time_changed = Signal()
    past_loaded = Signal()

    def __init__(self, live: RunView, parent: QObject) -> None:
        super().__init__(parent)
        self._live_run = live
        self.viewed_time: float | None = None
        self.past_run: PastRun | None = None
        self.is_playing = False
        self._played_at = 0.0
        self._reader: _PastReader | None = None
        self._thread = IoThread(self, name=f"past of {live.run_dir.name}", started=True)
        self._timer = QTimer(self, interval=_PLAY_INTERVAL_MS)
        self._timer.timeout.connect(self._advance)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The run's start and end, or its start and the present while it is running; None if it has not
        started."""
        live = self._live_run
        start_time = live.started_at
        if start_time is None:
            return None
        if not live.is_over:
            return start_time, max(start_time, time.time())
        # A run whose machine failed has no exit record, so the last reported data count as well.
        ends = [] if live.exit_record is None else [live.exit_record.ended]
        ends += [attempt.trained_steps.last_x or start_time for attempt in live.state.attempts.values()]
        ends += [start_time + (device.memory_history.last_x or 0.0) for device in live.devices]
        return start_time, max(start_time, *ends)

    @property
    def is_loading(self) -> bool:
        """Whether the run at the requested time is still being loaded."""
        return self.viewed_time is not None and (
            self.past_run is None or self.past_run.now != self.viewed_time
        )

    def go_to(self, time_s: float) -> None:
        """View the run at a time (Unix seconds); a time at or after the run's end means the present."""
        bounds = self.bounds
        if bounds is None or time_s >= bounds[1]:
            self.go_to_now()
            return
        time_s = max(time_s, bounds[0])
        if time_s == self.viewed_time:
            return
        if self._reader is None:
            self._reader = _PastReader(self._live_run.run_dir)
        self.viewed_time = self._reader.wanted_time = time_s
        # The key drops a pending read of an earlier request, so that a drag stays current.
        self._thread.submit(partial(self._reader.read, time_s), self._on_past_loaded, key="moment")
        self.time_changed.emit()

    def go_to_start(self) -> None:
        if self.bounds is not None:
            self.go_to(self.bounds[0])

    def step_by(self, by: int) -> None:
        """Move the viewed time by a number of training steps, backwards if negative. If the present is
        viewed, a positive number has no effect."""
        bounds = self.bounds
        if bounds is None:
            return
        viewed_time = bounds[1] if self.viewed_time is None else self.viewed_time
        step_time = offset_step_time(self._live_run.state, viewed_time, by)
        self.go_to(step_time if step_time is not None else bounds[0] if by < 0 else bounds[1])

    def skip(self, seconds: float) -> None:
        if self.bounds is not None:
            self.go_to((self.bounds[1] if self.viewed_time is None else self.viewed_time) + seconds)

    def go_to_now(self) -> None:
        if self.viewed_time is None:
            return
        self.close()
        self.viewed_time = self.past_run = None
        self.is_playing = False
        self.time_changed.emit()
        self.past_loaded.emit()

    def toggle_play(self) -> None:
        """Start or pause playback; if the present is viewed, playback starts at the beginning of the run."""
        if not self.is_playing and self.viewed_time is None:
            self.go_to_start()
        self.is_playing = not self.is_playing and self.viewed_time is not None
        self._played_at = time.monotonic()
        if self.is_playing:
            self._timer.start()
        self.time_changed.emit()

    @property
    def speed(self) -> float:
        """The playback speed, as a multiple of real time."""
        start_time, ended = self.bounds or (0.0, 0.0)
        return max(1.0, (ended - start_time) / _PLAYBACK_S)

    def close(self) -> None:
        """Stop reading, without waiting for the reader's thread, which a slow disk may block."""
        self._timer.stop()
        self._thread.discard()
        if self._reader is not None:
            # A read in progress checks this and stops.
            self._reader.wanted_time = None
            self._reader = None

    def _on_past_loaded(self, result: tuple[float, RunState, PlanLine | None] | None) -> None:
        if result is not None:
            viewed_time, state, prediction = result
            self.past_run = PastRun(self._live_run, state, viewed_time, prediction)
            self.past_loaded.emit()

    def _advance(self) -> None:
        if not self.is_playing or self.viewed_time is None:
            self._timer.stop()
            return
        now = time.monotonic()
        # Playing waits for a slow read. `_played_at` moves on meanwhile, so that it does not jump afterwards.
        if not self.is_loading:
            self.go_to(self.viewed_time + (now - self._played_at) * self.speed)
        self._played_at = now
