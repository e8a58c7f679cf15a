"""Looking back at a run: which moment is asked for, and the run as it was then.

A thread of its own reads the past (rankdeck.run.past), so that a drag is answered at once whatever the disk
does: until the moment that was asked for is read, the one before stays, and views say so. Nothing is read,
and nothing kept, of a run that nobody looks back at.
"""

from __future__ import annotations

import time
from functools import partial

from PySide6.QtCore import QObject, QTimer, Signal

from rankdeck.run.fold import Fold
from rankdeck.run.past import Past, beside
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run.prediction import read_prediction
from rankdeck.rundir import RunDir
from rankdeck_app.io_thread import IoThread
from rankdeck_app.state.past_run import PastRun
from rankdeck_app.state.run_answers import RunAnswers

_PLAYED_EVERY_MS = 30
_WHOLE_PLAY_S = 30.0
"""A run is played in so many seconds, or as fast as it went."""
_FINISHED_WITHIN_S = 0.15
"""A moment that is asked for is read to its end for so long, though another one is asked for by then: a drag
shows something on its way."""


class _PastReader:
    """Reads moments of a run one after the other, in a thread. `wanted` is the newest that was asked for."""

    def __init__(self, run: RunDir) -> None:
        self.wanted: float | None = None
        self._run, self._past = run, Past(run)

    def read(self, moment: float) -> tuple[float, Fold, PlanLine | None] | None:
        """The moment, what was told until then, and the prediction of the attempt that was under way; None
        where another moment is wanted by then.
        """
        until = time.monotonic() + _FINISHED_WITHIN_S

        def goes_on() -> bool:
            is_on_its_way = self.wanted is not None and time.monotonic() < until
            return self.wanted == moment or is_on_its_way

        fold = self._past.fold_at(moment, goes_on)
        if fold is None:
            return None
        attempt = max((number for number, one in fold.attempts.items() if one.started), default=0)
        return moment, fold, read_prediction(self._run, attempt)


class TimeMachine(QObject):
    """`moment` is what is asked for (Unix seconds), None is now. `moved`: that is another one; `arrived`:
    what is shown is, which comes a little later."""

    moved = Signal()
    arrived = Signal()

    def __init__(self, live: RunAnswers, parent: QObject) -> None:
        super().__init__(parent)
        self._live = live
        self.moment: float | None = None
        self.past: PastRun | None = None
        self.is_playing = False
        self._played_at = 0.0
        self._reader: _PastReader | None = None
        self._thread = IoThread(self, name=f"past of {live.run.name}", started=True)
        self._timer = QTimer(self, interval=_PLAYED_EVERY_MS)
        self._timer.timeout.connect(self._play_on)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """From the start of the run to its end, or to now; None while it has not begun."""
        live = self._live
        began = live.started
        if began is None:
            return None
        if not live.is_over:
            return began, max(began, time.time())
        ends = [] if live.end is None else [live.end.ended]
        ends += [one.trained.last_x or began for one in live.fold.attempts.values()]
        ends += [began + (device.memory_history.last_x or 0.0) for device in live.devices]
        return began, max(began, *ends)

    @property
    def is_waiting(self) -> bool:
        """Whether what is shown is not yet of the moment that was asked for."""
        return self.moment is not None and (self.past is None or self.past.now != self.moment)

    def go(self, moment: float) -> None:
        """Look at a moment (Unix seconds); the end of what is there is now."""
        bounds = self.bounds
        if bounds is None or moment >= bounds[1]:
            self.back_to_now()
            return
        moment = max(moment, bounds[0])
        if moment == self.moment:
            return
        if self._reader is None:
            self._reader = _PastReader(self._live.run)
        self.moment = self._reader.wanted = moment
        self._thread.do(partial(self._reader.read, moment), self._found, key="moment")
        self.moved.emit()

    def go_to_start(self) -> None:
        if self.bounds is not None:
            self.go(self.bounds[0])

    def step_by(self, by: int) -> None:
        """To the next steps or those before; from now on backwards."""
        bounds = self.bounds
        if bounds is None:
            return
        moment = bounds[1] if self.moment is None else self.moment
        found = beside(self._live.fold, moment, by)
        self.go(found if found is not None else bounds[0] if by < 0 else bounds[1])

    def skip(self, seconds: float) -> None:
        if self.bounds is not None:
            self.go((self.bounds[1] if self.moment is None else self.moment) + seconds)

    def back_to_now(self) -> None:
        if self.moment is None:
            return
        self.close()
        self.moment = self.past = None
        self.is_playing = False
        self.moved.emit()
        self.arrived.emit()

    def toggle_play(self) -> None:
        """From the start where one looks at now."""
        if not self.is_playing and self.moment is None:
            self.go_to_start()
        self.is_playing = not self.is_playing and self.moment is not None
        self._played_at = time.monotonic()
        if self.is_playing:
            self._timer.start()
        self.moved.emit()

    @property
    def speed(self) -> float:
        """How much faster than the run went it is played."""
        began, ended = self.bounds or (0.0, 0.0)
        return max(1.0, (ended - began) / _WHOLE_PLAY_S)

    def close(self) -> None:
        """Nothing is read any more; a thread that a disk holds up is not waited for."""
        self._timer.stop()
        self._thread.drop()
        if self._reader is not None:
            self._reader.wanted = None
            self._reader = None

    def _found(self, found: tuple[float, Fold, PlanLine | None] | None) -> None:
        if found is not None:
            moment, fold, prediction = found
            self.past = PastRun(self._live, fold, moment, prediction)
            self.arrived.emit()

    def _play_on(self) -> None:
        if not self.is_playing or self.moment is None:
            self._timer.stop()
            return
        now = time.monotonic()
        if not self.is_waiting:
            self.go(self.moment + (now - self._played_at) * self.speed)
        self._played_at = now
