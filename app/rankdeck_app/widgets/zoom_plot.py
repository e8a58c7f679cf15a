"""The base of every plot that can be zoomed: themed axes, wheel and drag, double click to follow the data
again.

pyqtgraph knows neither palette nor style sheet, so each plot is themed by itself. While a plot follows, its
ranges move in steps: an axis that is laid out anew in every frame costs more than its curves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QEvent, QPointF, QSize, Qt
from PySide6.QtGui import QMouseEvent, QResizeEvent
from PySide6.QtWidgets import QFrame

from rankdeck.base.units import format_count
from rankdeck.run.series import Curve, Series
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.chart_colors import ChartColors
from rankdeck_app.widgets.painting import chart_font

LEAST_INTERVAL_S = 0.1
_TIME_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)


def step_up(value: float, limit: float | None = None) -> float:
    """The next of 8 to 16 marks per doubling at or above `value`, at most `limit`: where an axis ends."""
    if value <= 0:
        return limit or 1.0
    quantum = 2.0 ** (math.floor(math.log2(value)) - 3)
    end = math.ceil(value / quantum) * quantum
    return min(end, limit) if limit is not None and limit >= value else end


def padded_range(low: float, high: float) -> tuple[float, float]:
    """A range of y with some air, rounded outwards so that noise does not move it."""
    span = high - low
    if span <= 0:
        span = abs(high) or 1.0
        return low - span / 2, high + span / 2
    quantum = 10.0 ** math.floor(math.log10(span)) / 4
    return math.floor((low - 0.03 * span) / quantum) * quantum, math.ceil(
        (high + 0.03 * span) / quantum
    ) * quantum


class TimeAxis(pg.AxisItem):
    """Seconds since the start of the run as 0:40, 12:00 or 1:30:00, at round times."""

    def tickSpacing(self, minVal: float, maxVal: float, size: float) -> list[tuple[float, float]]:  # noqa: N803
        wanted = (maxVal - minVal) / max(1.0, size / 70)
        spacing = next((step for step in _TIME_STEPS_S if step >= wanted), _TIME_STEPS_S[-1])
        return [(float(spacing), 0.0)]

    def tickStrings(self, values: Sequence[float], scale: float, spacing: float) -> list[str]:
        return [elapsed_label(value) for value in values]


def round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, ... of some power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= value * (1 - 1e-9))


def elapsed_label(seconds: float) -> str:
    total = round(abs(seconds))
    hours, rest = divmod(total, 3600)
    minutes, secs = divmod(rest, 60)
    text = f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"
    return f"-{text}" if seconds < 0 and total else text


class CountAxis(pg.AxisItem):
    """Steps: whole numbers in groups of three, never a fraction of one and never scientific."""

    def tickSpacing(self, minVal: float, maxVal: float, size: float) -> list[tuple[float, float]]:  # noqa: N803
        return [(round_up(max(1.0, (maxVal - minVal) / max(1.0, size / 56))), 0.0)]

    def tickStrings(self, values: Sequence[float], scale: float, spacing: float) -> list[str]:
        return [format_count(value) for value in values]


class ValueAxis(pg.AxisItem):
    """A few plain numbers with their unit, so that a small card keeps room for its curves."""

    unit = ""

    def tickSpacing(self, minVal: float, maxVal: float, size: float) -> list[tuple[float, float]]:  # noqa: N803
        wanted = (maxVal - minVal) / max(2.0, size / 24)
        return [(round_up(wanted) if wanted > 0 else 1.0, 0.0)]

    def tickStrings(self, values: Sequence[float], scale: float, spacing: float) -> list[str]:
        shown_spacing = spacing * scale
        digits = max(0, -math.floor(math.log10(shown_spacing) + 1e-9)) if shown_spacing > 0 else 0
        unit = f" {self.unit}" if self.unit else ""
        return [f"{value * scale:,.{digits}f}".replace(",", "\u2009") + unit for value in values]


class ZoomPlot(pg.PlotWidget):
    """A themed plot. Subclasses draw in `draw` and say their colours in `recolor`."""

    def __init__(self, theme: Theme, x_axis: pg.AxisItem, name: str) -> None:
        super().__init__(axisItems={"bottom": x_axis, "left": ValueAxis("left")}, enableMenu=False)
        self._theme = theme
        self._colors = ChartColors(theme)
        self.follows = True
        """Whether the ranges follow the data; a person who zooms or pans takes them over."""
        self.drawn_at = 0.0
        """When it was drawn last, on the monotonic clock."""
        self._stale = True
        self.setAccessibleName(name)
        self.setFrameShape(QFrame.Shape.NoFrame)
        # A plot is never a reason to make a card larger; pyqtgraph would ask for 640 x 480.
        self.setMinimumSize(120, 50)
        plot = self.getPlotItem()
        plot.hideButtons()
        plot.setMenuEnabled(False)
        plot.showGrid(x=False, y=True, alpha=0.35)
        plot.layout.setContentsMargins(0, 2, 2, 0)
        for side in ("left", "bottom"):
            axis = plot.getAxis(side)
            axis.setStyle(tickLength=0, autoExpandTextSpace=False, hideOverlappingLabels=True)
            axis.enableAutoSIPrefix(False)
        plot.getAxis("left").setWidth(44)
        plot.getAxis("bottom").setHeight(20)
        view = plot.getViewBox()
        view.disableAutoRange()
        view.setMouseEnabled(x=True, y=False)
        view.sigRangeChangedManually.connect(self._take_hand)
        self._cursor = pg.InfiniteLine(angle=90, movable=False)
        self._cursor.hide()
        self._readout, self._awaited = pg.TextItem(anchor=(1, 0)), pg.TextItem(anchor=(0.5, 0.5))
        self._readout.setZValue(20)
        self._readout.hide()
        for item in (self._cursor, self._readout, self._awaited):
            self.addItem(item, ignoreBounds=True)
        self.viewport().setMouseTracking(True)
        theme.changed.connect(self.retheme)

    def sizeHint(self) -> QSize:
        return QSize(360, 160)

    def follow(self) -> None:
        self.follows = True
        self.request_draw(now=True)

    def _take_hand(self, *_: object) -> None:
        self.follows = False
        self.request_draw()

    def request_draw(self, now: bool = False) -> None:
        """The data changed. It is drawn by `tick`, at most ten times a second."""
        self._stale = True
        if now:
            self.drawn_at = 0.0
            self.tick()

    def tick(self) -> bool:
        """Once a frame: draws if something changed, the last drawing is old enough, and somebody sees it.
        Returns whether it drew.
        """
        now = time.monotonic()
        if not self._stale or now - self.drawn_at < LEAST_INTERVAL_S or not self.isVisible():
            return False
        self._stale = False
        self.drawn_at = now
        self.draw()
        return True

    def draw(self) -> None:
        """Puts the data of the visible range into the items."""
        raise NotImplementedError

    def recolor(self, colors: ChartColors) -> None:
        """Gives the items the colours of the theme."""
        raise NotImplementedError

    def await_data(self, text: str) -> None:
        """There is nothing to draw yet: the plot says what it waits for, and its axes name nothing."""
        is_empty = bool(text)
        if self._awaited.isVisible() == is_empty and self._awaited.toPlainText() == text:
            return
        self._awaited.setText(text)
        self._awaited.setVisible(is_empty)
        for side in ("left", "bottom"):
            self.getPlotItem().getAxis(side).setStyle(showValues=not is_empty)
        (x0, x1), (y0, y1) = self.getViewBox().viewRange()
        self._awaited.setPos((x0 + x1) / 2, (y0 + y1) / 2)

    def readout(self, x: float) -> str:
        """What stands at an x, for the pointer; empty for nothing."""
        return ""

    def retheme(self) -> None:
        """Called by a subclass too, once its items exist."""
        self._colors = ChartColors(self._theme)
        self.setBackground(self._colors.card)
        for side in ("left", "bottom"):
            axis = self.getPlotItem().getAxis(side)
            axis.setPen(self._colors.grid)
            axis.setTextPen(self._colors.axis)
            axis.setTickFont(chart_font(10))
        self._cursor.setPen(pg.mkPen(self._colors.axis, width=1, style=Qt.PenStyle.DotLine))
        self._readout.setColor(self._colors.foreground)
        self._readout.setFont(chart_font(11, mono=True))
        self._awaited.setColor(self._colors.axis)
        self._awaited.setFont(chart_font(11))
        self._readout.fill = pg.mkBrush(self._colors.card)
        self.recolor(self._colors)
        self.request_draw(now=True)

    def set_ranges(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        """Moves both ranges, if they differ from what is shown."""
        (x0, x1), (y0, y1) = self.visible_x(), self.getViewBox().viewRange()[1]
        if (x0, x1) != x or (y0, y1) != y:
            self.getViewBox().setRange(xRange=x, yRange=y, padding=0, update=True, disableAutoRange=True)

    def show_ranges(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        """Both ranges while the plot follows, else that of y for the x that a person chose."""
        if self.follows:
            self.set_ranges(x, y)
        elif tuple(self.getViewBox().viewRange()[1]) != y:
            self.getViewBox().setYRange(*y, padding=0)

    def visible_x(self) -> tuple[float, float]:
        x0, x1 = self.getViewBox().viewRange()[0]
        return float(x0), float(x1)

    def max_points(self) -> int:
        """About one bin per pixel."""
        return max(64, int(self.getViewBox().width()))

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        self.follow()
        event.accept()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        super().mouseMoveEvent(event)
        view = self.getViewBox()
        scene_point = self.mapToScene(event.position().toPoint())
        if not view.sceneBoundingRect().contains(scene_point):
            self._hide_readout()
            return
        x = view.mapSceneToView(QPointF(scene_point)).x()
        text = self.readout(x)
        self._readout.setText(text)
        self._readout.setVisible(bool(text))
        self._cursor.setVisible(bool(text))
        self._cursor.setPos(x)
        (_, x1), (_, y1) = view.viewRange()
        self._readout.setPos(x1, y1)

    def leaveEvent(self, event: QEvent) -> None:
        self._hide_readout()
        super().leaveEvent(event)

    def _hide_readout(self) -> None:
        self._readout.hide()
        self._cursor.hide()

    def resizeEvent(self, event: QResizeEvent | None) -> None:
        super().resizeEvent(event)
        # PlotWidget resizes while it is being built, before there is anything to draw.
        if hasattr(self, "_stale"):
            self.request_draw()


def value_before(series: Curve | Series, x: float) -> tuple[float, float] | None:
    """(least, most) of the newest bin that begins at or before x; None where nothing is known."""
    window = series.window(x, x, 4)
    if not len(window.x) or window.x[0] > x or not np.isfinite(window.high[0]):
        return None
    return float(window.low[0]), float(window.high[0])
