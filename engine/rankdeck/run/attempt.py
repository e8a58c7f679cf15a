"""One attempt of a run: everything that its files say, whatever order they are read in.

Nothing here depends on another attempt but for `cut`: what a later attempt trains again is history, and
forgotten. fold.py puts attempts together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
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


@dataclass
class StepCurves:
    """Loss and throughput over steps, and their averages, for drawing. The averages begin anew with each
    attempt, so that they do not depend on what was read first."""

    losses: Series = field(default_factory=Series)
    loss_ema: Series = field(default_factory=Series)
    rates: Series = field(default_factory=lambda: Series(262_144, 16_384))
    rate_ema: Series = field(default_factory=lambda: Series(262_144, 16_384))
    averages: tuple[Ema, Ema, Ema] | None = None

    def append(self, rows: Floats, num_steps: int | None) -> None:
        """Rows of steps.COLUMNS of a run of `num_steps`."""
        if self.averages is None:
            # A sixtieth of the run, so that the line is calm and still turns where the loss does.
            alpha = 1.0 / min(500.0, max(2.0, (num_steps or 3_000) / 60))
            self.averages = (Ema(alpha), Ema(alpha), Ema(alpha))
        step, loss, _, samples, step_s, _ = rows
        of_loss, of_samples, of_seconds = self.averages
        self.losses.append_many(step, loss)
        self.loss_ema.append_many(step, of_loss.extend(loss))
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.where(step_s > 0, samples / step_s, np.nan)
            smooth = of_samples.extend(samples) / of_seconds.extend(step_s)
        self.rates.append_many(step, rate)
        self.rate_ema.append_many(step, np.where(np.isfinite(smooth), smooth, np.nan))

    def cut(self, last: int) -> None:
        for series in (self.losses, self.loss_ema, self.rates, self.rate_ema):
            series.cut(last)


class Attempt:
    """What one attempt's files say. `last` is the last step that is not history; None is all of them."""

    def __init__(self, number: int, rows_held: int | None = ROWS_HELD, *, curves: bool = True) -> None:
        self.number = number
        self.last: int | None = None
        self.started: events.RunStarted | None = None
        self.ended: events.RunEnded | None = None
        self.table = StepTable(rows_held)
        self.curves = StepCurves() if curves else None
        self.held_out = Series(4_096, 1_024)
        self.evaluations: deque[events.Evaluation] = deque(maxlen=_NUM_EVALUATIONS)
        self.devices: dict[int, AttemptDevice] = {}
        self.phases: dict[int, str] = {}
        self.ranks_ended: set[int] = set()
        self.steps_counted: int | None = None
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

    def take_rows(self) -> bool:
        """Make rows of the steps that are complete by now; whether there are any."""
        found = self.joiner.take()
        for rows in found:
            if self.last is not None:
                rows = rows[:, : int(np.searchsorted(rows[0], self.last, side="right"))]
            if rows.shape[1]:
                self.table.append(rows)
                if self.curves is not None:
                    self.curves.append(rows, self.started.steps if self.started else None)
        return bool(found)

    def evaluate(self, event: events.Evaluation) -> bool:
        if self._is_history(event.step):
            return False
        self.evaluations.append(event)
        if event.loss is not None:
            self.held_out.append(event.step, event.loss)
        return True

    def add_spans(self, event: events.Spans) -> bool:
        """Whether it completed a step.

        Raises:
            ValueError, IndexError: its columns do not fit together.
        """
        return not self._is_history(event.step) and self.anatomies.add(event) is not None

    def visible(self, told: Mapping[int, StepEvent]) -> dict[int, StepEvent]:
        """What ranks told last, without what is of later steps than `last`."""
        return {rank: event for rank, event in told.items() if not self._is_history(event.step)}

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
            self.curves.cut(last)
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
            case events.RankEnded():
                self.ranks_ended.add(event.rank)
            case events.RankFailed():
                self.rank_failures[event.rank] = event
            case events.Restored():
                self.joiner.restore(max(0, event.step))
            case events.DeviceNotice() if event.device is not None and event.code in ("lost", "back"):
                self.device(event.device).lost_at = event.t if event.code == "lost" else None
