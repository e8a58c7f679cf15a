"""The figures that one reads from across the room: a label over a number, side by side.

Every cell is as wide as its widest possible number, so nothing moves while numbers change; only the cells
that changed are painted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QRect, QRectF, QSize, Qt
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent

from rankdeck.base.units import format_bytes
from rankdeck.run.imbalance import BALANCED, Imbalance
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.chart import UNKNOWN, Chart
from rankdeck_app.widgets.painting import chart_font, paint_text

HEIGHT = 46
_GAP = 22


@dataclass(frozen=True)
class Stat:
    """One cell. `widest` is a text that is as wide as any value will be; `is_hot` paints it amber."""

    label: str
    value: str
    widest: str
    is_hot: bool = False


def imbalance_stat(imbalance: Imbalance | None, labels: Sequence[str]) -> Stat:
    """How far the lead device stands above the median of the others; `labels` name all of them."""
    widest = "+888.8 MiB  (8.8×)"
    if imbalance is None:
        return Stat("Lead vs median", UNKNOWN, widest)
    if not imbalance.is_notable:
        return Stat("Memory across devices", BALANCED, widest)
    ratio = "" if imbalance.ratio is None else f"  ({imbalance.ratio:.1f}×)"
    value = f"+{format_bytes(imbalance.excess_bytes)}{ratio}"
    return Stat(f"{labels[imbalance.device]} vs median of the others", value, widest, is_hot=True)


class StatStrip(Chart[tuple[Stat, ...]]):
    """A row of cells; where the row is too narrow, numbers and gaps become smaller."""

    is_opaque = False  # it stands on a page, not in a card

    def __init__(self, theme: Theme) -> None:
        self._cells: list[QRect] = []
        self._value_px = 17
        super().__init__(theme, (), "Figures of the run")
        self.setFixedHeight(HEIGHT)

    def describe(self) -> str:
        return ", ".join(f"{stat.label} {stat.value}" for stat in self.figure)

    def repaint_after(self, before: tuple[Stat, ...]) -> None:
        """Only the cells that differ, where all of them stay in their places."""
        now = self.figure
        if [(stat.label, stat.widest) for stat in before] != [(stat.label, stat.widest) for stat in now]:
            self.update()
            return
        for cell, old, new in zip(self._cells, before, now, strict=True):
            if old != new:
                self.update(cell)

    def sizeHint(self) -> QSize:
        return QSize(800, HEIGHT)

    def minimumSizeHint(self) -> QSize:
        return QSize(200, HEIGHT)

    def relayout(self) -> None:
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
            for stat in self.figure
        ]

    def paint(self, painter: QPainter, event: QPaintEvent) -> None:
        for stat, cell in zip(self.figure, self._cells, strict=True):
            if not cell.intersects(event.rect()):
                continue
            paint_text(painter, QRectF(cell.x(), 2, cell.width(), 16), stat.label, self._colors.muted, 11)
            ink = self._colors.lead_text if stat.is_hot else self._colors.foreground
            room, elide = QRectF(cell.x(), 18, cell.width() + 4, 26), Qt.TextElideMode.ElideRight
            paint_text(painter, room, stat.value, ink, self._value_px, bold=True, elide=elide)
