"""What stands under the pointer of a plot: an upright line, and a text beside it that is never cut and, where
there is any other place, on no curve.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QFontMetricsF

from rankdeck_app.widgets.chart_colors import ChartColors
from rankdeck_app.widgets.painting import chart_font

_GAP = 8.0
_PADDING = 4.0  # of the document that a text item is
PARTS = "  "
"""Between the parts of a text, which stand under each other where a line is too wide."""

Curve = tuple[NDArray[np.floating], NDArray[np.floating]]


class Crosshair:
    """`show` and `hide`; the items are the plot's."""

    def __init__(self, view: pg.ViewBox) -> None:
        self._view = view
        self.line = pg.InfiniteLine(angle=90, movable=False)
        self.text = pg.TextItem(anchor=(0, 0))
        self.text.setZValue(20)
        self.line.hide()
        self.text.hide()

    def recolor(self, colors: ChartColors) -> None:
        self.line.setPen(pg.mkPen(colors.axis, width=1, style=Qt.PenStyle.DotLine))
        self.text.setColor(colors.foreground)
        self.text.setFont(chart_font(11, mono=True))
        self.text.fill = pg.mkBrush(colors.card)

    def hide(self) -> None:
        self.line.hide()
        self.text.hide()

    def show(self, x: float, text: str, curves: Iterable[Curve], taken: Sequence[QRectF] = ()) -> None:
        """`curves` are in units of the axes, `taken` are boxes in pixels of the view."""
        if not text:
            self.hide()
            return
        self.line.setPos(x)
        self.line.show()
        room = QRectF(0, 0, self._view.width(), self._view.height())
        pixels = [self._to_pixels(curve) for curve in curves]
        shown, box = placed(text, self._pixel_x(x), room, pixels, taken)
        self.text.setText(shown)
        self.text.setPos(self._view.mapToView(box.topLeft()))
        self.text.show()

    def _pixel_x(self, x: float) -> float:
        return float(self._view.mapFromView(QPointF(x, 0)).x())

    def _to_pixels(self, curve: Curve) -> Curve:
        (x0, x1), (y0, y1) = self._view.viewRange()
        x, y = curve
        across, down = self._view.width() / max(1e-12, x1 - x0), self._view.height() / max(1e-12, y1 - y0)
        return (np.asarray(x) - x0) * across, (y1 - np.asarray(y)) * down


def placed(
    text: str, cursor: float, room: QRectF, curves: Sequence[Curve], taken: Sequence[QRectF] = ()
) -> tuple[str, QRectF]:
    """The text, over several lines if it has to be, and its box beside the cursor inside the room.

    Of the places at its right and left, above and below, the one that covers least of what is drawn.
    """
    for shown in (text, text.replace(PARTS, "\n")):
        width, height = _size(shown)
        lefts = [cursor + _GAP, cursor - _GAP - width]
        fitting = [left for left in lefts if left >= room.left() and left + width <= room.right()]
        if fitting:
            break
    else:
        fitting = [max(room.left(), min(lefts[0], room.right() - width))]
    tops = (
        room.top(),
        max(room.top(), room.bottom() - height),
        max(room.top(), room.center().y() - height / 2),
    )
    boxes = [QRectF(left, top, width, height) for top in tops for left in fitting]
    return shown, min(boxes, key=lambda box: _covered(box, curves, taken))


def _size(text: str) -> tuple[float, float]:
    metrics, lines = QFontMetricsF(chart_font(11, mono=True)), text.split("\n")
    width = max(metrics.horizontalAdvance(line) for line in lines)
    return width + 2 * _PADDING, metrics.lineSpacing() * len(lines) + 2 * _PADDING


def _covered(box: QRectF, curves: Sequence[Curve], taken: Sequence[QRectF]) -> int:
    """How many columns of pixels with something drawn the box would hide."""
    hidden = sum(1000 for other in taken if box.intersects(other))
    columns = np.arange(np.floor(box.left()), np.ceil(box.right()) + 1)
    for x, y in curves:
        known = np.isfinite(y)
        if known.any():
            at = np.interp(columns, x[known], y[known], left=np.nan, right=np.nan)
            hidden += int(np.count_nonzero((at >= box.top() - 2) & (at <= box.bottom() + 2)))
    return hidden
