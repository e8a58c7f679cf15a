"""Axes of plots: their ends, ticks and labels.

An axis with data has at least three fully visible ticks, unless their labels would touch, because a single
tick does not convey a scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pyqtgraph as pg
from PySide6.QtCore import QRectF
from PySide6.QtGui import QPainter

from rankdeck.base.phrases import tr_noop
from rankdeck.base.units import format_count
from rankdeck_app.language import tr
from rankdeck_app.widgets.curve_style import SAMPLES, STEP, TIME
from rankdeck_app.widgets.time_text import ago_label, elapsed_label

_TIME_STEPS_S = (
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400,
    21600, 43200, 86400,
)  # fmt: skip
_MIN_TICKS, _MAX_TICKS = 3, 8
# Half a label's width: a tick closer to an end has no label.
_EDGE_PX = 16.0
_HALF_LINE_PX, _MIN_PITCH_PX = 7.0, 13.0
_HALF_LABEL_PX, _LABEL_GAP_PX = 30, 6.0
AXIS_UNITS = {STEP: tr_noop("{count} steps"), TIME: "", SAMPLES: tr_noop("{count} samples")}
TickLabel = tuple[QRectF, Any, str]
"""Box, alignment flags and text of a tick label."""


def round_up_axis_end(value: float, limit: float | None = None) -> float:
    """Return the end of an axis: `value` rounded up to a multiple of one eighth of the largest power of two
    that is not above it, or `limit` if that is between `value` and the rounded value."""
    if value <= 0:
        return limit or 1.0
    # The axis grows in steps of an eighth to a sixteenth instead of with every value.
    quantum = 2.0 ** (math.floor(math.log2(value)) - 3)
    end = math.ceil(value / quantum) * quantum
    return min(end, limit) if limit is not None and limit >= value else end


def padded_range(low: float, high: float) -> tuple[float, float]:
    """Return a padded y range, rounded outwards so that noise does not move it."""
    span = high - low
    if span <= 0:
        span = abs(high) or 1.0
        return low - span / 2, high + span / 2
    quantum = 10.0 ** math.floor(math.log10(span)) / 4
    return math.floor((low - 0.03 * span) / quantum) * quantum, math.ceil(
        (high + 0.03 * span) / quantum
    ) * quantum


def count_ticks(spacing: float, low: float, high: float, size: float) -> int:
    """Count the ticks that are far enough from the ends of an axis of `size` pixels to have a label."""
    edge = (high - low) * min(0.2, _EDGE_PX / max(1.0, size))
    return max(0, math.floor((high - edge) / spacing) - math.ceil((low + edge) / spacing) + 1)


def refine_spacing(
    spacing: float, low: float, high: float, size: float, finer: Callable[[float], float | None]
) -> float:
    """Return `spacing`, reduced by repeated calls of `finer` until enough ticks are visible; `finer` returns
    None if there is no smaller spacing."""
    while count_ticks(spacing, low, high, size) < _MIN_TICKS and (smaller := finer(spacing)) is not None:
        spacing = smaller
    return spacing


class _BottomAxis(pg.AxisItem):
    """Bottom axis whose last label includes the unit.

    That label is moved inwards so that it is not cut off, and can replace the label before it.
    """

    unit = ""
    """Template that adds the unit, such as "{count} steps"."""

    def __init__(self) -> None:
        super().__init__("bottom")
        self.setStyle(hideOverlappingLabels=_HALF_LABEL_PX)

    def generateDrawSpecs(self, p: QPainter) -> Any:
        specs = super().generateDrawSpecs(p)
        if specs is None:
            return None
        line, ticks, labels = specs
        room = self.mapRectFromParent(self.geometry())
        visible_labels = [label for label in labels if label[0].left() >= room.left()]
        return line, ticks, self._fit_labels(visible_labels, room, p)

    def _fit_labels(self, labels: list[TickLabel], room: QRectF, painter: QPainter) -> list[TickLabel]:
        if not labels:
            return []
        *others, (box, flags, text) = labels
        fewer = others[:-1] if self.unit and len(others) >= _MIN_TICKS else others
        with_unit = tr(self.unit, count=text) if self.unit else text
        for before, label_text in ((others, with_unit), (fewer, with_unit), (others, text)):
            wide = QRectF(0, box.y(), painter.fontMetrics().horizontalAdvance(label_text) + 2, box.height())
            wide.moveCenter(box.center())
            wide.moveRight(min(wide.right(), room.right()))
            if not before or wide.left() >= before[-1][0].right() + _LABEL_GAP_PX:
                return [*before, (wide, flags, label_text)]
        return others


class TimeAxis(_BottomAxis):
    """Axis of seconds since the start of the run, with labels such as 0:40, 12:00 or 1:30:00; if `now_s` is
    set, the labels are ages, such as -40 s or now."""

    now_s: float | None = None

    def tickSpacing(self, minVal: float, maxVal: float, size: float) -> list[tuple[float, float]]:  # noqa: N803
        min_step_s = (maxVal - minVal) / max(1.0, size / 70)
        at = next((at for at, step in enumerate(_TIME_STEPS_S) if step >= min_step_s), len(_TIME_STEPS_S) - 1)
        finer = dict(zip(_TIME_STEPS_S[1:], _TIME_STEPS_S[:-1], strict=True))
        spacing = refine_spacing(_TIME_STEPS_S[at], minVal, maxVal, size, finer.get)
        return [(float(spacing), self.now_s or 0.0)]

    def tickValues(self, minVal: float, maxVal: float, size: float) -> list[tuple[float, list[float]]]:  # noqa: N803
        """Return multiples of the spacing, counted from `now_s` if it is set."""
        [(spacing, origin)] = self.tickSpacing(minVal, maxVal, size)
        first = math.ceil((minVal - origin) / spacing)
        # The tolerance keeps a tick at the very end.
        last = math.floor((maxVal - origin) / spacing + 1e-9)
        return [(spacing, [origin + spacing * at for at in range(first, last + 1)])]

    def tickStrings(self, values: Sequence[float], scale: float, spacing: float) -> list[str]:
        if self.now_s is not None:
            return [ago_label(value - self.now_s) for value in values]
        return [elapsed_label(value, spacing) for value in values]


def round_up(value: float) -> float:
    """Return the value rounded up to 1, 2, 5 or 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    # The tolerance keeps a rounding error from choosing the next factor.
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= value * (1 - 1e-9))


