"""The base of every chart that is painted by hand: it holds theme and figure, and knows when to repaint.

A figure is plain data, made elsewhere and replaced as a whole. A chart says in `describe` what a screen
reader hears of it, paints it in `paint`, and tells in `tooltip_at` what lies under the pointer. Read
device_rows.py (where things stand) after this.
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
    """A painted widget that shows one figure; `name` is what a screen reader calls it."""

    is_opaque = True
    """Whether the chart paints the ground of its card itself, which spares Qt the widgets below it."""

    def __init__(self, theme: Theme, figure: ChartData, name: str = "") -> None:
        super().__init__()
        self._theme = theme
        self._colors = ChartColors(theme)
        self.data = figure
        self.setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent, self.is_opaque)
        self.setAccessibleName(name)
        theme.changed.connect(self._retheme)

    def set_data(self, figure: ChartData) -> None:
        """Shows another figure; one that is equal to the shown one costs nothing."""
        if figure == self.data:
            return
        sizes = self.sizeHint(), self.minimumSizeHint()
        before, self.data = self.data, figure
        self.relayout()
        if sizes != (self.sizeHint(), self.minimumSizeHint()):
            self.updateGeometry()
        self.setAccessibleDescription(self.describe())
        self.repaint_changes(before)

    def describe(self) -> str:
        """The figure in words, for a screen reader."""
        return ""

    def relayout(self) -> None:
        """Figure, size or colours are new: lay out again, or drop what was laid out."""

    def repaint_changes(self, before: ChartData) -> None:
        """The figure was `before`: repaint what differs, which is all of it unless a chart knows better."""
        self.update()

    def paint(self, painter: QPainter, event: QPaintEvent) -> None:
        """Paints the figure on the ground of the card."""
        raise NotImplementedError

    def tooltip_at(self, x: float, y: float) -> str:
        """What lies under a point, in pixels of the chart; empty for nothing."""
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
    """Names with their bytes, for a tooltip; empty without any."""
    lines = (
        f"<tr><td>{name}</td><td align='right'>&nbsp;&nbsp;{format_bytes(size)}</td></tr>"
        for name, size in rows
    )
    text = "".join(lines)
    return text and f"<table>{text}</table>"


def paint_tick(painter: QPainter, colors: ChartColors, bar: QRectF, share: float) -> None:
    """A prediction: a tick over the bar's whole height, seen on the segments and on the empty track."""
    x = round(min(bar.right() - 1, bar.left() + bar.width() * share))
    painter.fillRect(QRectF(x - 1, bar.top() - 2, 3, bar.height() + 4), colors.card)
    painter.fillRect(QRectF(x, bar.top() - 2, 1, bar.height() + 4), colors.foreground)


# The one legend: a sign and a name for each thing that a chart draws, side by side.
#
# Where there is no room the least of them goes unnamed behind a "+2", or a further line is begun; the
# pointer still tells.

SWATCH_PX = 9
_TEXT_LEFT = 14
_ONE_LINE = int(Qt.TextFlag.TextSingleLine)
_GAP = 10


@dataclass(frozen=True)
class LegendEntry:
    """A name with its sign: brushes on top of each other, or the pen of an upright line.

    `weight`: how much the figure shows of it; None is left out last.
    """

    text: str
    swatch: QPen | Sequence[QBrush | QColor]
    weight: float | None = None

    @property
    def text_left(self) -> int:
        """Where the name begins, in pixels."""
        return _TEXT_LEFT if isinstance(self.swatch, QPen) or self.swatch else 0


PlacedEntry = tuple[LegendEntry, float]
"""An entry and its left edge in pixels."""


def layout_legend(
    entries: Sequence[LegendEntry], width: float, *, px: int = 11, one_line: bool = True
) -> list[list[PlacedEntry]]:
    """The lines of a legend. With `one_line` entries of the least weight are left out until the rest and how
    many they were fit.
    """
    metrics = QFontMetricsF(chart_font(px))

    def taken(entry: LegendEntry) -> float:
        return metrics.horizontalAdvance(entry.text) + entry.text_left + _GAP

    shown, counted = list(entries), list[LegendEntry]()
    while one_line and shown and sum(map(taken, [*shown, *counted])) - _GAP > width:
        # What has no weight goes last, from the end.
        weighed = [entry for entry in shown if entry.weight is not None] or shown[-1:]
        shown.remove(min(weighed, key=lambda entry: entry.weight or 0))
        counted = [LegendEntry(f"+{len(entries) - len(shown)}", ())]
    lines: list[list[PlacedEntry]] = [[]]
    left = 0.0
    for entry in [*shown, *counted]:
        if not one_line and left + taken(entry) - _GAP > width and lines[-1]:
            lines.append([])
            left = 0.0
        lines[-1].append((entry, left))
        left += taken(entry)
    return lines


def paint_legend_line(
    painter: QPainter, line: Sequence[PlacedEntry], middle: float, ink: QColor, *, px: int = 11
) -> None:
    """One line of a legend, its middle at that height."""
    for entry, left in line:
        if isinstance(entry.swatch, QPen):
            painter.setPen(entry.swatch)
            x = left + SWATCH_PX / 2
            painter.drawLine(QPointF(x, middle - 6), QPointF(x, middle + 6))
        else:
            for brush in entry.swatch:
                painter.fillRect(QRectF(left, middle - SWATCH_PX / 2, SWATCH_PX, SWATCH_PX), brush)
        # Not its advance: ď reaches out of it.
        width = QFontMetricsF(chart_font(px)).size(_ONE_LINE, entry.text).width()
        paint_text(painter, QRectF(left + entry.text_left, middle - 9, width, 18), entry.text, ink, px)
