"""One attempt of a run: everything that its files say, whatever order they are read in.

Nothing here depends on another attempt but for `cut`: what a later attempt trains again is history, and
forgotten. fold.py puts attempts together.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from rankdeck import events
from rankdeck.run.anatomy import Anatomies
from rankdeck.run.batch import Source
from rankdeck.run.devices import AttemptDevice
from rankdeck.run.series import Ema, Floats, Series
from rankdeck.run.steps import MOST_RANKS, ROWS_HELD, Joiner, StepTable

_NUM_EVALUATIONS = 4096
StepEvent = TypeVar("StepEvent", events.Comm, events.Pipeline)


STEP_CURVES = ("losses", "loss_ema", "rates", "rate_ema")


class StepCurves:
    """Loss and throughput over steps, and their averages, for drawing: STEP_CURVES of one series.

    The average of the loss goes on from `loss_before`, where the attempt before stood after step `after`;
    that of the throughput begins anew, since another strategy may be behind it.
    """

    def __init__(self, num_steps: int | None, after: int, loss_before: float | None) -> None:
        self.series = Series(num_curves=len(STEP_CURVES))
        self.loss_before = loss_before
        # A sixtieth of the run, so that the line is calm and still turns where the loss does.
        self._averages = Ema(1.0 / min(500.0, max(2.0, (num_steps or 3_000) / 60)), 3)
        if loss_before is not None:
            self._averages.go_on(0, loss_before, after)

    def append(self, rows: Floats) -> None:
        """Rows of steps.COLUMNS."""
        step, loss, _, samples, step_s, _ = rows
        loss_ema, smooth_samples, smooth_s = self._averages.extend(np.stack([loss, samples, step_s]))
        with np.errstate(divide="ignore", invalid="ignore"):
            rates = np.where(step_s > 0, samples / step_s, np.nan)
            smooth = smooth_samples / smooth_s
        rate_ema = np.where(np.isfinite(smooth), smooth, np.nan)
        self.series.append_many(step, np.stack([loss, loss_ema, rates, rate_ema]))

    @property
    def smoothed_loss(self) -> float | None:
        newest = self.series.last_of(STEP_CURVES.index("loss_ema"))
        return newest if newest is not None and math.isfinite(newest) else None


class Attempt:
    """What one attempt's files say. `last` is the last step that is not history; None is all of them."""

    def __init__(self, number: int, rows_held: int | None = ROWS_HELD, *, curves: bool = True) -> None:
        self.number = number
        self.last: int | None = None
        self.started: events.RunStarted | None = None
        self.ended: events.RunEnded | None = None
        self.table = StepTable(rows_held)
        self.curves: StepCurves | None = None
        self._with_curves = curves
        self.held_out = Series(4_096, 1_024)
        self.evaluations: deque[events.Evaluation] = deque(maxlen=_NUM_EVALUATIONS)
        self.devices: dict[int, AttemptDevice] = {}
        self.phases: dict[int, str] = {}
        self.steps_counted: int | None = None
        self.data: events.Phase | None = None
        self.rank_failures: dict[int, events.RankFailed] = {}
        self.comm: dict[int, dict[str, int]] = {}
        self.sync: dict[int, events.Comm] = {}
        self.pipeline: dict[int, events.Pipeline] = {}
        self.anatomies = Anatomies()
        self.joiner = Joiner()

    @property
    def restored(self) -> int | None:
        """The step that it went on after; None while it has not restored anything."""
        return self.joiner.restored

    def setup(self) -> object:
        """What must be alike for two attempts to be measured together."""
        started = self.started
        return None if started is None else (started.strategy, started.options, started.devices)

    def device(self, index: int) -> AttemptDevice:
        if index not in self.devices:
            self.devices[index] = AttemptDevice()
        return self.devices[index]

    def start(self, event: events.RunStarted) -> bool:
        """The supervisor's announcement; False where it makes no sense."""
        if not 1 <= event.world_size < MOST_RANKS:
            return False
        self.started, self.joiner.world_size = event, event.world_size
        self.anatomies.announce(event.world_size)
        return True

    def take_rows(self, loss_before: float | None = None) -> bool:
        """Make rows of the steps that are complete by now; whether there are any. `loss_before` is the
        smoothed loss where the attempts before stand."""
        complete = self.joiner.take()
        for rows in complete:
            if self.last is not None:
                rows = rows[:, : int(np.searchsorted(rows[0], self.last, side="right"))]
            if rows.shape[1]:
                self.table.append(rows)
                if self.curves is not None:
                    self.curves.append(rows)
        is_other = self.curves is not None and self.curves.loss_before != loss_before
        if self._with_curves and len(self.table) and (self.curves is None or is_other):
            self._draw_again(loss_before)
        return bool(complete)

    def _draw_again(self, loss_before: float | None) -> None:
        """The curves of all rows, unless the oldest are gone: then the average has long forgotten how it
        began."""
        if self.curves is None or not self.table.num_gone:
            num_steps = self.started.steps if self.started else None
            self.curves = StepCurves(num_steps, self.restored or 0, loss_before)
            self.curves.append(self.table.rows)

    def evaluate(self, event: events.Evaluation) -> bool:
        if self._is_history(event.step):
            return False
        self.evaluations.append(event)
        if event.loss is not None:
            self.held_out.append_many((event.step,), (event.loss,))
        return True

    def add_spans(self, event: events.Spans) -> bool:
        """Whether it completed a step.

        Raises:
            ValueError, IndexError: its columns do not fit together.
        """
        return not self._is_history(event.step) and self.anatomies.add(event) is not None

    def visible(self, newest: Mapping[int, StepEvent]) -> dict[int, StepEvent]:
        """The newest events by rank, without those of later steps than `last`."""
        return {rank: event for rank, event in newest.items() if not self._is_history(event.step)}

    def _is_history(self, step: int) -> bool:
        return self.last is not None and step > self.last

    def cut(self, last: int) -> bool:
        """A later attempt goes on after step `last`; whether that makes history of anything new."""
        if self.last is not None and self.last <= last:
            return False
        self.last = last
        self.table.cut(last)
        self.held_out.cut(last)
        while self.evaluations and self.evaluations[-1].step > last:
            self.evaluations.pop()
        for device in self.devices.values():
            device.cut(last)
        self.anatomies.cut(last)
        if self.curves is not None:
            self.curves.series.cut(last)
        return True

    def take_rare(self, source: Source, event: events.AnyEvent) -> None:
        """What needs no answer."""
        match event:
            case events.RunEnded():
                self.ended = event
            case events.RankStarted():
                self.phases[event.rank] = event.phase
            case events.Phase():
                self.phases[event.rank] = event.phase
                self.steps_counted = event.steps or self.steps_counted
                self.data = self.data if event.samples is None else event
            case events.RankEnded():
                self.phases.pop(event.rank, None)
            case events.RankFailed():
                self.rank_failures[event.rank] = event
            case events.Restored():
                self.joiner.restore(max(0, event.step))
            case events.DeviceNotice() if event.device is not None and event.code in ("lost", "back"):
                self.device(event.device).lost_at = event.t if event.code == "lost" else None