def _finer_count(spacing: float) -> float | None:
    # With 2.6, round_up goes from 10 to 5, from 5 to 2 and from 2 to 1.
    return None if spacing <= 1 else float(round_up(spacing / 2.6))


class CountAxis(TimeAxis):
    """Axis of steps or samples as whole numbers in groups of three digits, never in scientific notation. If
    `unit` is empty, the axis shows seconds, as in TimeAxis."""

    unit = AXIS_UNITS[STEP]

    def tickSpacing(self, minVal: float, maxVal: float, size: float) -> list[tuple[float, float]]:  # noqa: N803
        if not self.unit:
            return super().tickSpacing(minVal, maxVal, size)
        spacing = round_up(max(1.0, (maxVal - minVal) / max(1.0, size / 56)))
        return [(refine_spacing(spacing, minVal, maxVal, size, _finer_count), 0.0)]

    def tickStrings(self, values: Sequence[float], scale: float, spacing: float) -> list[str]:
        if not self.unit:
            return super().tickStrings(values, scale, spacing)
        return [format_count(value) for value in values]


def log_ticks(low: float, high: float, size: float) -> list[float]:
    """Return the ticks of a log axis from `low` to `high`, as base-10 exponents.

    The ticks are at 1, 2 and 5 times each power of ten, or only at the powers. In a range of at most a
    decade, they are evenly spaced if neither choice gives a suitable number of ticks.
    """
    max_ticks = max(2, int(size / 24))
    for factors in ((1, 2, 5), (1,)):
        powers = range(math.floor(low), math.ceil(high) + 1)
        ticks = [power + math.log10(factor) for power in powers for factor in factors]
        inside = [tick for tick in ticks if low <= tick <= high]
        if 2 < len(inside) <= max_ticks:
            return inside
        # Fewer factors would leave even fewer ticks.
        if len(inside) <= 2:
            break
    if high - low > 1:
        return inside[:: max(1, len(inside) // max_ticks)]
    spacing = round_up((10**high - 10**low) / max_ticks)
    first = math.ceil(10**low / spacing)
    return [math.log10(spacing * at) for at in range(max(1, first), math.floor(10**high / spacing) + 1)]


class ValueAxis(pg.AxisItem):
    """Axis with a few plain numbers. Only the top label shows the unit, to save space in small charts."""

    unit = ""
    is_log = False
    """Whether the axis is logarithmic; its values are then base-10 exponents."""

    def boundingRect(self) -> QRectF:
        """Return the rectangle extended by half a line at the bottom, because the label of the lowest tick
        extends below the axis."""
        return QRectF(super().boundingRect()).adjusted(0, 0, 0, _HALF_LINE_PX)

    def tickValues(self, minVal: float, maxVal: float, size: float) -> list[tuple[float, list[float]]]:  # noqa: N803
        if not self.is_log:
            return list(super().tickValues(minVal, maxVal, size))
        return [(1.0, log_ticks(minVal, maxVal, size))]

    def tickSpacing(self, minVal: float, maxVal: float, size: float) -> list[tuple[float, float]]:  # noqa: N803
        span = maxVal - minVal
        if span <= 0:
            return [(1.0, 0.0)]

        def finer(spacing: float) -> float | None:
            smaller = round_up(spacing / 2.6)
            return smaller if size * smaller / span >= _MIN_PITCH_PX else None

        spacing = round_up(span / min(_MAX_TICKS, max(2.0, size / 24)))
        return [(refine_spacing(spacing, minVal, maxVal, size, finer), 0.0)]

    def tickStrings(self, values: Sequence[float], scale: float, spacing: float) -> list[str]:
        if self.is_log:
            return [f"{10**value * scale:.3g}" for value in values]
        shown_spacing = spacing * scale
        digits = max(0, -math.floor(math.log10(shown_spacing) + 1e-9)) if shown_spacing > 0 else 0
        # Thin spaces between groups of three digits.
        return [f"{value * scale:,.{digits}f}".replace(",", "\u2009") for value in values]

    def generateDrawSpecs(self, p: QPainter) -> Any:
        specs = super().generateDrawSpecs(p)
        if not self.unit or not specs or not specs[2]:
            return specs
        line, ticks, [*others, (box, flags, text)] = specs
        return line, ticks, [*others, (box, flags, f"{text} {self.unit}")]
