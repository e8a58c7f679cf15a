"""Looking back at a run: which moment is asked for, and the run as it was then.

A thread of its own reads the past (rankdeck.run.run_history), so that a drag is answered at once whatever the
disk does: until the moment that was asked for is read, the one before stays, and views say so. Nothing is
read, and nothing kept, of a run that nobody looks back at.
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
"""A run is played in so many seconds, or as fast as it went."""
_STALE_READ_TIMEOUT_S = 0.15
"""A moment that is asked for is read to its end for so long, though another one is asked for by then: a drag
shows something on its way."""


class _PastReader:
    """Reads moments of a run one after the other, in a thread. `wanted_time` is the newest that was asked
    for."""

    def __init__(self, run: RunDir) -> None:
        self.wanted_time: float | None = None
        self._run, self._past = run, RunHistory(run)

    def read(self, moment: float) -> tuple[float, RunState, PlanLine | None] | None:
        """The moment, what was told until then, and the prediction of the attempt that was under way; None
        where another moment is wanted by then.
        """
        until = time.monotonic() + _STALE_READ_TIMEOUT_S

        def goes_on() -> bool:
            is_on_its_way = self.wanted_time is not None and time.monotonic() < until
            return self.wanted_time == moment or is_on_its_way

        fold = self._past.state_at(moment, goes_on)
        if fold is None:
            return None
        attempt = max((number for number, one in fold.attempts.items() if one.started), default=0)
        return moment, fold, read_prediction(self._run, attempt)


class TimeMachine(QObject):
    """`viewed_time` is what is asked for (Unix seconds), None is now. `time_changed`: that is another one;
    `past_loaded`: what is shown is, which comes a little later."""

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
        """From the start of the run to its end, or to now; None while it has not begun."""
        live = self._live_run
        began = live.started_at
        if began is None:
            return None
        if not live.is_over:
            return began, max(began, time.time())
        ends = [] if live.exit_record is None else [live.exit_record.ended]
        ends += [one.trained_steps.last_x or began for one in live.state.attempts.values()]
        ends += [began + (device.memory_history.last_x or 0.0) for device in live.devices]
        return began, max(began, *ends)

    @property
    def is_loading(self) -> bool:
        """Whether what is shown is not yet of the moment that was asked for."""
        return self.viewed_time is not None and (
            self.past_run is None or self.past_run.now != self.viewed_time
        )

    def go_to(self, moment: float) -> None:
        """Look at a moment (Unix seconds); the end of what is there is now."""
        bounds = self.bounds
        if bounds is None or moment >= bounds[1]:
            self.go_to_now()
            return
        moment = max(moment, bounds[0])
        if moment == self.viewed_time:
            return
        if self._reader is None:
            self._reader = _PastReader(self._live_run.run_dir)
        self.viewed_time = self._reader.wanted_time = moment
        self._thread.submit(partial(self._reader.read, moment), self._on_past_loaded, key="moment")
        self.time_changed.emit()

    def go_to_start(self) -> None:
        if self.bounds is not None:
            self.go_to(self.bounds[0])

    def step_by(self, by: int) -> None:
        """To the next steps or those before; from now on backwards."""
        bounds = self.bounds
        if bounds is None:
            return
        moment = bounds[1] if self.viewed_time is None else self.viewed_time
        found = offset_step_time(self._live_run.state, moment, by)
        self.go_to(found if found is not None else bounds[0] if by < 0 else bounds[1])

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
        """From the start where one looks at now."""
        if not self.is_playing and self.viewed_time is None:
            self.go_to_start()
        self.is_playing = not self.is_playing and self.viewed_time is not None
        self._played_at = time.monotonic()
        if self.is_playing:
            self._timer.start()
        self.time_changed.emit()

    @property
    def speed(self) -> float:
        """How much faster than the run went it is played."""
        began, ended = self.bounds or (0.0, 0.0)
        return max(1.0, (ended - began) / _PLAYBACK_S)

    def close(self) -> None:
        """Nothing is read any more; a thread that a disk holds up is not waited for."""
        self._timer.stop()
        self._thread.discard()
        if self._reader is not None:
            self._reader.wanted_time = None
            self._reader = None

    def _on_past_loaded(self, found: tuple[float, RunState, PlanLine | None] | None) -> None:
        if found is not None:
            moment, fold, prediction = found
            self.past_run = PastRun(self._live_run, fold, moment, prediction)
            self.past_loaded.emit()

    def _advance(self) -> None:
        if not self.is_playing or self.viewed_time is None:
            self._timer.stop()
            return
        now = time.monotonic()
        if not self.is_loading:
            self.go_to(self.viewed_time + (now - self._played_at) * self.speed)
        self._played_at = now
