"""Base class of the custom-painted charts: it stores the theme and the data, and decides when to repaint.

The data are plain values, built elsewhere and always replaced as a whole. A chart describes its data to a
screen reader in `describe`, paints them in `paint`, and returns the text under the pointer from `tooltip_at`.
Read device_rows.py (layout of device rows) next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from PySide6.QtCore import QEvent, QPointF, QRectF, Qt
from PySide6.QtGui import QBrush, QColor, QFontMetricsF, QHelpEvent, QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QToolTip, QWidget

from rankdeck.base.units import format_bytes
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.chart_colors import ChartColors
from rankdeck_app.widgets.painting import chart_font, paint_text

UNKNOWN = "–"

ChartData = TypeVar("ChartData")


class Chart(QWidget, Generic[ChartData]):
    """A painted widget that shows one set of data; `name` is its accessible name."""

    is_opaque = True
    """Whether the chart itself paints the card's background, so that Qt need not paint widgets behind it."""

    def __init__(self, theme: Theme, data: ChartData, name: str = "") -> None:
        super().__init__()
        self._theme = theme
        self._colors = ChartColors(theme)
        self.data = data
        self.setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent, self.is_opaque)
        self.setAccessibleName(name)
        theme.changed.connect(self._retheme)

    def set_data(self, data: ChartData) -> None:
        """Show new data; if they equal the current data, nothing is repainted."""
        # Data with series or arrays have eq=False: they grow in place, so equal data would stop a live curve.
        if data == self.data:
            return
        sizes = self.sizeHint(), self.minimumSizeHint()
        before, self.data = self.data, data
        self.relayout()
        if sizes != (self.sizeHint(), self.minimumSizeHint()):
            self.updateGeometry()
        self.setAccessibleDescription(self.describe())
        self.repaint_changes(before)

    def describe(self) -> str:
        """Return the data as text for a screen reader."""
        return ""

    def relayout(self) -> None:
        """Recompute the layout or discard the cached one; called when data, size or colours have changed."""

    def repaint_changes(self, before: ChartData) -> None:
        """Repaint the parts that differ from the previous data, `before`; by default, repaint everything."""
        self.update()

    def paint(self, painter: QPainter, event: QPaintEvent) -> None:
        """Paint the data on the card's background."""
        raise NotImplementedError

    def tooltip_at(self, x: float, y: float) -> str:
        """Return the tooltip for a point in chart pixels; empty if there is none."""
        return ""

    def _retheme(self) -> None:
        self._colors = ChartColors(self._theme)
        self.relayout()
        self.update()

    def resizeEvent(self, event: QResizeEvent) -> None:
        self.relayout()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        if self.is_opaque:
            painter.fillRect(self.rect(), self._colors.card)
        self.paint(painter, event)
        painter.end()

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            QToolTip.showText(event.globalPos(), self.tooltip_at(event.pos().x(), event.pos().y()), self)
            return True
        return super().event(event)


def bytes_table(rows: Iterable[tuple[str, int]]) -> str:
    """Return names and their sizes as an HTML table for a tooltip; empty if there are no rows."""
    lines = (
        f"<tr><td>{name}</td><td align='right'>&nbsp;&nbsp;{format_bytes(size)}</td></tr>"
        for name, size in rows
    )
    text = "".join(lines)
    return text and f"<table>{text}</table>"


def paint_tick(painter: QPainter, colors: ChartColors, bar: QRectF, share: float) -> None:
    """Paint a prediction as a tick at `share` of the bar's width, across the full height of the bar; the tick
    is visible on segments and on the track."""
    x = round(min(bar.right() - 1, bar.left() + bar.width() * share))
    painter.fillRect(QRectF(x - 1, bar.top() - 2, 3, bar.height() + 4), colors.card)
    painter.fillRect(QRectF(x, bar.top() - 2, 1, bar.height() + 4), colors.foreground)


# The legend of all charts: a swatch and a name per entry, side by side. Without room, the entries of least
# weight are left out and counted as "+2", or entries wrap to another line; tooltips still name them.

SWATCH_PX = 9
_TEXT_LEFT = 14
_ONE_LINE = int(Qt.TextFlag.TextSingleLine)
_GAP = 10


@dataclass(frozen=True)
class LegendEntry:
    """A name with its swatch: layered brushes, or the pen of a vertical line.

    `weight` is the entry's amount in the chart, such as bytes or seconds; if there is little space, entries
    of low weight are left out first and entries without a weight last.
    """

    text: str
    swatch: QPen | Sequence[QBrush | QColor]
    weight: float | None = None

    @property
    def text_left(self) -> int:
        """Left edge of the name in pixels."""
        return _TEXT_LEFT if isinstance(self.swatch, QPen) or self.swatch else 0


PlacedEntry = tuple[LegendEntry, float]
"""A legend entry with its left edge in pixels."""


def layout_legend(
    entries: Sequence[LegendEntry], width: float, *, px: int = 11, one_line: bool = True
) -> list[list[PlacedEntry]]:
    """Return the lines of a legend.

    If `one_line` is True, the entries with the lowest weight are left out until the remaining entries and a
    "+n" count fit. Otherwise, the entries wrap.
    """
    metrics = QFontMetricsF(chart_font(px))

    def taken(entry: LegendEntry) -> float:
        return metrics.horizontalAdvance(entry.text) + entry.text_left + _GAP

    visible, counted = list(entries), list[LegendEntry]()
    while one_line and visible and sum(map(taken, [*visible, *counted])) - _GAP > width:
        # Entries without a weight are left out last, from the end.
        weighed = [entry for entry in visible if entry.weight is not None] or visible[-1:]
        visible.remove(min(weighed, key=lambda entry: entry.weight or 0))
        counted = [LegendEntry(f"+{len(entries) - len(visible)}", ())]
    lines: list[list[PlacedEntry]] = [[]]
    left = 0.0
    for entry in [*visible, *counted]:
        if not one_line and left + taken(entry) - _GAP > width and lines[-1]:
            lines.append([])
            left = 0.0
        lines[-1].append((entry, left))
        left += taken(entry)
    return lines


def paint_legend_line(
    painter: QPainter, line: Sequence[PlacedEntry], middle: float, ink: QColor, *, px: int = 11
) -> None:
    """Paint one line of a legend, centred vertically at `middle`."""
    for entry, left in line:
        if isinstance(entry.swatch, QPen):
            painter.setPen(entry.swatch)
            x = left + SWATCH_PX / 2
            painter.drawLine(QPointF(x, middle - 6), QPointF(x, middle + 6))
        else:
            for brush in entry.swatch:
                painter.fillRect(QRectF(left, middle - SWATCH_PX / 2, SWATCH_PX, SWATCH_PX), brush)
        # The bounding width, not the advance: a glyph like ď extends beyond its advance.
        width = QFontMetricsF(chart_font(px)).size(_ONE_LINE, entry.text).width()
        paint_text(painter, QRectF(left + entry.text_left, middle - 9, width, 18), entry.text, ink, px)
