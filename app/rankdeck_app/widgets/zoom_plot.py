"""Base class of the zoomable plots: themed axes, and zoom by Ctrl+wheel, drag and keys.

A double click, Escape or the Reset zoom button makes a zoomed plot follow the data again. The wheel without
Ctrl scrolls the page. pyqtgraph uses neither palette nor style sheet, so each plot applies the theme itself.
While a plot follows the data, its ranges change only from time to time, because laying out the axes in every
frame would take longer than drawing the curves.
"""

from __future__ import annotations

import math
import time

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QEvent, QPointF, QSize, Qt, Signal
from PySide6.QtGui import QHideEvent, QKeyEvent, QMouseEvent, QResizeEvent, QWheelEvent
from PySide6.QtWidgets import QFrame

from rankdeck.run.series import Curve, Series
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme
from rankdeck_app.widgets import crosshair
from rankdeck_app.widgets.chart_colors import ChartColors
from rankdeck_app.widgets.layouts import push_button
from rankdeck_app.widgets.painting import chart_font
from rankdeck_app.widgets.plot_axes import ValueAxis

MIN_DRAW_INTERVAL_S = 0.1
_MIN_X_RANGE = 1.0
"""Width of the x range at the maximum zoom, in steps, samples or seconds."""
LABEL_MARGIN = 1
"""Margin of a label's background around the text, in pixels."""


