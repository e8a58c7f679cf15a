"""Losses of several runs over steps, time or samples: averages with a dash and a letter each, raw ones faint.

What is drawn comes as windows of the runs' curves, so a million steps cost what a thousand do.
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
"""Raw losses of more runs hide their averages."""
_LETTER_MARGIN = 1.03


class _RunItems:
    """What is drawn of one run."""

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
        y[0::2], y[1::2] = line.low, line.high
        self.raw.setData(*((x, y) if with_raw else ([], [])))
        self.average.setData(line.average_x, line.average)
        self.points.setData(line.held_out_x, line.held_out)


class LossOverlay(ZoomPlot):
    """Up to eight runs. The readout has the smoothed loss of each at the place under the pointer."""

    def __init__(self, theme: Theme) -> None:
        self._x_axis = CountAxis()
        self.axis = "step"
        super().__init__(theme, self._x_axis, tr("Training loss of the runs"))
        self._runs: Sequence[ComparisonRun] = ()
        self._lines: list[LossCurve] = []
        self._items: list[_RunItems] = []
        self.retheme()

    def set_axis(self, by: str) -> None:
        """Over steps, time or samples, from the beginning to the end."""
        self.axis = by
        self._x_axis.unit = AXIS_UNITS[by]
        self._x_axis.picture = None
        self.reset_zoom()

    def set_runs(self, runs: Sequence[ComparisonRun]) -> None:
        self._runs = tuple(runs)
        while len(self._items) < len(runs):
            self._items.append(_RunItems(self))
        self.retheme()
        self.request_draw(now=True)

    def recolor(self, colors: ChartColors) -> None:
        for place, item in enumerate(getattr(self, "_items", ())):
            tint = run_color(self._theme, place)
            faint = pg.mkColor(tint)
            faint.setAlpha(60)
            item.raw.setPen(pg.mkPen(faint))
            item.average.setPen(run_pen(self._theme, place))
            item.points.setBrush(pg.mkBrush(tint))
            item.points.setPen(pg.mkPen(colors.card))
            item.letter.setColor(tint)
            item.letter.setFont(chart_font(12, bold=True))

    def draw(self) -> None:
        axes = [run.axis(self.axis) for run in self._runs]
        known = [
            axis.end for run, axis in zip(self._runs, axes, strict=True) if axis.end and len(run.state.losses)
        ]
        for item in (part for items in self._items for part in items.all):
            item.setVisible(bool(known))
        if not known:
            self._lines = []
            no_samples = self.axis == "samples"
            what = tr("samples are known of none of these runs") if no_samples else tr("no loss yet")
            self.show_empty(what if self._runs else "")
            return
        self.set_empty_text("")
        x = self.choose_x_range((0.0, _LETTER_MARGIN * round_up_axis_end(max(known), max(known))))
        self._lines = [
            loss_curve(run.state, axis, min(_AVERAGE_POINTS * 4, self.max_points()), x)
            for run, axis in zip(self._runs, axes, strict=True)
        ]
        for place, items in enumerate(self._items):
            line = self._lines[place] if place < len(self._lines) else None
            for item in items.all:
                item.setVisible(line is not None and not line.is_empty)
            if line is not None:
                items.draw(_thin_line(line), with_raw=len(self._runs) <= MAX_RUNS_WITH_RAW)
        if (y := _y_range(self._lines)) is not None:
            self.show_ranges(x, y)
        self._place_letters()

    def _place_letters(self) -> None:
        """At the end of each curve that is seen, parted where ends meet."""
        view = self.getViewBox()
        (x0, x1), (y0, y1) = view.viewRange()
        told = [place for place, line in enumerate(self._lines) if not line.is_empty]
        if not told or x1 <= x0 or y1 <= y0 or view.width() < LABEL_WIDTH or view.height() < LABEL_HEIGHT:
            return
        x_scale, y_scale = view.width() / (x1 - x0), view.height() / (y1 - y0)
        last = x1 - LABEL_WIDTH / x_scale
        ends = []
        for place in told:
            line = self._lines[place]
            x = min(float(line.average_x[-1]), last)
            y = float(np.interp(x, line.average_x, line.average))
            ends.append(((x - x0) * x_scale, (y1 - y) * y_scale))
        half = LABEL_HEIGHT / 2
        heights = label_heights(ends, half, view.height() - half)
        for place, (x, _), height in zip(told, ends, heights, strict=True):
            letter = self._items[place].letter
            letter.setText(run_letter(place))
            letter.setPos(x0 + (x + 3) / x_scale, y1 - height / y_scale)

    def x_text(self, x: float) -> str:
        if self.axis == "time":
            return time_label(x)
        count = format_count(max(0, x))
        return tr("sample {count}", count=count) if self.axis == "samples" else tr("step {step}", step=count)

    def readout_text(self, x: float) -> str:
        parts = []
        for place, line in enumerate(self._lines):
            if not line.is_empty and line.average_x[0] <= x <= line.average_x[-1]:
                parts.append(f"{run_letter(place)} {np.interp(x, line.average_x, line.average):.4f}")
        return "  ".join([self.x_text(x), *parts]) if parts else ""

    def csv_rows(self) -> list[Sequence[object]]:
        """What is drawn: the smoothed losses, and the held-out ones."""
        rows: list[Sequence[object]] = [("run", self.axis, "smoothed_loss", "held_out_loss")]
        for place, line in enumerate(self._lines):
            pairs = zip(line.average_x, line.average, strict=True)
            rows += [(run_letter(place), f"{x:.6g}", f"{y:.6g}", "") for x, y in pairs]
            held = zip(line.held_out_x, line.held_out, strict=True)
            rows += [(run_letter(place), f"{x:.6g}", "", f"{y:.6g}") for x, y in held]
        return rows


def _thin_line(line: LossCurve) -> LossCurve:
    """With an average of few points: dashes on a dense line cost a second."""
    step = max(1, len(line.average_x) // _AVERAGE_POINTS)
    if step == 1:
        return line
    at = np.unique(np.append(np.arange(0, len(line.average_x), step), len(line.average_x) - 1))
    return LossCurve(
        line.x, line.low, line.high, line.average_x[at], line.average[at], line.held_out_x, line.held_out
    )


def _y_range(lines: Sequence[LossCurve]) -> tuple[float, float] | None:
    """What averages and held-out losses need; first steps far above the rest do not flatten the rest."""
    values = np.concatenate([part for line in lines for part in (line.average, line.held_out)])
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    low, high, usual = float(values.min()), float(values.max()), float(np.percentile(values, 98))
    if high > low + 3 * (usual - low) > low:
        high = usual + 0.2 * (usual - low)
    y0, y1 = padded_range(low, high)
    return (max(0.0, y0) if low >= 0 else y0), y1
