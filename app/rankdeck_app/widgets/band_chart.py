"""Chart of one quantity over time for many devices: a line for the lead device, a min-max band for the
others.

The gap between the line and the band is shaded; limits are dashed lines. Sixteen overlapping lines would hide
the important information: how far one device is from the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtGui import QFontMetrics

from rankdeck.run.series import Curve, Floats, Series
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.chart_colors import ChartColors, byte_unit
from rankdeck_app.widgets.crosshair import CurvePoints as DrawnCurve
from rankdeck_app.widgets.painting import chart_font, dashed_pen
from rankdeck_app.widgets.plot_axes import TimeAxis, padded_range
from rankdeck_app.widgets.time_text import time_label
from rankdeck_app.widgets.zoom_plot import LABEL_MARGIN, ZoomPlot, value_before

_COLUMNS = 240
_LABEL_HEIGHT = 15.0
_MAX_LABEL_DISTANCE_PX = 48.0
# With fewer visible samples than this, each one gets a dot: the line between two of them is not measured.
_MAX_MARKED_SAMPLES = 40
_X_PADDING = 0.012
"""Padding around the samples, as a share of the x range, so that dots at the ends are not cut off."""
FindPosition = Callable[[float], tuple[float, float] | None]
"""Function that takes a label's width in pixels and returns the label's position; None if there is no
room."""


@dataclass(frozen=True)
class MemoryLimit:
    """A labelled dashed line, such as the capacity or the predicted peak; `short` is its label in a narrow
    plot."""

    name: str
    num_bytes: int
    is_hard: bool = True
    short: str = ""


@dataclass(frozen=True)
class BandChartData:
    """Memory histories: bytes as a function of the seconds since the start of the run.

    `lead` is the index of the device that is highlighted because it uses notably more memory than the others.
    If it is None, no device does, and the first device is drawn as the line. `x_range` is the visible range.
    If `is_live`, the last values extend to now and ticks count back from now. An empty chart shows
    `empty_text`; if `empty_text` is empty, it shows "waiting for the first sampled step".
    """

    labels: Sequence[str] = ()
    histories: Sequence[Curve | Series] = ()
    lead: int | None = None
    limits: Sequence[MemoryLimit] = ()
    x_range: tuple[float, float] = (0.0, 60.0)
    is_live: bool = False
    empty_text: str = ""

    @property
    def is_notable(self) -> bool:
        return self.lead is not None

    @property
    def line(self) -> int:
        """Index of the device that is drawn as a line."""
        return self.lead or 0


class BandChart(ZoomPlot):
    """Plot of a run's device memory over time."""

    def __init__(self, theme: Theme, name: str = "") -> None:
        super().__init__(theme, TimeAxis(), name)
        self.data = BandChartData()
        self._label_metrics = QFontMetrics(chart_font(11, bold=True))
        self._low, self._high, self._gap_top = (pg.PlotCurveItem() for _ in range(3))
        self._lead = pg.PlotCurveItem(antialias=True, connect="finite")
        self._dots, self._rest_dots = (pg.ScatterPlotItem(symbol="o", size=4, pxMode=True) for _ in range(2))
        self._hold_line, self._rest_hold_lines = (pg.PlotCurveItem(connect="finite") for _ in range(2))
        self._band = pg.FillBetweenItem(self._low, self._high)
        self._gap = pg.FillBetweenItem(self._high, self._gap_top)
        self._limit_lines: list[pg.InfiniteLine] = []
        self._limit_labels: list[pg.TextItem] = []
        self._lead_label, self._rest_label = self.add_label(right=1), self.add_label(right=1)
        self._gap_top.hide()
        lines = (self._low, self._high, self._gap_top, self._hold_line, self._rest_hold_lines, self._lead)
        # From back to front.
        for item in (self._gap, self._band, *lines, self._rest_dots, self._dots):
            self.addItem(item, ignoreBounds=True)
        self.retheme()

    def set_data(self, data: BandChartData) -> None:
        changed_limits = data.limits != self.data.limits
        recolor = data.is_notable != self.data.is_notable
        self.data = data
        if changed_limits:
            self._rebuild_limits()
        if recolor:
            self.recolor(self._colors)
        self.request_draw()

    def _rebuild_limits(self) -> None:
        for line, label in zip(self._limit_lines, self._limit_labels, strict=True):
            self.removeItem(line)
            self.remove_label(label)
        self._limit_lines = [
            pg.InfiniteLine(limit.num_bytes, angle=0, movable=False) for limit in self.data.limits
        ]
        self._limit_labels = [self.add_label(right=1) for _ in self.data.limits]
        for line in self._limit_lines:
            self.addItem(line, ignoreBounds=True)
        self._recolor_limits(self._colors)

    def recolor(self, colors: ChartColors) -> None:
        lead = colors.lead if self.data.is_notable else colors.foreground
        self._lead.setPen(pg.mkPen(lead))
        for dots, color in ((self._dots, lead), (self._rest_dots, colors.rest)):
            dots.setPen(pg.mkPen(None))
            dots.setBrush(pg.mkBrush(color))
        for hold_line, color in ((self._hold_line, lead), (self._rest_hold_lines, colors.rest)):
            pen = dashed_pen(color)
            pen.setCosmetic(True)
            hold_line.setPen(pen)
        for edge in (self._low, self._high):
            edge.setPen(pg.mkPen(colors.rest))
        self._band.setBrush(pg.mkBrush(colors.rest_fill))
        self._gap.setBrush(pg.mkBrush(colors.lead_fill))
        self._lead_label.setColor(colors.lead_text if self.data.is_notable else colors.foreground)
        self._rest_label.setColor(colors.rest)
        for label in (self._lead_label, self._rest_label):
            label.setFont(chart_font(11, bold=True))
        self._recolor_limits(colors)

    def _recolor_limits(self, colors: ChartColors) -> None:
        for limit, line, label in zip(self.data.limits, self._limit_lines, self._limit_labels, strict=True):
            color = colors.capacity if limit.is_hard else colors.muted
            pen = dashed_pen(color)
            pen.setCosmetic(True)  # one pixel at any zoom
            line.setPen(pen)
            label.setColor(color)
            label.setFont(chart_font(11, bold=True))

    def draw(self) -> None:
        data = self.data
        self.getPlotItem().getAxis("bottom").now_s = (
            data.x_range[1] if self.is_following and data.is_live else None
        )
        lead = data.histories[data.line] if data.histories else None
        if lead is None or not len(lead):
            self.show_empty(data.empty_text or tr("waiting for the first sampled step"))
            self._place_labels(None, None)
            return
        self.set_empty_text("")
        x0, x1 = self.choose_x_range(self._followed_x(), lead.first_x or 0.0)
        window = lead.window(x0, x1, self.max_points())
        self._lead.setData(*window.polyline())
        sampled = (
            # `low is high` if every bin is a single sample.
            window.x if window.low is window.high and len(window.x) < _MAX_MARKED_SAMPLES else window.x[:0]
        )
        self._dots.setData(sampled, window.high[: len(sampled)])
        rest = [series for index, series in enumerate(data.histories) if index != data.line and len(series)]
        grid, low, high = _compute_band(rest, x0, x1)
        for edge, y in ((self._low, low), (self._high, high)):
            edge.setData(grid, y)
        # A band this narrow would be invisible, so dots replace it.
        is_point = len(grid) > 0 and grid[-1] - grid[0] < _X_PADDING * (x1 - x0)
        self._rest_dots.setData(*((grid[[0, 0]], [low.min(), high.max()]) if is_point else ([], [])))
        self._gap_top.setData(
            grid, np.maximum(high, _interpolate(lead, grid, x0, x1)[1]) if len(grid) else high
        )
        self._draw_hold_lines(lead, rest)
        visible_values = np.concatenate(
            [window.high, high, [_last_value(series) for series in (lead, *rest)]]
        )
        top = max(1.0, float(np.nanmax(visible_values, initial=0.0)))
        top = max([top, *(float(limit.num_bytes) for limit in data.limits)])
        divisor, unit = byte_unit(top)
        axis = self.getPlotItem().getAxis("left")
        if axis.unit != unit:
            axis.unit = unit
            axis.setWidth(58)
        axis.setScale(1 / divisor)
        # Room for a label above the highest line.
        air = 1.0 + 20.0 / max(60.0, float(self.getViewBox().height()))
        y_range = (0.0, padded_range(0.0, air * top / divisor)[1] * divisor)
        self.show_ranges((x0, x1), y_range)
        last_values = [_last_value(series) for series in rest]
        band = (np.append(low, min(last_values)), np.append(high, max(last_values))) if rest else None
        self._place_labels(np.append(window.high, _last_value(lead)), band)

    def _followed_x(self) -> tuple[float, float]:
        x0, x1 = self.data.x_range
        air = 0.0 if self.data.is_live else _X_PADDING * (x1 - x0)
        return x0 - air, x1 + air

    def _draw_hold_lines(self, lead: Curve | Series, rest: Sequence[Curve | Series]) -> None:
        """Extend the last values to now with dashed lines, to show that nothing newer was measured."""
        now = self.data.x_range[1]
        is_live = self.data.is_live
        self._hold_line.setVisible(is_live)
        self._rest_hold_lines.setVisible(is_live and bool(rest))
        if not is_live:
            return
        since = lead.last_x or 0.0
        self._hold_line.setData([since, max(since, now)], [_last_value(lead)] * 2)
        if rest:
            since = min(series.last_x or 0.0 for series in rest)
            ends, last_values = [since, max(since, now)], [_last_value(series) for series in rest]
            low, high = min(last_values), max(last_values)
            self._rest_hold_lines.setData([*ends, np.nan, *ends], [low, low, np.nan, high, high])

    def x_text(self, x: float) -> str:
        return time_label(x)

    def _place_labels(self, lead: NDArray[np.floating] | None, band: tuple[Floats, Floats] | None) -> None:
        """Place the labels at the right: the lead's above its line, the others' below the band.

        Labels never overlap and are never cut off, and they avoid curves where possible. A label that does
        not fit is hidden; the labels of limits are placed last, so they are the first to be hidden.
        """
        data = self.data
        above = 6.0 if self.is_following else 32.0  # room for the reset button of a zoomed plot
        limits = [limit.num_bytes for limit in data.limits]
        placement = _LabelPlacement(self.getViewBox(), limits, self._drawn_curves(), above)
        for label in (self._lead_label, self._rest_label):
            label.hide()
        if lead is not None:
            name = data.labels[data.line]
            top = float(lead[-1])
            names = tr("{device} lead", device=name) if data.is_notable else name, name
            self._place_label(self._lead_label, names, partial(placement.find_position, top, top, above=True))
        if band is not None:
            low, high = float(band[0][-1]), float(band[1][-1])
            self._place_label(
                self._rest_label, self._rest_names(), partial(placement.find_position, low, high)
            )
        for limit, label in zip(data.limits, self._limit_labels, strict=True):
            find_limit_position = partial(placement.find_position, limit.num_bytes, limit.num_bytes)
            self._place_label(label, (limit.name, limit.short), find_limit_position)

    def _place_label(self, label: pg.TextItem, names: Sequence[str], find_position: FindPosition) -> None:
        """Show the label with the first of `names` that fits, or hide the label if there is no room."""
        room = 0.97 * self.getViewBox().width() - 2 * LABEL_MARGIN
        widths = {name: self._label_metrics.horizontalAdvance(name) for name in names if name}
        name = next((name for name, width in widths.items() if width <= room), "")
        at = find_position(widths[name] + 2 * LABEL_MARGIN) if name else None
        label.setVisible(at is not None)
        if at is not None:
            if label.toPlainText() != name:
                label.setText(name)
            label.setPos(*at)

    def _rest_names(self) -> tuple[str, ...]:
        others = [label for index, label in enumerate(self.data.labels) if index != self.data.line]
        if len(others) == 1:
            return (others[0],)
        first, last = others[0], others[-1].rsplit(" ", 1)[-1]
        is_one_kind = len({label.rpartition(" ")[0] for label in others}) == 1  # on one host
        in_a_row = is_one_kind and self.data.line in (0, len(others))
        name = f"{first}–{last}" if in_a_row else tr("{n} others", "{n} other", len(others))
        return tr("{devices} min…max", devices=name), name

    def readout_text(self, x: float) -> str:
        data = self.data
        if not data.histories or not any(len(series) for series in data.histories):
            return ""
        divisor, unit = byte_unit(max(self.getViewBox().viewRange()[1][1], 1))
        bounds_by_index = {index: value_before(series, x) for index, series in enumerate(data.histories)}
        values = {index: bounds[1] for index, bounds in bounds_by_index.items() if bounds is not None}
        texts = [time_label(x)]
        if data.line in values:
            texts.append(f"{data.labels[data.line]} {values.pop(data.line) / divisor:.1f} {unit}")
        others = values.values()
        if others:
            low, high = min(others) / divisor, max(others) / divisor
            texts.append(tr("others {least:.1f}…{most:.1f}", least=low, most=high))
        return "  ".join(texts) if len(texts) > 1 else ""


