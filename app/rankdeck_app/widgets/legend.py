"""The one legend: a sign and a name for each thing that a chart draws, side by side.

Where there is no room the least of them goes unnamed, or a further line is begun; the pointer still tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QBrush, QColor, QFontMetricsF, QPainter, QPen

from rankdeck_app.widgets.painting import chart_font, paint_text

SIGN_PX = 9
_TEXT_LEFT = 14
_ONE_LINE = int(Qt.TextFlag.TextSingleLine)
_GAP = 10


@dataclass(frozen=True)
class LegendEntry:
    """A name with its sign: brushes on top of each other, or the pen of an upright line.

    `weight`: how much the figure shows of it; None is left out last.
    """

    text: str
    sign: QPen | Sequence[QBrush | QColor]
    weight: float | None = None


PlacedEntry = tuple[LegendEntry, float]
"""An entry and its left edge in pixels."""


def place_entries(
    entries: Sequence[LegendEntry], width: float, *, px: int = 11, one_line: bool = True
) -> list[list[PlacedEntry]]:
    """The lines of a legend. With `one_line` entries of the least weight are left out until the rest fits."""
    metrics = QFontMetricsF(chart_font(px))
    widths = {entry.text: metrics.horizontalAdvance(entry.text) + _TEXT_LEFT + _GAP for entry in entries}
    shown = list(entries)
    while one_line and sum(widths[entry.text] for entry in shown) - _GAP > width:
        # What has no weight goes last, from the end.
        weighed = [entry for entry in shown if entry.weight is not None] or shown[-1:]
        shown.remove(min(weighed, key=lambda entry: entry.weight or 0))
    lines: list[list[PlacedEntry]] = [[]]
    left = 0.0
    for entry in shown:
        if not one_line and left + widths[entry.text] - _GAP > width and lines[-1]:
            lines.append([])
            left = 0.0
        lines[-1].append((entry, left))
        left += widths[entry.text]
    return lines


def paint_entries(
    painter: QPainter, line: Sequence[PlacedEntry], middle: float, ink: QColor, *, px: int = 11
) -> None:
    """One line of a legend, its middle at that height."""
    for entry, left in line:
        if isinstance(entry.sign, QPen):
            painter.setPen(entry.sign)
            x = left + SIGN_PX / 2
            painter.drawLine(QPointF(x, middle - 6), QPointF(x, middle + 6))
        else:
            for brush in entry.sign:
                painter.fillRect(QRectF(left, middle - SIGN_PX / 2, SIGN_PX, SIGN_PX), brush)
        # Not its advance: ď reaches out of it.
        width = QFontMetricsF(chart_font(px)).size(_ONE_LINE, entry.text).width()
        paint_text(painter, QRectF(left + _TEXT_LEFT, middle - 9, width, 18), entry.text, ink, px)