class ZoomPlot(pg.PlotWidget):
    """A themed plot. Subclasses implement `draw` and `recolor`.

    `zoom_changed` is emitted when the user zooms, moves or resets the range.
    """

    zoom_changed = Signal()

    def __init__(self, theme: Theme, x_axis: pg.AxisItem, name: str) -> None:
        super().__init__(axisItems={"bottom": x_axis, "left": ValueAxis("left")}, enableMenu=False)
        self._theme = theme
        self._colors = ChartColors(theme)
        self.is_following = True
        """Whether the ranges follow the data; False once the user zooms or pans."""
        self._reset_button = push_button(
            tr("Reset zoom"),
            tr("Follow the data again (Escape or double-click)"),
            self.reset_zoom,
            height=20,
        )
        self._reset_button.setParent(self)
        self._reset_button.hide()
        self._mark_value: float | None = None
        self._mark = pg.InfiniteLine(angle=90, movable=False)
        self._mark.hide()
        self._labels: list[pg.TextItem] = []
        self.last_drawn_s = 0.0
        """Time of the last drawing, on the monotonic clock."""
        self._stale = True
        self.setAccessibleName(name)
        self.setFrameShape(QFrame.Shape.NoFrame)
        # A plot must not enlarge its card; pyqtgraph would ask for 640 x 480.
        self.setMinimumSize(120, 50)
        plot = self.getPlotItem()
        plot.hideButtons()
        plot.setMenuEnabled(False)
        plot.showGrid(x=False, y=True, alpha=0.35)
        plot.layout.setContentsMargins(0, 2, 2, 0)
        for side in ("left", "bottom"):
            axis = plot.getAxis(side)
            axis.setStyle(tickLength=0, autoExpandTextSpace=False)
            # The axes add their own units.
            axis.enableAutoSIPrefix(False)
        plot.getAxis("left").setStyle(hideOverlappingLabels=True)
        plot.getAxis("left").setWidth(44)
        plot.getAxis("bottom").setHeight(20)
        view = plot.getViewBox()
        view.disableAutoRange()
        view.setMouseEnabled(x=True, y=False)
        # Only the mouse emits it; zoom_by calls the slot itself.
        view.sigRangeChangedManually.connect(self._on_range_changed)
        self._crosshair, self._empty_label = crosshair.Crosshair(self, theme), pg.TextItem(anchor=(0.5, 0.5))
        for item in (self._mark, self._crosshair.line, self._empty_label):
            self.addItem(item, ignoreBounds=True)
        self.viewport().setMouseTracking(True)
        theme.changed.connect(self.retheme)

    def sizeHint(self) -> QSize:
        return QSize(360, 160)

    def reset_zoom(self) -> None:
        self._set_following(is_following=True)
        self.request_draw(now=True)

    def _on_range_changed(self, *_: object) -> None:
        self._set_following(is_following=False)
        self.request_draw()

    def _set_following(self, *, is_following: bool) -> None:
        self.is_following = is_following
        self._reset_button.setVisible(not is_following)
        self.zoom_changed.emit()

    @property
    def zoom_text(self) -> str:
        """The visible range as text if the user has zoomed or moved it, otherwise empty."""
        if self.is_following:
            return ""
        x0, x1 = (self.x_text(x) for x in self.visible_x())
        return tr("zoomed: {first} to {last}", first=x0, last=x1)

    def x_text(self, x: float) -> str:
        """Return an x position as text."""
        return f"{x:,.0f}"

    def set_mark(self, at: float | None) -> None:
        """Mark a time, or a step on a step axis, with a vertical line; None removes the mark."""
        if at != self._mark_value:
            self._mark_value = at
            self.update_mark()

    def update_mark(self) -> None:
        self._mark.setVisible(self._mark_value is not None)
        if self._mark_value is not None:
            self._mark.setPos(self.mark_position(self._mark_value))

    def mark_position(self, at: float) -> float:
        """Return the x position at which to mark the time or step `at`."""
        return at

    def zoom_by(self, factor: float, shift: float = 0.0) -> None:
        """Scale the x range around its middle, and shift it by `shift`, a fraction of the range."""
        x0, x1 = self.visible_x()
        middle, half = (x0 + x1) / 2 + shift * (x1 - x0), factor * (x1 - x0) / 2
        self.getViewBox().setXRange(middle - half, middle + half, padding=0)
        self._on_range_changed()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        moves = {
            Qt.Key.Key_Plus: (0.5, 0.0), Qt.Key.Key_Equal: (0.5, 0.0), Qt.Key.Key_Minus: (2.0, 0.0),
            Qt.Key.Key_Left: (1.0, -0.2), Qt.Key.Key_Right: (1.0, 0.2),
        }  # fmt: skip
        if event.key() == Qt.Key.Key_Escape and not self.is_following:
            self.reset_zoom()
        elif event.key() in moves and not event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            self.zoom_by(*moves[Qt.Key(event.key())])
        else:
            super().keyPressEvent(event)

    def request_draw(self, now: bool = False) -> None:
        """Request that new data be drawn at the next due `tick` (at most ten times a second), or at once if
        `now` is set."""
        self._stale = True
        if now:
            self.last_drawn_s = 0.0
            self.tick()

    def tick(self) -> bool:
        """Draw if the data changed, the last draw was long enough ago and the plot is visible. This is called
        once per frame.

        Return whether the plot was drawn.
        """
        now = time.monotonic()
        if not self._stale or now - self.last_drawn_s < MIN_DRAW_INTERVAL_S or not self.isVisible():
            return False
        self._stale = False
        self.last_drawn_s = now
        self.draw()
        return True

    def draw(self) -> None:
        """Update the plot items with the data of the visible range."""
        raise NotImplementedError

    def recolor(self, colors: ChartColors) -> None:
        """Apply the theme's colours to the plot items."""
        raise NotImplementedError

    def show_empty(self, text: str) -> None:
        """Show a text in place of data, and reset the ranges."""
        self.set_ranges(self.choose_x_range((0.0, 1.0)), (0.0, 1.0))
        self.set_empty_text(text)

    def set_empty_text(self, text: str) -> None:
        """Show why the plot has no data yet, and hide the axis values; "" removes the text and shows the
        values again."""
        is_empty = bool(text)
        if self._empty_label.isVisible() == is_empty and self._empty_label.toPlainText() == text:
            return
        self._empty_label.setText(text)
        self._empty_label.setVisible(is_empty)
        if is_empty:
            for item in self.getPlotItem().items:
                if isinstance(item, (pg.PlotCurveItem, pg.ScatterPlotItem)):
                    # Old curves must not show behind the text.
                    item.setData([], [])
        for side in ("left", "bottom"):
            self.getPlotItem().getAxis(side).setStyle(showValues=not is_empty)
        (x0, x1), (y0, y1) = self.getViewBox().viewRange()
        self._empty_label.setPos((x0 + x1) / 2, (y0 + y1) / 2)

    def add_label(self, right: float) -> pg.TextItem:
        """Add a text label with its own background, on top of the curves. `right` is the horizontal anchor:
        the fraction of the label's width that is to the left of the label's position."""
        label = pg.TextItem(anchor=(right, 0.5))
        label.textItem.document().setDocumentMargin(LABEL_MARGIN)
        label.setZValue(10)
        self.addItem(label, ignoreBounds=True)
        self._labels.append(label)
        self._update_label_background(label)
        return label

    def remove_label(self, label: pg.TextItem) -> None:
        self._labels.remove(label)
        self.removeItem(label)

    def _update_label_background(self, label: pg.TextItem) -> None:
        label.fill = pg.mkBrush(self._colors.card)

    def readout_text(self, x: float) -> str:
        """Return the readout at an x position; empty if there is none."""
        return ""

    def retheme(self) -> None:
        """Apply the theme. A subclass calls this once its plot items have been created."""
        self._colors = ChartColors(self._theme)
        self.setBackground(self._colors.card)
        for side in ("left", "bottom"):
            axis = self.getPlotItem().getAxis(side)
            axis.setPen(self._colors.grid)
            axis.setTextPen(self._colors.axis)
            axis.setTickFont(chart_font(10))
        self._crosshair.recolor(self._colors)
        self._mark.setPen(pg.mkPen(self._colors.foreground, width=1))
        self._empty_label.setColor(self._colors.axis)
        self._empty_label.setFont(chart_font(11))
        for label in self._labels:
            self._update_label_background(label)
        self.recolor(self._colors)
        self.request_draw(now=True)

    def choose_x_range(self, followed: tuple[float, float], first: float = math.inf) -> tuple[float, float]:
        """Return the x range to draw: `followed`, or the range to which the user zoomed.

        The user can zoom and pan within `followed`, which is extended to start at `first` if `first` is
        earlier.
        """
        x_min, x_max = min(followed[0], first), followed[1]
        closest = min(_MIN_X_RANGE, (x_max - x_min) / 10)
        self.getViewBox().setLimits(xMin=x_min, xMax=x_max, minXRange=closest)
        return followed if self.is_following else self.visible_x()

    def set_ranges(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        """Set both ranges if they differ from the visible ones."""
        (x0, x1), (y0, y1) = self.visible_x(), self.getViewBox().viewRange()[1]
        if (x0, x1) != x or (y0, y1) != y:
            self.getViewBox().setRange(xRange=x, yRange=y, padding=0, update=True, disableAutoRange=True)

    def show_ranges(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        """Set both ranges while the plot follows the data, otherwise only the y range."""
        if self.is_following:
            self.set_ranges(x, y)
        elif tuple(self.getViewBox().viewRange()[1]) != y:
            self.getViewBox().setYRange(*y, padding=0)

    def visible_x(self) -> tuple[float, float]:
        x0, x1 = self.getViewBox().viewRange()[0]
        return float(x0), float(x1)

    def max_points(self) -> int:
        """Return the maximum number of points to draw: about one per pixel of the plot's width."""
        return max(64, int(self.getViewBox().width()))

    def wheelEvent(self, event: QWheelEvent) -> None:
        if event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            super().wheelEvent(event)
        else:
            event.ignore()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        self.reset_zoom()
        event.accept()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        super().mouseMoveEvent(event)
        view = self.getViewBox()
        scene_point = self.mapToScene(event.position().toPoint())
        if not view.sceneBoundingRect().contains(scene_point):
            self._crosshair.hide()
            return
        x = view.mapSceneToView(QPointF(scene_point)).x()
        taken = [] if self.is_following else [self._reset_button]
        self._crosshair.show(x, self.readout_text(x), self._drawn_curves(), taken)

    def _drawn_curves(self) -> list[crosshair.CurvePoints]:
        items = self.getPlotItem().items
        curves = [item for item in items if isinstance(item, pg.PlotCurveItem) and item.isVisible()]
        return [(x, y) for x, y in (curve.getData() for curve in curves) if x is not None and len(x)]

    def leaveEvent(self, event: QEvent) -> None:
        self._crosshair.hide()
        super().leaveEvent(event)

    def hideEvent(self, event: QHideEvent) -> None:
        self._crosshair.hide_readout()  # not the line, which may be deleted with the plot already
        super().hideEvent(event)

    def resizeEvent(self, event: QResizeEvent | None) -> None:
        super().resizeEvent(event)
        # PlotWidget already resizes inside super().__init__, before there is anything to draw.
        if hasattr(self, "_stale"):
            self._reset_button.adjustSize()
            self._reset_button.move(self.width() - self._reset_button.width() - 4, 2)
            self.request_draw()


def value_before(series: Curve | Series, x: float) -> tuple[float, float] | None:
    """Return (min, max) of the last bin that starts at or before x; None if unknown."""
    window = series.window(x, x, 4)
    if not len(window.x) or window.x[0] > x or not np.isfinite(window.high[0]):
        return None
    return float(window.low[0]), float(window.high[0])
