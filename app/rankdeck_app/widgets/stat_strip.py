"""Strip of a run's main numbers, readable from a distance: cells side by side, each a label above a number.

Every cell is as wide as its widest possible number, so nothing moves while numbers change; only changed cells
are repainted. If the row is too narrow, labels are shortened first, then numbers are painted in a smaller
font, then the last cells wrap to another row. A cell wider than the strip is elided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QRect, QRectF, QSize, Qt
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent

from rankdeck.base.units import format_bytes
from rankdeck.run.imbalance import BALANCED, Imbalance
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.chart import UNKNOWN, Chart
from rankdeck_app.widgets.painting import chart_font, paint_text

HEIGHT = 46
# (font size of the numbers in px, gap, short labels), from the widest row to the narrowest.
_SIZES = ((17, 22, False), (17, 14, False), (17, 14, True), (15, 12, True))


@dataclass(frozen=True)
class Stat:
    """One cell. `widest` is a text at least as wide as any value; `is_highlighted` paints the value in amber.

    `short_label` replaces the label if there is little space.
    """

    label: str
    value: str
    widest: str
    is_highlighted: bool = False
    short_label: str = ""

    def get_label(self, is_short: bool) -> str:
        return (self.short_label or self.label) if is_short else self.label


def imbalance_stat(imbalance: Imbalance | None, labels: Sequence[str]) -> Stat:
    """Return a cell that shows how far the lead device's memory use exceeds the other devices' median;
    `labels` names all devices."""
    widest = "+888.8 MiB  (8.8×)"
    if imbalance is None:
        return Stat(tr("Lead vs median"), UNKNOWN, widest)
    if not imbalance.is_notable:
        return Stat(tr("Memory across devices"), tr(BALANCED), widest)
    ratio = "" if imbalance.ratio is None else f"  ({imbalance.ratio:.1f}×)"
    value = f"+{format_bytes(imbalance.excess_bytes)}{ratio}"
    lead = labels[imbalance.device]
    label, short = tr("{device} vs median of the others", device=lead), tr("{device} vs median", device=lead)
    if imbalance.num_others < len(labels) - 1:
        count = imbalance.num_others
        label = tr("{device} vs {n} others in use", "{device} vs {n} other in use", count, device=lead)
        short = tr("{device} vs {n} others", "{device} vs {n} other", count, device=lead)
    return Stat(label, value, widest, is_highlighted=True, short_label=short)


class StatStrip(Chart[tuple[Stat, ...]]):
    """Strip of cells, in one row if they fit, otherwise in several; its height depends on the number of
    rows."""

    is_opaque = False  # it is on a page, not in a card

    def __init__(self, theme: Theme) -> None:
        self._cells: list[QRect] = []
        self._value_px = 17
        self._is_short = False
        super().__init__(theme, (), tr("Run metrics"))
        self.setFixedHeight(HEIGHT)

    def describe(self) -> str:
        return ", ".join(f"{stat.label} {stat.value}" for stat in self.data)

    def repaint_changes(self, before: tuple[Stat, ...]) -> None:
        """Repaint the cells that differ from `before`, or the whole strip if the layout differs."""
        now = self.data
        if [_layout_key(stat) for stat in before] != [_layout_key(stat) for stat in now]:
            self.update()
            return
        for cell, old, new in zip(self._cells, before, now, strict=True):
            if old != new:
                self.update(cell)

    def sizeHint(self) -> QSize:
        return QSize(800, self.height())

    def minimumSizeHint(self) -> QSize:
        return QSize(200, self.height())

    def relayout(self) -> None:
        """Choose the largest text size at which all cells fit in one row; if no size fits, wrap the cells at
        the smallest size."""
        for value_px, gap, is_short in _SIZES:
            self._value_px, self._is_short = value_px, is_short
            widths = self._cell_widths()
            if sum(widths) + gap * max(0, len(widths) - 1) <= self.width():
                break
        self._cells = []
        left = top = 0
        for width in widths:
            if left and left + width > self.width():
                left, top = 0, top + HEIGHT
            self._cells.append(QRect(left, top, min(width, self.width()), HEIGHT))
            left += width + gap
        self.setFixedHeight(top + HEIGHT)

    def _cell_widths(self) -> list[int]:
        values, labels = QFontMetrics(chart_font(self._value_px, bold=True)), QFontMetrics(chart_font(11))
        return [
            max(
                values.horizontalAdvance(stat.widest),
                values.horizontalAdvance(stat.value),
                labels.horizontalAdvance(stat.get_label(self._is_short)),
                64,
            )
            + 2
            for stat in self.data
        ]

    def paint(self, painter: QPainter, event: QPaintEvent) -> None:
        elide = Qt.TextElideMode.ElideRight
        for stat, cell in zip(self.data, self._cells, strict=True):
            if not cell.intersects(event.rect()):
                continue
            room = QRectF(cell.x(), cell.y() + 2, cell.width(), 16)
            paint_text(painter, room, stat.get_label(self._is_short), self._colors.muted, 11, elide=elide)
            ink = self._colors.lead_text if stat.is_highlighted else self._colors.foreground
            room = QRectF(cell.x(), cell.y() + 18, cell.width(), 26)
            paint_text(painter, room, stat.value, ink, self._value_px, bold=True, elide=elide)

    def tooltip_at(self, x: float, y: float) -> str:
        """Return the full label and the value of the cell at a point; empty if its label is not shortened."""
        for stat, cell in zip(self.data, self._cells, strict=True):
            if cell.contains(int(x), int(y)) and self._is_short and stat.short_label:
                return f"{stat.label}: {stat.value}"
        return ""


def _layout_key(stat: Stat) -> tuple[object, ...]:
    # A value no longer than `widest` does not change the layout.
    return stat.label, stat.short_label, stat.widest, max(len(stat.value), len(stat.widest))
