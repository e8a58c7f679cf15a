"""Compute losses over steps, over seconds of training and over samples, for charts.

A RunState stores its loss curves over steps. The position of a step in time or samples is computed from the
step table: its rows in memory and, for older rows, marks at regular intervals (run/step_table.py). Pauses
between attempts are not counted. The curve of a single attempt starts at that attempt's first step; its
positions in samples also count the samples of the run's earlier steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankdeck.run.attempt import Attempt
from rankdeck.run.run_state import RunState
from rankdeck.run.series import Curve, Floats

AXES = ("step", "time", "samples")
_MAX_KNOTS = 4096
"""Maximum number of knots taken from an attempt's rows in memory. Positions between knots are interpolated
linearly."""


class StepAxis:
    """A run's steps on an axis of steps, seconds or samples; `steps` and `positions` are ascending."""

    def __init__(self, steps: Floats, positions: Floats) -> None:
        self._steps, self._positions = steps, positions

    @property
    def end(self) -> float | None:
        """Position of the last step; None if unknown."""
        return float(self._positions[-1]) if len(self._positions) else None

    def positions_of(self, steps: Floats) -> Floats:
        if not len(self._steps):
            return np.full(len(steps), np.nan)
        return np.interp(steps, self._steps, self._positions)

    def step_at(self, position: float) -> float:
        """Return the step at a position; outside the axis, the first or the last step."""
        return float(np.interp(position, self._positions, self._steps)) if len(self._steps) else 0.0


def step_axis(state: RunState, by: str) -> StepAxis:
    """Build the axis for `by`, one of AXES ("step", "time", "samples"); it is empty if the steps' samples or
    times are unknown."""
    assert by in AXES, by
    steps, positions = [np.empty(0)], [np.empty(0)]
    end = 0.0
    for attempt in state.attempts.values():
        knot_steps, rise = _knots(attempt, by)
        if not len(knot_steps):
            continue
        if by == "samples" and len(steps) == 1:
            # For a single attempt that was resumed: assume that each earlier step had as many samples as its
            # own.
            end = (knot_steps[0] - 1) * float(rise[-1]) / len(attempt.table)
        steps.append(knot_steps)
        positions.append(knot_steps if by == "step" else end + rise)
        end = float(positions[-1][-1])
    together = np.concatenate(positions)
    if not np.isfinite(together).all():
        return StepAxis(np.empty(0), np.empty(0))
    # np.interp needs ascending positions.
    return StepAxis(np.concatenate(steps), np.maximum.accumulate(together))


def _knots(attempt: Attempt, by: str) -> tuple[Floats, Floats]:
    """Return (steps, positions) of the points between which an attempt's axis is interpolated. Positions are
    seconds or samples since the attempt's start; if `by` is "step", they are the steps."""
    table = attempt.table
    held_steps = table.column("step")
    at = np.linspace(0, len(held_steps) - 1, min(len(held_steps), _MAX_KNOTS)).round().astype(np.int64)
    steps = np.concatenate([np.array([mark.step for mark in table.marks]), held_steps[at]])
    if by == "step" or table.first is None or not len(steps):
        return steps, steps
    if by == "time":
        start_time = table.first.ended - float(np.nan_to_num(table.first.step_s))
        ended = table.column("ended")[at]
        return steps, np.concatenate([[mark.ended for mark in table.marks], ended]) - start_time
    samples = table.column("samples")
    counted = np.cumsum(np.where(np.isnan(samples), attempt.samples_per_step(), samples))[at]
    return steps, np.concatenate([[mark.samples for mark in table.marks], table.dropped_samples + counted])


@dataclass(frozen=True)
class LossCurve:
    """A run's loss for a chart: raw losses as a band (lowest and highest per bin), their average, and
    held-out losses."""

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
    state: RunState, axis: StepAxis, max_bins: int = 400, x_range: tuple[float, float] | None = None
) -> LossCurve:
    """Return a run's loss curve with up to about `max_bins` bins; `x_range` limits the curve to a range of
    positions on the axis."""
    raw = _window(state.losses, axis, max_bins, x_range)
    average_x, low, high = _window(state.loss_ema, axis, max_bins, x_range)
    held_x, held_out, _ = _window(state.held_out, axis, 1_000, x_range)
    return LossCurve(*raw, average_x, (low + high) / 2, held_x, held_out)


def _window(
    curve: Curve, axis: StepAxis, max_points: int, within: tuple[float, float] | None
) -> tuple[Floats, Floats, Floats]:
    first, last = curve.first_x, curve.last_x
    if first is None or last is None or axis.end is None:
        return np.empty(0), np.empty(0), np.empty(0)
    if within is not None:
        first, last = max(first, axis.step_at(within[0])), min(last, axis.step_at(within[1]))
    window = curve.window(first, max(first, last), max_points)
    x = axis.positions_of(window.x)
    return x, window.low.astype(np.float64), window.high.astype(np.float64)
