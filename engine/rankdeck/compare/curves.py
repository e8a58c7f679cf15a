"""Losses over steps, over seconds of training and over samples seen, for whoever draws them.

A fold keeps its curves over steps. Where a step lies in time or among the samples follows from the rows that
are held and from the marks of older ones (run/step_table.py), without the pauses between attempts. An attempt
that stands alone begins at its own first step, and with the samples that the steps before it had seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankdeck.run.attempt import Attempt
from rankdeck.run.run_state import RunState
from rankdeck.run.series import Curve, Floats

AXES = ("step", "time", "samples")
_MAX_KNOTS = 4096
"""Of the rows held of an attempt; it has no more marks than that. Steps between two lie on a line."""


class StepAxis:
    """Where the steps of a run lie on one of the three axes. Both arrays rise."""

    def __init__(self, steps: Floats, places: Floats) -> None:
        self._steps, self._positions = steps, places

    @property
    def end(self) -> float | None:
        """Where the last step lies; None where nobody knows."""
        return float(self._positions[-1]) if len(self._positions) else None

    def positions_of(self, steps: Floats) -> Floats:
        if not len(self._steps):
            return np.full(len(steps), np.nan)
        return np.interp(steps, self._steps, self._positions)

    def step_at(self, place: float) -> float:
        """The step that lies there, or the nearest end."""
        return float(np.interp(place, self._positions, self._steps)) if len(self._steps) else 0.0


def step_axis(fold: RunState, by: str) -> StepAxis:
    """One of BY; empty where steps have no places: their samples are not known, or their times are none."""
    assert by in AXES, by
    steps, places = [np.empty(0)], [np.empty(0)]
    end = 0.0
    for one in fold.attempts.values():
        known, rise = _knots(one, by)
        if not len(known):
            continue
        if by == "samples" and len(steps) == 1:
            # Of an attempt that stands alone: what the steps before it saw, if each had as many as its own.
            end = (known[0] - 1) * float(rise[-1]) / len(one.table)
        steps.append(known)
        places.append(known if by == "step" else end + rise)
        end = float(places[-1][-1])
    together = np.concatenate(places)
    if not np.isfinite(together).all():
        return StepAxis(np.empty(0), np.empty(0))
    return StepAxis(np.concatenate(steps), np.maximum.accumulate(together))


def _knots(one: Attempt, by: str) -> tuple[Floats, Floats]:
    """Some steps of an attempt, and how far each is from its beginning: seconds or samples."""
    table = one.table
    held = table.column("step")
    at = np.linspace(0, len(held) - 1, min(len(held), _MAX_KNOTS)).round().astype(np.int64)
    steps = np.concatenate([np.array([mark.step for mark in table.marks]), held[at]])
    if by == "step" or table.first is None or not len(steps):
        return steps, steps
    if by == "time":
        begun = table.first.ended - float(np.nan_to_num(table.first.step_s))
        ended = table.column("ended")[at]
        return steps, np.concatenate([[mark.ended for mark in table.marks], ended]) - begun
    samples = table.column("samples")
    counted = np.cumsum(np.where(np.isnan(samples), one.samples_per_step(), samples))[at]
    return steps, np.concatenate([[mark.samples for mark in table.marks], table.dropped_samples + counted])


@dataclass(frozen=True)
class LossCurve:
    """What to draw of a run's loss: the raw one as the band of its bins, its average, held-out losses."""

    x: Floats
    low: Floats
    high: Floats
    average_x: Floats
    average: Floats
    held_out_x: Floats
    held_out: Floats

    @property
    def is_empty(self) -> bool:
        return not len(self.average_x)


def loss_curve(
    fold: RunState, axis: StepAxis, most: int = 400, x_range: tuple[float, float] | None = None
) -> LossCurve:
    """At most about `most` bins of each, between two places of the axis where they are given."""
    raw = _window(fold.losses, axis, most, x_range)
    average_x, low, high = _window(fold.loss_ema, axis, most, x_range)
    held_x, held_out, _ = _window(fold.held_out, axis, 1_000, x_range)
    return LossCurve(*raw, average_x, (low + high) / 2, held_x, held_out)


def _window(
    curve: Curve, axis: StepAxis, most: int, within: tuple[float, float] | None
) -> tuple[Floats, Floats, Floats]:
    first, last = curve.first_x, curve.last_x
    if first is None or last is None or axis.end is None:
        return np.empty(0), np.empty(0), np.empty(0)
    if within is not None:
        first, last = max(first, axis.step_at(within[0])), min(last, axis.step_at(within[1]))
    window = curve.window(first, max(first, last), most)
    x = axis.positions_of(window.x)
    return x, window.low.astype(np.float64), window.high.astype(np.float64)
