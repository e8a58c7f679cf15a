"""Plot of a long noisy curve over steps: faint raw values, their average on top, and single points.

It draws a limited number of points per curve, so a million steps cost as much as a thousand. Raw values keep
a pen of width 1 (a wider pen takes seconds on a dense curve); the average has few points, so its pen can be
wider. curve_style.py has the styles that the user can choose. On an x axis other than steps, positions are
looked up by step.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray

from rankdeck.base.phrases import tr_noop
from rankdeck.base.units import format_count
from rankdeck.run.series import Curve, Floats, Series, Window
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.chart_colors import ChartColors
from rankdeck_app.widgets.curve_style import SAMPLES, STEP, TIME, X_AXES, CurveStyle
from rankdeck_app.widgets.plot_axes import AXIS_UNITS, CountAxis, padded_range, round_up_axis_end
from rankdeck_app.widgets.time_text import time_label
from rankdeck_app.widgets.zoom_plot import ZoomPlot, value_before

# A wide antialiased line is cheap only while it is short.
_AVERAGE_POINTS = 240
# Time constants of the average that are read before the visible range, so that its start is settled.
_WARM_UP = 5.0

LOSS_LEGEND = (tr_noop("raw"), tr_noop("EMA"), tr_noop("held-out"))
AxisPositions = Callable[[str], tuple[Floats, Floats] | None]
"""Function that takes the name of an x axis and returns (steps, their positions on that axis), both
ascending; None if unknown."""


class CurvePlot(ZoomPlot):
    """Plot of `raw` and `average` over steps, with single `points` (held-out losses).

    The readout lists the series whose `legend` text is not empty. Displayed numbers are multiplied by
    `scale`. An empty plot shows `empty_text`. `axis_positions` returns the positions of steps on another x
    axis; without it, steps are the only x axis.
    """

    def __init__(
        self,
        theme: Theme,
        raw: Curve | Series,
        average: Curve | Series,
        points: Curve | Series | None = None,
        *,
        name: str,
        legend: tuple[str, str, str] = LOSS_LEGEND,
        from_zero: bool = False,
        digits: int = 4,
        scale: float = 1.0,
        axis_positions: AxisPositions | None = None,
    ) -> None:
        super().__init__(theme, CountAxis(), name)
        self._series = (raw, average, points)
        self._legend = legend
        self._from_zero = from_zero
        self._digits = digits
        self._scale = scale
        self._axis_positions = axis_positions
        self.x_axes = X_AXES if axis_positions is not None else X_AXES[:1]
        self.style = CurveStyle()
        self.empty_text = tr("waiting for the first step")
        self._last_step: int | None = None
        self._raw_item = pg.PlotCurveItem(connect="finite")
        self._average_item = pg.PlotCurveItem(connect="finite", antialias=True)
        self._points_item = pg.ScatterPlotItem(symbol="d", size=8, pxMode=True)
        for item in (self._raw_item, self._average_item, self._points_item):
            self.addItem(item, ignoreBounds=True)
        if scale != 1.0:
            self.getPlotItem().getAxis("left").setScale(scale)
        self.retheme()

    def set_curves(
        self,
        raw: Curve | Series,
        average: Curve | Series,
        points: Curve | Series | None = None,
        *,
        digits: int | None = None,
        legend: tuple[str, str, str] | None = None,
    ) -> None:
        """Replace the curves to draw. Change `digits`, the number of decimals in the readout, and `legend`
        only if they are not None."""
        before = self._series, self._digits, self._legend
        self._series = (raw, average, points)
        self._digits = self._digits if digits is None else digits
        self._legend = legend or self._legend
        if before != (self._series, self._digits, self._legend):
            self.request_draw()

    def mark_position(self, at: float) -> float:
        return float(self._to_axis(np.array([at]), self._axis_map())[0])

    def set_style(self, style: CurveStyle) -> None:
        """Set the drawing style. A change of x axis resets the zoom, because each axis has its own range."""
        if style == self.style:
            return
        is_other_axis = style.x_axis != self.style.x_axis
        self.style = style
        plot = self.getPlotItem()
        plot.getAxis("left").is_log = style.is_log
        plot.getAxis("bottom").unit = AXIS_UNITS[style.x_axis]
        for side in ("left", "bottom"):
            plot.getAxis(side).picture = None  # drop the cached picture: the same range may have other ticks
        if is_other_axis:
            self.reset_zoom()
        self.request_draw(now=True)

    def set_last_step(self, num_steps: int | None) -> None:
        """Set the step at which the run will end; the axis never extends beyond it."""
        if num_steps != self._last_step:
            self._last_step = num_steps
            self.request_draw()

    def recolor(self, colors: ChartColors) -> None:
        self._raw_item.setPen(pg.mkPen(colors.raw))
        self._average_item.setPen(pg.mkPen(colors.loss, width=2))
        self._points_item.setPen(pg.mkPen(colors.card))
        self._points_item.setBrush(pg.mkBrush(colors.foreground))

    # Conversion between steps and x positions

    def _axis_map(self) -> tuple[Floats, Floats] | None:
        """Return (steps, positions) of the current x axis; None for the step axis, or as long as the
        positions are unknown."""
        if self.style.x_axis == STEP or self._axis_positions is None:
            return None
        positions = self._axis_positions(self.style.x_axis)
        return positions if positions is not None and len(positions[0]) else None

    @staticmethod
    def _to_axis(steps: Floats, axis_map: tuple[Floats, Floats] | None) -> Floats:
        return steps if axis_map is None else np.interp(steps, *axis_map)

    @staticmethod
    def _step_at(x: float, axis_map: tuple[Floats, Floats] | None) -> float:
        return x if axis_map is None else float(np.interp(x, axis_map[1], axis_map[0]))

    def _to_y(self, values: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the y positions of values; on a log axis, NaN for values that have no logarithm."""
        if not self.style.is_log:
            return values
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(values > 0, np.log10(values), np.nan)

    # Drawing

    def draw(self) -> None:
        raw, _, points = self._series
        if raw.last_x is None:
            self.show_empty(self.empty_text)
            return
        self.set_empty_text("")
        axis_map = self._axis_map()
        x0, x1 = self.choose_x_range(self._followed_x(raw.last_x, axis_map))
        first, last = self._step_at(x0, axis_map), self._step_at(x1, axis_map)
        window = raw.window(first, last, self.max_points())
        x, y = window.polyline()
        self._raw_item.setData(self._to_axis(x, axis_map), self._to_y(y))
        smooth_x, smooth_y = self._smooth(first, last)
        self._average_item.setData(self._to_axis(smooth_x, axis_map), self._to_y(smooth_y))
        point_window = points.window(first, last, 1_000) if points is not None else None
        if point_window is not None:
            self._points_item.setData(self._to_axis(point_window.x, axis_map), self._to_y(point_window.high))
        visible_values = [
            window.low,
            window.high,
            smooth_y,
            *([] if point_window is None else [point_window.high]),
        ]
        y_range = self._y_range(np.concatenate([self._to_y(values) for values in visible_values]))
        if y_range is not None:
            self.show_ranges((x0, x1), y_range)
        self.update_mark()

    def _followed_x(self, last_step: float, axis_map: tuple[Floats, Floats] | None) -> tuple[float, float]:
        limit = float(self._last_step) if self._last_step and axis_map is None else None
        end = round_up_axis_end(float(self._to_axis(np.array([last_step]), axis_map)[0]), limit)
        # Padding after the last step, so that a point on it is not cut.
        return 0.0, 1.015 * max(end, 2.0)

    def _smooth(self, first: float, last: float) -> tuple[Floats, NDArray[np.floating]]:
        """Return (x, y) of the average line from step `first` to step `last`: the run's own average, or the
        raw values with the smoothing that the user chose."""
        weight, max_points = self.style.smoothing, min(_AVERAGE_POINTS, self.max_points())
        if weight is None:
            window = self._series[1].window(first, last, max_points)
            # The middle of each bin: a line through both its ends would show the noise again.
            return window.x, (window.low + window.high) / 2
        if weight == 0:
            return np.empty(0), np.empty(0)
        before = first - _WARM_UP / (1 - weight)
        window = self._series[0].window(before, last, 4 * self.max_points())
        x, y = window.x, smooth_window(window, weight)
        visible = np.flatnonzero(x >= first)
        indices = visible[:: max(1, len(visible) // max_points)]
        if len(visible) and indices[-1] != visible[-1]:
            indices = np.append(indices, visible[-1])
        return x[indices], y[indices]

    def _y_range(self, levels: NDArray[np.floating]) -> tuple[float, float] | None:
        """Return a y range for the visible values. A very high value at the first step does not flatten the
        rest of the curve."""
        finite_levels = levels[np.isfinite(levels)]
        if not len(finite_levels):
            return None
        low, top = float(finite_levels.min()), float(finite_levels.max())
        if self.style.is_log:
            air = 0.04 * (top - low) or 0.2
            return low - air, top + air
        typical = float(np.percentile(finite_levels, 99))
        if typical > low and top > low + 3 * (typical - low):
            top = typical + 0.2 * (typical - low)
        y0, y1 = padded_range(0.0 if self._from_zero else low, top)
        return (0.0 if self._from_zero or (low >= 0 > y0) else y0), y1

    def x_text(self, x: float) -> str:
        if self.style.x_axis == TIME:
            return time_label(x)
        count = format_count(max(0, x))
        if self.style.x_axis == SAMPLES:
            return tr("samples {count}", count=count)
        return tr("step {step}", step=count)

    def readout_text(self, x: float) -> str:
        """Return the step at `x`, its raw value and average, and the latest of `points` up to that step."""
        axis_map = self._axis_map()
        step = self._step_at(x, axis_map)
        texts = [] if axis_map is None else [self.x_text(x)]
        texts.append(tr("step {step}", step=format_count(max(0, step))))
        num_places = len(texts)
        raw, average, points = self._series
        middle = ("", None) if self.style.smoothing is not None else (self._legend[1], average)
        for word, series in ((self._legend[0], raw), middle, (self._legend[2], points)):
            # The middle of the bin, if single points are no longer stored.
            if word and series is not None and (bounds := value_before(series, step)) is not None:
                texts.append(f"{tr(word)} {self._format_value(sum(bounds) / 2)}")
        if self.style.smoothing:
            steps, levels = self._smooth(max(0.0, step - 1), step)
            if len(steps) and np.isfinite(levels[-1]):
                texts.append(tr("smoothed {value}", value=self._format_value(float(levels[-1]))))
        return "  ".join(texts) if len(texts) > num_places else ""

    def _format_value(self, value: float) -> str:
        value *= self._scale
        if value and abs(value) < 10.0**-self._digits:
            return f"{value:.3g}"
        return f"{value:,.{self._digits}f}"


def smooth_window(window: Window, weight: float) -> Floats:
    """Return a window's exponential moving average over steps; each bin is weighted by its number of steps.

    Source: the bias correction of Kingma and Ba, Adam (2015), section 3, as in Ema.
    """
    values = (window.low + window.high) / 2
    gaps = np.diff(window.x, prepend=window.x[:1] - 1) if len(window.x) else np.empty(0)
    levels, total, mass = np.full(len(values), np.nan), 0.0, 0.0
    for index, (value, decay) in enumerate(zip(values.tolist(), (weight**gaps).tolist(), strict=True)):
        if np.isfinite(value):
            total, mass = decay * total + (1 - decay) * value, decay * mass + (1 - decay)
        levels[index] = total / mass if mass > 0 else np.nan
    return levels
