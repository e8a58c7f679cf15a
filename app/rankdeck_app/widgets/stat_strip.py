"""The figures that one reads from across the room: a label over a number, side by side.

Every cell is as wide as its widest possible number, so nothing moves while numbers change; only the cells
that changed are painted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QRect, QRectF, QSize, Qt
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QWidget

from rankdeck_app.widgets.chart_colors import ChartColors, ThemeColors, chart_font

HEIGHT = 46
_GAP = 22
_LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter


@dataclass(frozen=True)
class Stat:
    """One cell. `widest` is a text that is as wide as any value will be; `is_hot` paints it amber."""

    label: str
    value: str
    widest: str
    is_hot: bool = False


class StatStrip(QWidget):
    """A row of cells; where the row is too narrow, numbers and gaps become smaller."""

    def __init__(self, theme: ThemeColors, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._colors = ChartColors.of(theme)
        self._stats: tuple[Stat, ...] = ()
        self._cells: list[QRect] = []
        self._value_px = 17
        self.setFixedHeight(HEIGHT)
        self.setAccessibleName("Figures of the run")
        theme.changed.connect(self._retheme)

    @property
    def stats(self) -> Sequence[Stat]:
        return self._stats

    def set_stats(self, stats: Sequence[Stat]) -> None:
        before, self._stats = self._stats, tuple(stats)
        if [(stat.label, stat.widest) for stat in before] != [(stat.label, stat.widest) for stat in stats]:
            self._lay_out()
            self.update()
        else:
            for index, (old, new) in enumerate(zip(before, stats, strict=True)):
                if old != new:
                    self.update(self._cells[index])
        if self._stats != before:
            self.setAccessibleDescription(", ".join(f"{stat.label} {stat.value}" for stat in stats))

    def _retheme(self) -> None:
        self._colors = ChartColors.of(self._theme)
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(800, HEIGHT)

    def minimumSizeHint(self) -> QSize:
        return QSize(200, HEIGHT)

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._lay_out()

    def _lay_out(self) -> None:
        """The largest number size at which all cells fit, then cells from left to right."""
        for value_px, gap in ((17, _GAP), (17, 14), (15, 12), (13, 10)):
            widths = self._widths(value_px)
            self._value_px = value_px
            if sum(widths) + gap * max(0, len(widths) - 1) <= self.width():
                break
        left = 0
        self._cells = []
        for width in widths:
            self._cells.append(QRect(left, 0, width, HEIGHT))
            left += width + gap

    def _widths(self, value_px: int) -> list[int]:
        values, labels = QFontMetrics(chart_font(value_px, bold=True)), QFontMetrics(chart_font(11))
        return [
            max(values.horizontalAdvance(stat.widest), labels.horizontalAdvance(stat.label), 64) + 2
            for stat in self._stats
        ]

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        for stat, cell in zip(self._stats, self._cells, strict=True):
            if not cell.intersects(event.rect()):
                continue
            painter.setFont(chart_font(11))
            painter.setPen(self._colors.muted)
            painter.drawText(QRectF(cell.x(), 2, cell.width(), 16), _LEFT, stat.label)
            painter.setFont(chart_font(self._value_px, bold=True))
            painter.setPen(self._colors.lead_text if stat.is_hot else self._colors.foreground)
            room = painter.fontMetrics().elidedText(stat.value, Qt.TextElideMode.ElideRight, cell.width() + 4)
            painter.drawText(QRectF(cell.x(), 18, cell.width() + 4, 26), _LEFT, room)
        painter.end()
