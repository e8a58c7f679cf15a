"""The base of every chart that is painted by hand: it holds theme and figure, and knows when to repaint.

A figure is plain data, made elsewhere and replaced as a whole. A chart says in `describe` what a screen
reader hears of it, paints it in `paint`, and tells in `tooltip_at` what lies under the pointer. Read
device_rows.py (where things stand) and legend.py after this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QHelpEvent, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QToolTip, QWidget

from rankdeck.base.units import format_bytes
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.chart_colors import ChartColors

UNKNOWN = "–"

Figure = TypeVar("Figure")


class Chart(QWidget, Generic[Figure]):
    """A painted widget that shows one figure; `name` is what a screen reader calls it."""

    is_opaque = True
    """Whether the chart paints the ground of its card itself, which spares Qt the widgets below it."""

    def __init__(self, theme: Theme, figure: Figure, name: str = "") -> None:
        super().__init__()
        self._theme = theme
        self._colors = ChartColors(theme)
        self.figure = figure
        self.setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent, self.is_opaque)
        self.setAccessibleName(name)
        theme.changed.connect(self._retheme)

    def set_figure(self, figure: Figure) -> None:
        """Shows another figure; one that is equal to the shown one costs nothing."""
        if figure == self.figure:
            return
        sizes = self.sizeHint(), self.minimumSizeHint()
        before, self.figure = self.figure, figure
        self.relayout()
        if sizes != (self.sizeHint(), self.minimumSizeHint()):
            self.updateGeometry()
        self.setAccessibleDescription(self.describe())
        self.repaint_after(before)

    def describe(self) -> str:
        """The figure in words, for a screen reader."""
        return ""

    def relayout(self) -> None:
        """Figure, size or colours are new: lay out again, or drop what was laid out."""

    def repaint_after(self, before: Figure) -> None:
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
