"""Crosshair of a plot: a vertical line at the pointer and a readout beside it.

The readout is never cut off, and it covers curves only if no other position is free. If it does not fit in
the plot, it extends over neighbouring widgets, but not beyond the edges of the window.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtCore import QPoint, QPointF, QRect, QRectF, QSize, QSizeF, Qt
from PySide6.QtGui import QFontMetricsF, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from rankdeck_app.theme import Theme
from rankdeck_app.widgets.chart_colors import ChartColors
from rankdeck_app.widgets.painting import chart_font, paint_text

_GAP = 8.0
_PADDING = 5.0
PART_SEPARATOR = "  "
"""Separator between the parts of a readout; each part becomes a line if the text is too wide."""

CurvePoints = tuple[NDArray[np.floating], NDArray[np.floating]]


class Readout(QWidget):
    """Crosshair readout, a child of the window so that no card clips it. Mouse events pass through it."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self.text = ""
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)

    def show_in(self, window: QWidget, box: QRectF, text: str) -> None:
        if self.parentWidget() is not window:
            self.setParent(window)
        self.text = text
        self.setGeometry(box.toRect())
        self.update()
        if self.isHidden():
            self.show()
            self.raise_()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter, color, lines = QPainter(self), self._theme.color, self.text.split("\n")
        painter.setPen(color("editorHoverWidget.border"))
        painter.setBrush(color("editorHoverWidget.background"))
        painter.drawRect(self.rect().adjusted(0, 0, -1, -1))
        room = QRectF(self.rect()).adjusted(_PADDING, _PADDING, -_PADDING, -_PADDING)
        room.setHeight(room.height() / len(lines))
        for index, line in enumerate(lines):
            below = room.translated(0, index * room.height())
            paint_text(painter, below, line, color("editorHoverWidget.foreground"), 11, mono=True)
        painter.end()


class Crosshair:
    """Vertical line and readout at the pointer; the line is an item of the plot."""

    def __init__(self, plot: pg.PlotWidget, theme: Theme) -> None:
        self._plot, self._theme = plot, theme
        self.line = pg.InfiniteLine(angle=90, movable=False)
        self.line.hide()
        self.readout: Readout | None = None

    def recolor(self, colors: ChartColors) -> None:
        self.line.setPen(pg.mkPen(colors.axis, width=1, style=Qt.PenStyle.DotLine))

    def hide(self) -> None:
        self.line.hide()
        self.hide_readout()

    def hide_readout(self) -> None:
        if self.readout is not None:
            self.readout.hide()

    def show(self, x: float, text: str, curves: Iterable[CurvePoints], taken: Sequence[QWidget] = ()) -> None:
        """Show the line at `x` and the readout with `text` beside it; an empty `text` hides both.

        `curves` are in axis units; `taken` are widgets that the readout should not cover.
        """
        if not text:
            self.hide()
            return
        self.line.setPos(x)
        self.line.show()
        plot, window, view = self._plot, self._plot.window(), self._plot.getViewBox()
        room = QRectF(plot.mapFromScene(view.sceneBoundingRect()).boundingRect())
        # In window coordinates, since the readout is a child of the window.
        room.translate(QPointF(plot.viewport().mapTo(window, QPoint())))
        cursor = room.left() + float(view.mapFromView(QPointF(x, 0)).x())
        pixels = [self._to_pixels(curve, room) for curve in curves]
        boxes = [QRectF(QRect(widget.mapTo(window, QPoint()), widget.size())) for widget in taken]
        fitted_text, box = place_readout(text, cursor, room, QRectF(window.rect()), pixels, boxes)
        if self.readout is None:
            self.readout = Readout(self._theme)
            # The readout is a child of the window and would outlive the plot.
            plot.destroyed.connect(self.readout.deleteLater)
        self.readout.show_in(window, box, fitted_text)

    def _to_pixels(self, curve: CurvePoints, room: QRectF) -> CurvePoints:
        (x0, x1), (y0, y1) = self._plot.getViewBox().viewRange()
        x, y = curve
        across, down = room.width() / max(1e-12, x1 - x0), room.height() / max(1e-12, y1 - y0)
        return room.left() + (np.asarray(x) - x0) * across, room.top() + (y1 - np.asarray(y)) * down


def place_readout(
    text: str,
    cursor: float,
    view: QRectF,
    window: QRectF,
    curves: Sequence[CurvePoints],
    taken: Sequence[QRectF] = (),
) -> tuple[str, QRectF]:
    """Return the text, split into lines if necessary, and its box beside the cursor.

    The box is inside the view if it fits there, else inside the window. It takes the position (right or left,
    above or below) at which it covers the least of `curves` and `taken`.
    """
    wordings = text, text.replace(PART_SEPARATOR, "\n")
    for room in (view, window):
        for wording in wordings:
            if boxes := [
                box for box in _candidate_boxes(cursor, _readout_size(wording), view) if room.contains(box)
            ]:
                return wording, min(boxes, key=lambda box: _count_covered(box, curves, taken))
    # It fits nowhere: use the corner of the window.
    return wordings[1], QRectF(window.topLeft(), QSizeF(_readout_size(wordings[1])))


def _candidate_boxes(cursor: float, size: QSize, view: QRectF) -> list[QRectF]:
    """Return possible boxes for the readout, to the right and left of the cursor: first inside the view, then
    below and above it."""
    width, height = size.width(), size.height()
    inside = view.top(), view.bottom() - height, view.center().y() - height / 2
    outside = view.bottom() + _GAP, view.top() - _GAP - height
    return [
        QRectF(round(left), round(top), width, height)
        for top in (*inside, *outside)
        for left in (cursor + _GAP, cursor - _GAP - width)
    ]


def _readout_size(text: str) -> QSize:
    metrics, lines = QFontMetricsF(chart_font(11, mono=True)), text.split("\n")
    width = max(metrics.horizontalAdvance(line) for line in lines) + 2 * _PADDING
    return QSize(math.ceil(width), math.ceil(metrics.height() * len(lines) + 2 * _PADDING))


def _count_covered(box: QRectF, curves: Sequence[CurvePoints], taken: Sequence[QRectF]) -> int:
    """Count the pixel columns of curves that the box would hide, plus 1000 for each rectangle in `taken` that
    it would overlap."""
    # A covered widget counts more than any curve.
    hidden = sum(1000 for other in taken if box.intersects(other))
    columns = np.arange(np.floor(box.left()), np.ceil(box.right()) + 1)
    for x, y in curves:
        is_finite = np.isfinite(y)
        if is_finite.any():
            at = np.interp(columns, x[is_finite], y[is_finite], left=np.nan, right=np.nan)
            hidden += int(np.count_nonzero((at >= box.top() - 2) & (at <= box.bottom() + 2)))
    return hidden
