"""The one legend: a sign and a name for each thing that a chart draws, side by side.

Where there is no room the least of them goes unnamed behind a "+2", or a further line is begun; the pointer
still tells.
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

    @property
    def text_left(self) -> int:
        """Where the name begins, in pixels."""
        return _TEXT_LEFT if isinstance(self.sign, QPen) or self.sign else 0


PlacedEntry = tuple[LegendEntry, float]
"""An entry and its left edge in pixels."""


def place_entries(
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
        paint_text(painter, QRectF(left + entry.text_left, middle - 9, width, 18), entry.text, ink, px)