def _last_value(series: Curve | Series) -> float:
    """Return the newest value of a series; 0 if its last reading failed."""
    return float(np.nan_to_num(series.last_y or 0.0))


class _LabelPlacement:
    """Free positions for labels in a view: clear of other labels and limits, and preferably of curves."""

    def __init__(
        self, view: pg.ViewBox, limits: Sequence[float], curves: Sequence[DrawnCurve], above_px: float
    ) -> None:
        self._above_px = above_px
        (x0, x1), (self._y0, self._y1) = view.viewRange()
        self._pixel = (self._y1 - self._y0) / max(1.0, float(view.height()))
        self._x_pixel = (x1 - x0) / max(1.0, float(view.width()))
        self._x = float(x0 + 0.97 * (x1 - x0))
        self._limits, self._curves = limits, curves
        self._used_levels: list[float] = []

    def find_position(
        self, lower: float, upper: float, width_px: float, *, above: bool = False
    ) -> tuple[float, float] | None:
        """Return the free position that is nearest to the line or band from `lower` to `upper`; None if no
        position is free.

        Positions above the line or band are preferred if `above` is set, otherwise positions below it.
        """
        # Labels start 10 px off a line: half their height and a small gap.
        up = [upper + (10 + step) * self._pixel for step in range(200)]
        down = [lower - (10 + step) * self._pixel for step in range(200)]
        candidates = (*up[:20], *down, *up) if above else (*down[:20], *up, *down)
        free = [y for y in candidates if self._is_free(y)]
        spans, half = self._spans(width_px), _LABEL_HEIGHT * self._pixel / 2
        reach = _MAX_LABEL_DISTANCE_PX * self._pixel  # a farther label could belong to any line
        near = [y for y in free if lower - reach <= y <= upper + reach]
        clear = (y for y in near if not any(low < y + half and y - half < high for low, high in spans))
        y = next(clear, free[0] if free else None)
        if y is None:
            return None
        self._used_levels.append(y)
        return self._x, y

    def _spans(self, width_px: float) -> list[tuple[float, float]]:
        """Return (min, max) of each curve over the x range of a label that ends at `_x`, `width_px` wide.

        Curves without values in that range are left out."""
        left = self._x - width_px * self._x_pixel
        spans = []
        for x, y in self._curves:
            ends = np.interp([left, self._x], x, y, left=np.nan, right=np.nan)
            levels = np.append(ends, y[(x >= left) & (x <= self._x)])
            finite_levels = levels[np.isfinite(levels)]
            if len(finite_levels):
                spans.append((float(finite_levels.min()), float(finite_levels.max())))
        return spans

    def _is_free(self, y: float) -> bool:
        if not self._y0 + 8 * self._pixel <= y <= self._y1 - self._above_px * self._pixel:
            return False
        apart = _LABEL_HEIGHT * self._pixel
        return all(abs(y - other) >= apart for other in self._used_levels) and all(
            abs(y - limit) >= apart / 2 for limit in self._limits
        )


def _interpolate(series: Curve | Series, grid: Floats, x0: float, x1: float) -> tuple[Floats, Floats]:
    """Return (min, max) of a series at the grid points; NaN before its first point and after its last
    point."""
    window = series.window(x0, x1, 2 * _COLUMNS)
    low, high = (np.interp(grid, window.x, y, left=np.nan) for y in (window.low, window.high))
    return low, high


def _compute_band(rest: Sequence[Curve | Series], x0: float, x1: float) -> tuple[Floats, Floats, Floats]:
    """Return (x, min, max) across all series on a common grid, which spans the points of all series between
    `x0` and `x1`."""
    start = max(x0, min((series.first_x or 0.0 for series in rest), default=x1))
    end = min(x1, max((series.last_x or 0.0 for series in rest), default=x0))
    if not rest or end < start:
        return np.empty(0), np.empty(0), np.empty(0)
    grid = np.linspace(start, end, _COLUMNS)
    pairs = [_interpolate(series, grid, x0, x1) for series in rest]
    low = np.fmin.reduce([pair[0] for pair in pairs])
    high = np.fmax.reduce([pair[1] for pair in pairs])
    is_finite = np.isfinite(low) & np.isfinite(high)
    return grid[is_finite], low[is_finite], high[is_finite]
