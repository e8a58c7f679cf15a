"""The drawings of the page as numbers: the template turns them into SVG and escapes every word."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rankdeck.base.units import format_clock, format_count
from rankdeck.compare.curves import LossLine
from rankdeck.compare.drawing import DASHES, NUM_TINTS, label_heights, round_step, ticks
from rankdeck.compare.table import letter_of
from rankdeck.run.series import Floats

WIDTH, HEIGHT = 1040, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 40, 12, 28
_MOST_WITH_RAW = 3
"""Raw losses of more runs hide their averages."""


class Tick(NamedTuple):
    at: float
    label: str


class DrawnLine(NamedTuple):
    """One run: its tint and dash, and points as SVG takes them. Empty where it has told no loss."""

    letter: str
    tint: int
    dash: str
    average: str
    raw: str
    held_out: list[tuple[float, float]]
    end: tuple[float, float, float]
    """Of the average (x, y), and the height of the letter beside it."""


class LossChart(NamedTuple):
    by: str
    unit: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    lines: list[DrawnLine]


class _Plane(NamedTuple):
    """Where a place and a loss lie in the drawing; what is far outside stays just outside."""

    end: float
    low: float
    high: float

    def x(self, places: Floats) -> Floats:
        return _LEFT + places / self.end * (WIDTH - _LEFT - _RIGHT)

    def y(self, losses: Floats) -> Floats:
        down = (self.high - losses) / (self.high - self.low)
        return np.clip(_TOP + down * (HEIGHT - _TOP - _BOTTOM), -HEIGHT, 2.0 * HEIGHT)

    def point(self, place: float, loss: float) -> tuple[float, float]:
        x, y = self.x(np.array([place])), self.y(np.array([loss]))
        return round(float(x[0]), 1), round(float(y[0]), 1)


def loss_chart(by: str, lines: Sequence[LossLine]) -> LossChart | None:
    """Losses over one axis; None where no run has told a loss there."""
    told = {place: line for place, line in enumerate(lines) if not line.is_empty}
    if not told:
        return None
    end = max(float(line.average_x[-1]) for line in told.values()) or 1.0
    plane = _Plane(end, *_heights(list(told.values())))
    ends = [plane.point(float(line.average_x[-1]), float(line.average[-1])) for line in told.values()]
    heights = label_heights(ends, _TOP + 4, HEIGHT - _BOTTOM - 2)
    return LossChart(
        by,
        {"step": "steps", "time": "of training, without pauses", "samples": "samples"}[by],
        [Tick(plane.point(at, plane.low)[0], _place(by, at, end)) for at in ticks(0, end, 8)],
        [
            Tick(plane.point(0, at)[1], f"{at:.{_digits(plane.low, plane.high)}f}")
            for at in ticks(plane.low, plane.high, 6)
        ],
        [
            DrawnLine(
                letter_of(place),
                place % NUM_TINTS,
                " ".join(f"{length:g}" for length in DASHES[place]),
                _points(plane.x(line.average_x), plane.y(line.average)),
                _raw(line, plane) if len(told) <= _MOST_WITH_RAW else "",
                [plane.point(*pair) for pair in _known(line)],
                (*point, height),
            )
            for (place, line), point, height in zip(told.items(), ends, heights, strict=True)
        ],
    )


def _known(line: LossLine) -> list[tuple[float, float]]:
    pairs = zip(line.held_out_x.tolist(), line.held_out.tolist(), strict=True)
    return [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]


def _heights(lines: Sequence[LossLine]) -> tuple[float, float]:
    """What the averages and held-out losses need; a first step far above the rest does not flatten it."""
    values = np.concatenate([part for line in lines for part in (line.average, line.held_out)])
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high, usual = float(values.min()), float(values.max()), float(np.percentile(values, 98))
    if high > low + 3 * (usual - low) > low:
        high = usual + 0.2 * (usual - low)
    room = 0.05 * (high - low) or abs(high) or 1.0
    return low - room, high + room


def _points(xs: Floats, ys: Floats) -> str:
    return " ".join(
        f"{a:.1f},{b:.1f}" for a, b in zip(xs.tolist(), ys.tolist(), strict=True) if math.isfinite(a + b)
    )


def _raw(line: LossLine, plane: _Plane) -> str:
    xs = np.repeat(line.x, 2)
    ys = np.empty(2 * len(line.x))
    ys[0::2], ys[1::2] = line.low, line.high
    return _points(plane.x(xs), plane.y(ys))


def _digits(low: float, high: float) -> int:
    return max(0, -math.floor(math.log10(round_step(high - low, 6)) + 1e-9))


def _place(by: str, at: float, end: float) -> str:
    if by == "time":
        return format_clock(at) if end >= 8 else f"{at:g} s"
    return format_count(at)
