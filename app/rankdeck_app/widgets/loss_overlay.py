"""Losses of several runs over steps, time or samples: for each run, a dashed average line with a letter, and
faint raw losses.

The number of points drawn per curve is limited, so a million steps take no longer to draw than a thousand.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyqtgraph as pg

from rankdeck.base.units import format_count
from rankdeck.compare.bar_charts import LABEL_HEIGHT, LABEL_WIDTH, label_heights
from rankdeck.compare.curves import LossCurve, loss_curve
from rankdeck.compare.table import run_letter
from rankdeck_app.language import tr
from rankdeck_app.state.run_comparison import ComparisonRun
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.chart_colors import ChartColors
from rankdeck_app.widgets.painting import chart_font
from rankdeck_app.widgets.plot_axes import AXIS_UNITS, CountAxis, padded_range, round_up_axis_end
from rankdeck_app.widgets.run_markers import run_color, run_pen
from rankdeck_app.widgets.time_text import time_label
from rankdeck_app.widgets.zoom_plot import ZoomPlot

_AVERAGE_POINTS = 240
MAX_RUNS_WITH_RAW = 3
"""Number of runs above which raw losses are not drawn, because they would hide the averages."""
# Room for the letters after the last step.
_LETTER_MARGIN = 1.03


class _RunItems:
    """Plot items of one run."""

    def __init__(self, plot: LossOverlay) -> None:
        self.raw = pg.PlotCurveItem(connect="finite")
        self.average = pg.PlotCurveItem(connect="finite", antialias=True)
        self.points = pg.ScatterPlotItem(symbol="d", size=7, pxMode=True)
        for item in (self.raw, self.average, self.points):
            plot.addItem(item, ignoreBounds=True)
        self.letter = plot.add_label(right=0)
        self.all = (self.raw, self.average, self.points, self.letter)

    def draw(self, line: LossCurve, *, with_raw: bool) -> None:
        x, y = np.repeat(line.x, 2), np.empty(2 * len(line.x))
        # Low and high of each bin alternate, so that dense parts are drawn as vertical lines.
        y[0::2], y[1::2] = line.low, line.high
        self.raw.setData(*((x, y) if with_raw else ([], [])))
        self.average.setData(line.average_x, line.average)
        self.points.setData(line.held_out_x, line.held_out)


class LossOverlay(ZoomPlot):
    """Plot of up to eight runs. The readout shows each run's smoothed loss at the pointer."""

    def __init__(self, theme: Theme) -> None:
        self._x_axis = CountAxis()
        self.axis = "step"
        super().__init__(theme, self._x_axis, tr("Training loss of the runs"))
        self._runs: Sequence[ComparisonRun] = ()
        self._lines: list[LossCurve] = []
        self._items: list[_RunItems] = []
        self.retheme()

    def set_axis(self, by: str) -> None:
        """Set the x axis ("step", "time" or "samples") and reset the zoom."""
        self.axis = by
        self._x_axis.unit = AXIS_UNITS[by]
        # Drop the cached picture, whose labels have the old unit.
        self._x_axis.picture = None
        self.reset_zoom()

    def set_runs(self, runs: Sequence[ComparisonRun]) -> None:
        self._runs = tuple(runs)
        while len(self._items) < len(runs):
            self._items.append(_RunItems(self))
        self.retheme()
        self.request_draw(now=True)

    def recolor(self, colors: ChartColors) -> None:
        for index, item in enumerate(getattr(self, "_items", ())):
            tint = run_color(self._theme, index)
            faint = pg.mkColor(tint)
            faint.setAlpha(60)
            item.raw.setPen(pg.mkPen(faint))
            item.average.setPen(run_pen(self._theme, index))
            item.points.setBrush(pg.mkBrush(tint))
            item.points.setPen(pg.mkPen(colors.card))
            item.letter.setColor(tint)
            item.letter.setFont(chart_font(12, bold=True))

    def draw(self) -> None:
        axes = [run.axis(self.axis) for run in self._runs]
        axis_ends = [
            axis.end for run, axis in zip(self._runs, axes, strict=True) if axis.end and len(run.state.losses)
        ]
        for item in (plot_item for items in self._items for plot_item in items.all):
            item.setVisible(bool(axis_ends))
        if not axis_ends:
            self._lines = []
            no_samples = self.axis == "samples"
            what = tr("none of these runs has sample counts") if no_samples else tr("no loss yet")
            self.show_empty(what if self._runs else "")
            return
        self.set_empty_text("")
        x = self.choose_x_range((0.0, _LETTER_MARGIN * round_up_axis_end(max(axis_ends), max(axis_ends))))
        self._lines = [
            loss_curve(run.state, axis, min(_AVERAGE_POINTS * 4, self.max_points()), x)
            for run, axis in zip(self._runs, axes, strict=True)
        ]
        for index, items in enumerate(self._items):
            line = self._lines[index] if index < len(self._lines) else None
            for item in items.all:
                item.setVisible(line is not None and not line.is_empty)
            if line is not None:
                items.draw(_thin_line(line), with_raw=len(self._runs) <= MAX_RUNS_WITH_RAW)
        if (y := _y_range(self._lines)) is not None:
            self.show_ranges(x, y)
        self._place_letters()

    def _place_letters(self) -> None:
        """Place the runs' letters at the ends of their visible curves, and move them apart where ends
        coincide."""
        view = self.getViewBox()
        (x0, x1), (y0, y1) = view.viewRange()
        visible = [index for index, line in enumerate(self._lines) if not line.is_empty]
        if not visible or x1 <= x0 or y1 <= y0 or view.width() < LABEL_WIDTH or view.height() < LABEL_HEIGHT:
            return
        x_scale, y_scale = view.width() / (x1 - x0), view.height() / (y1 - y0)
        last = x1 - LABEL_WIDTH / x_scale
        ends = []
        for index in visible:
            line = self._lines[index]
            # A letter stays inside the plot.
            x = min(float(line.average_x[-1]), last)
            y = float(np.interp(x, line.average_x, line.average))
            ends.append(((x - x0) * x_scale, (y1 - y) * y_scale))
        half = LABEL_HEIGHT / 2
        heights = label_heights(ends, half, view.height() - half)
        for index, (x, _), height in zip(visible, ends, heights, strict=True):
            letter = self._items[index].letter
            letter.setText(run_letter(index))
            letter.setPos(x0 + (x + 3) / x_scale, y1 - height / y_scale)

    def x_text(self, x: float) -> str:
        if self.axis == "time":
            return time_label(x)
        count = format_count(max(0, x))
        return tr("sample {count}", count=count) if self.axis == "samples" else tr("step {step}", step=count)

    def readout_text(self, x: float) -> str:
        texts = []
        for index, line in enumerate(self._lines):
            if not line.is_empty and line.average_x[0] <= x <= line.average_x[-1]:
                texts.append(f"{run_letter(index)} {np.interp(x, line.average_x, line.average):.4f}")
        return "  ".join([self.x_text(x), *texts]) if texts else ""

    def csv_rows(self) -> list[Sequence[object]]:
        """Return the drawn curves as CSV rows: smoothed and held-out losses."""
        rows: list[Sequence[object]] = [("run", self.axis, "smoothed_loss", "held_out_loss")]
        for index, line in enumerate(self._lines):
            pairs = zip(line.average_x, line.average, strict=True)
            rows += [(run_letter(index), f"{x:.6g}", f"{y:.6g}", "") for x, y in pairs]
            held_out = zip(line.held_out_x, line.held_out, strict=True)
            rows += [(run_letter(index), f"{x:.6g}", "", f"{y:.6g}") for x, y in held_out]
        return rows


def _thin_line(line: LossCurve) -> LossCurve:
    """Return the curve with its average thinned to a few hundred points, because a dashed line with many
    points takes a second to draw."""
    step = max(1, len(line.average_x) // _AVERAGE_POINTS)
    if step == 1:
        return line
    # Every n-th point, and always the last one.
    at = np.unique(np.append(np.arange(0, len(line.average_x), step), len(line.average_x) - 1))
    return LossCurve(
        line.x, line.low, line.high, line.average_x[at], line.average[at], line.held_out_x, line.held_out
    )


def _y_range(lines: Sequence[LossCurve]) -> tuple[float, float] | None:
    """Return a y range for averages and held-out losses. High losses in the first steps do not flatten the
    rest of the curves."""
    values = np.concatenate([series for line in lines for series in (line.average, line.held_out)])
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    low, high, typical = float(values.min()), float(values.max()), float(np.percentile(values, 98))
    if high > low + 3 * (typical - low) > low:
        high = typical + 0.2 * (typical - low)
    y0, y1 = padded_range(low, high)
    return (max(0.0, y0) if low >= 0 else y0), y1
