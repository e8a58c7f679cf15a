"""A long noisy curve over the steps of a run: the raw values faint, their average over them, single points
on top.

It draws windows of two curves, so a million steps cost what a thousand do. Raw values keep a pen of width 1
(a wider one takes seconds on a dense curve); the average has few points and may be wider.
"""

from __future__ import annotations

import numpy as np
import pyqtgraph as pg

from rankdeck.base.units import format_count
from rankdeck.run.series import Curve, Series, Window
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.chart_colors import ChartColors
from rankdeck_app.widgets.plot_axes import CountAxis, padded_range, step_up
from rankdeck_app.widgets.zoom_plot import ZoomPlot, value_before

# A wide antialiased line is cheap only while it is short.
_AVERAGE_POINTS = 240


class CurvePlot(ZoomPlot):
    """`raw` and `average` are over steps; `points` are drawn one by one (held-out losses). The readout has
    those that have a word. Numbers are shown times `scale`; `awaited` stands where there is nothing to draw.
    """

    def __init__(
        self,
        theme: Theme,
        raw: Curve | Series,
        average: Curve | Series,
        points: Curve | Series | None = None,
        *,
        name: str,
        words: tuple[str, str, str] = ("raw", "EMA", "held-out"),
        from_zero: bool = False,
        digits: int = 4,
        scale: float = 1.0,
    ) -> None:
        super().__init__(theme, CountAxis("bottom"), name)
        self._series = (raw, average, points)
        self._words = words
        self._from_zero = from_zero
        self._digits = digits
        self._scale = scale
        self.awaited = "waiting for the first step"
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
        self, raw: Curve | Series, average: Curve | Series, digits: int, words: tuple[str, str, str]
    ) -> None:
        """Draw others from now on."""
        if self._series[:2] != (raw, average):
            self._series = (raw, average, self._series[2])
            self._digits, self._words = digits, words
            self.request_draw()

    def set_last_step(self, num_steps: int | None) -> None:
        """Where the run will end: the axis never goes beyond it."""
        if num_steps != self._last_step:
            self._last_step = num_steps
            self.request_draw()

    def recolor(self, colors: ChartColors) -> None:
        self._raw_item.setPen(pg.mkPen(colors.raw))
        self._average_item.setPen(pg.mkPen(colors.loss, width=2))
        self._points_item.setPen(pg.mkPen(colors.card))
        self._points_item.setBrush(pg.mkBrush(colors.foreground))

    def draw(self) -> None:
        raw, average, points = self._series
        if raw.last_x is None:
            self.set_ranges((0.0, 1.0), (0.0, 1.0))
            self.await_data(self.awaited)
            return
        self.await_data("")
        end = step_up(raw.last_x, float(self._last_step) if self._last_step else None)
        # A little air behind the last step, so that a point on it is whole.
        x0, x1 = (0.0, 1.015 * max(end, 2.0)) if self.follows else self.visible_x()
        window = raw.window(x0, x1, self.max_points())
        smooth = average.window(x0, x1, min(_AVERAGE_POINTS, self.max_points()))
        self._raw_item.setData(*window.polyline())
        # The middle of a bin: a line that touched both ends of every bin would draw the noise again.
        self._average_item.setData(smooth.x, (smooth.low + smooth.high) / 2)
        point_window = points.window(x0, x1, 1_000) if points is not None else None
        if point_window is not None and len(point_window.x):
            self._points_item.setData(point_window.x, point_window.high)
        y = self._y_range(window, smooth, point_window)
        if y is not None:
            self.show_ranges((x0, x1), y)

    def _y_range(self, *windows: Window | None) -> tuple[float, float] | None:
        """Everything that is seen; a first step far above the rest does not flatten the rest."""
        given = [window for window in windows if window is not None]
        low = np.concatenate([window.low for window in given])
        high = np.concatenate([window.high for window in given])
        low, high = low[np.isfinite(low)], high[np.isfinite(high)]
        if not len(low) or not len(high):
            return None
        top = float(high.max())
        usual = float(np.percentile(high, 99))
        least = float(low.min())
        if usual > least and top > least + 3 * (usual - least):
            top = usual + 0.2 * (usual - least)
        y0, y1 = padded_range(0.0 if self._from_zero else least, top)
        return (0.0 if self._from_zero or (least >= 0 > y0) else y0), y1

    def x_words(self, x: float) -> str:
        return f"step {format_count(max(0, x))}"

    def readout(self, x: float) -> str:
        """The step under the pointer with its raw value, the average there, and the last single point."""
        raw, average, points = self._series
        parts = [f"step {format_count(max(0, x))}"]
        for word, series in zip(self._words, (raw, average, points), strict=True):
            # Where single points are gone, the middle of their bin.
            if word and series is not None and (bounds := value_before(series, x)) is not None:
                parts.append(f"{word} {self._scale * sum(bounds) / 2:,.{self._digits}f}")
        return "  ".join(parts) if len(parts) > 1 else ""
