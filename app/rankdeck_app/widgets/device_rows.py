"""Where things stand in a chart with one row per device: names left, a plot on one scale, numbers right.

It reads from 1 to 16 devices: thin rows have smaller text, and the thinnest are not all named.
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QRectF
from PySide6.QtGui import QColor, QFontMetricsF, QPainter

from rankdeck_app.widgets.painting import RIGHT, chart_font, paint_text


class DeviceRows:
    """Rows under each other. `plot` is where they are drawn; `width` is that of the chart; all in pixels."""

    def __init__(
        self,
        labels: Sequence[str],
        width: float,
        room: float,
        *,
        most_row: float,
        numbers: float,
        top: float = 0.0,
    ) -> None:
        """Rows of at most `most_row` in the middle of a `room` below `top`, `numbers` pixels at the right."""
        num_rows = max(1, len(labels))
        self.width = width
        self.row_height = min(most_row, room / num_rows)
        left = label_width(labels, 12 if self.row_height >= 14 else 10) + 12
        top += max(0.0, (room - num_rows * self.row_height) / 2)
        self.plot = QRectF(left, top, max(40.0, width - left - numbers), num_rows * self.row_height)

    def row(self, index: int) -> QRectF:
        """The plot of one row."""
        top = self.plot.top() + index * self.row_height
        return QRectF(self.plot.left(), top, self.plot.width(), self.row_height)

    def paint_words(
        self,
        painter: QPainter,
        index: int,
        label: tuple[str, QColor],
        number: tuple[str, QColor],
        *,
        bold: bool,
    ) -> None:
        """The name and the number of a row, each with its ink; nothing where thin rows leave no room."""
        height = self.row_height
        if index % (1 if height >= 8 else 2 if height >= 4.5 else 4):
            return
        px = 12 if height >= 14 else 10 if height >= 11 else 9
        row = self.row(index).adjusted(0, -4, 0, 4)
        at_right = QRectF(row.right(), row.y(), self.width - row.right(), row.height())
        paint_text(painter, QRectF(0, row.y(), row.left(), row.height()), *label, px, bold=bold)
        paint_text(painter, at_right, *number, px, RIGHT, bold=bold, mono=True)


def natural_height(num_rows: int) -> int:
    """What rows of devices like to have together, in pixels: few of them are higher."""
    steps = ((1, 56), (2, 46), (4, 34), (8, 26))
    return num_rows * next((height for most, height in steps if num_rows <= most), 18)


def label_width(labels: Sequence[str], px: int) -> float:
    """What the widest name takes in bold, in pixels."""
    metrics = QFontMetricsF(chart_font(px, bold=True))
    return max((metrics.horizontalAdvance(label) for label in labels), default=40)
