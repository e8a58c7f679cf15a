"""How busy every device was over the last minute: one row per device, one column per reading, the value now
at the right.

A reading holds for its whole interval and is drawn as a step, never smoothed: the driver averages over up
to a second, and a smooth ramp would show what nobody measured. What is not known stays the colour of the
card.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QEvent, QRectF, QSize, Qt
from PySide6.QtGui import QFontMetricsF, QHelpEvent, QImage, QPainter, QPaintEvent
from PySide6.QtWidgets import QToolTip, QWidget

from rankdeck.run.series import Curve, Series
from rankdeck_app.widgets.chart_colors import ChartColors, ThemeColors, chart_font

AXIS_HEIGHT = 16
_LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
_RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter


@dataclass(frozen=True)
class HeatFigure:
    """`shares` is (devices, columns) from 0 to 1, NaN where unknown; the last column is now. `lead` is
    shown bold.
    """

    labels: Sequence[str] = ()
    shares: NDArray[np.float32] | None = None
    values: Sequence[float | None] = ()
    span_s: float = 60.0
    lead: int | None = None


def shares_of(
    history: Curve | Series, columns: NDArray[np.floating], column_s: float, reach_s: float
) -> NDArray[np.float32]:
    """One row of a figure: for every column (its middle, in seconds) the share that was read for it.

    A reading speaks for the interval before it: a column shows the first one that ends after it, if that is
    within `reach_s`.
    """
    row = np.full(len(columns), np.nan, dtype=np.float32)
    window = history.window(columns[0] - reach_s, columns[-1] + column_s / 2, 2_000)
    if len(window.x):
        following = np.searchsorted(window.x, columns - column_s / 2)
        inside = np.minimum(following, len(window.x) - 1)
        covered = (following < len(window.x)) & (window.x[inside] - columns <= reach_s)
        row[covered] = window.high[inside][covered]
    return row


class HeatStrip(QWidget):
    """The strip of a run's devices, readable from 1 to 16 of them."""

    def __init__(self, theme: ThemeColors, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._figure = HeatFigure()
        self._image: QImage | None = None
        self._colors = ChartColors.of(theme)
        self._table = self._color_table()
        self.setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        self.setAccessibleName("Utilisation per device")
        theme.changed.connect(self._retheme)

    @property
    def figure(self) -> HeatFigure:
        return self._figure

    def set_figure(self, figure: HeatFigure) -> None:
        if len(figure.labels) != len(self._figure.labels):
            self.updateGeometry()
        self._figure = figure
        self._image = None
        self.update()

    def _retheme(self) -> None:
        self._colors = ChartColors.of(self._theme)
        self._table = self._color_table()
        self._image = None
        self.update()

    def _color_table(self) -> NDArray[np.uint32]:
        """256 colours from idle to busy, and one more for unknown."""
        stops = np.array([[c.red(), c.green(), c.blue()] for c in self._colors.heat], dtype=np.float64)
        at = np.linspace(0, 255, len(stops))
        channels = [
            np.interp(np.arange(256), at, stops[:, channel]).astype(np.uint32) for channel in range(3)
        ]
        busy = (0xFF << 24) | (channels[0] << 16) | (channels[1] << 8) | channels[2]
        return np.append(busy, np.uint32(self._colors.card.rgba())).astype(np.uint32)

    def _painted_image(self) -> QImage | None:
        shares = self._figure.shares
        if shares is None or shares.size == 0:
            return None
        if self._image is None:
            known = np.isfinite(shares)
            levels = np.where(known, np.clip(np.nan_to_num(shares), 0, 1) * 255, 256).astype(np.intp)
            pixels = np.ascontiguousarray(self._table[levels])
            height, width = pixels.shape
            # copy(): the image must not outlive the array whose memory it would borrow.
            self._image = QImage(
                pixels.tobytes(), width, height, 4 * width, QImage.Format.Format_RGB32
            ).copy()
        return self._image

    def sizeHint(self) -> QSize:
        return QSize(420, max(100, 20 * len(self._figure.labels) + AXIS_HEIGHT))

    def minimumSizeHint(self) -> QSize:
        return QSize(200, max(50, int(4.5 * len(self._figure.labels)) + AXIS_HEIGHT))

    def _strip(self) -> tuple[QRectF, float]:
        """Where the strips are, and the height of one row, in pixels."""
        num_rows = max(1, len(self._figure.labels))
        # Names of thin rows stand out above the first one.
        above = 4.0 if self.height() - AXIS_HEIGHT < 12 * num_rows else 0.0
        room = self.height() - AXIS_HEIGHT - above
        row_height = min(36.0, room / num_rows)
        metrics = QFontMetricsF(chart_font(12 if row_height >= 14 else 10, bold=True))
        label_width = (
            max((metrics.horizontalAdvance(label) for label in self._figure.labels), default=40) + 12
        )
        width = max(40.0, self.width() - label_width - 44)
        top = above + max(0.0, (room - num_rows * row_height) / 2)
        return QRectF(label_width, top, width, num_rows * row_height), row_height

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(self.rect(), self._colors.card)
        strip, row_height = self._strip()
        image = self._painted_image()
        # Where rows are thinner than a line of text, every second or third row is named.
        text_size = 12 if row_height >= 14 else 10 if row_height >= 11 else 9
        name_every = 1 if row_height >= 8 else 2 if row_height >= 4.5 else 4
        gap = 2 if row_height >= 8 else 1
        for index, label in enumerate(self._figure.labels):
            row = QRectF(strip.left(), strip.top() + index * row_height, strip.width(), row_height)
            box = row.adjusted(0, gap / 2, 0, -gap / 2)
            painter.fillRect(box, self._colors.track)
            if image is not None:
                painter.drawImage(box, image, QRectF(0, index, image.width(), 1))
            if index % name_every == 0:
                self._paint_words(painter, row, index, label, text_size)
        self._paint_axis(painter, strip)
        painter.end()

    def _paint_words(self, painter: QPainter, row: QRectF, index: int, label: str, text_size: int) -> None:
        leads = index == self._figure.lead
        tall = row.adjusted(0, -4, 0, 4)
        painter.setFont(chart_font(text_size, bold=leads))
        painter.setPen(self._colors.foreground if leads else self._colors.muted)
        painter.drawText(QRectF(0, tall.y(), row.left(), tall.height()), _LEFT, label)
        value = self._figure.values[index] if index < len(self._figure.values) else None
        painter.setFont(chart_font(text_size, bold=leads, mono=True))
        painter.setPen(self._colors.foreground if value is not None else self._colors.muted)
        text = "–" if value is None else f"{100 * value:.0f}%"
        painter.drawText(
            QRectF(row.right(), tall.y(), self.width() - row.right(), tall.height()), _RIGHT, text
        )

    def _paint_axis(self, painter: QPainter, strip: QRectF) -> None:
        painter.setFont(chart_font(10))
        painter.setPen(self._colors.axis)
        span_s = self._figure.span_s
        marks = ((0.0, f"-{span_s:.0f} s"), (0.5, f"-{span_s / 2:.0f} s"), (1.0, "now"))
        for share, text in marks:
            where = QRectF(strip.left() + strip.width() * share - 30, strip.bottom() + 2, 60, 13)
            painter.drawText(where, Qt.AlignmentFlag.AlignCenter, text)

    def tooltip_at(self, x: float, y: float) -> str:
        """The device, the moment and the reading under a point; empty outside the strips."""
        strip, row_height = self._strip()
        shares = self._figure.shares
        if shares is None or not strip.contains(x, y):
            return ""
        index = min(len(self._figure.labels) - 1, int((y - strip.top()) // row_height))
        column = min(shares.shape[1] - 1, int((x - strip.left()) / strip.width() * shares.shape[1]))
        ago_s = self._figure.span_s * (1 - (column + 1) / shares.shape[1])
        share = float(shares[index, column])
        reading = "not known" if np.isnan(share) else f"{100 * share:.0f} % busy"
        return f"{self._figure.labels[index]}, {ago_s:.0f} s ago: {reading}"

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            text = self.tooltip_at(event.pos().x(), event.pos().y())
            QToolTip.showText(event.globalPos(), text, self)
            return True
        return super().event(event)
