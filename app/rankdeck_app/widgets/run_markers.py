"""Markers that distinguish the runs of a comparison: a letter and a dash pattern. Each run also has a muted
tint, but no run is distinguished by colour alone."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPen

from rankdeck.compare.bar_charts import DASHES
from rankdeck.compare.table import run_letter
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.painting import CENTER, paint_rounded_box, paint_text

LETTER_WIDTH, LETTER_HEIGHT = 20, 18
_CURVE_WIDTH = 2.0
_RUN_COLORS = ("foreground", "rankdeck.rest", "rankdeck.kind.activations", "rankdeck.kind.optimizer")


def run_color(theme: Theme, index: int) -> QColor:
    """Return the tint of the run at position `index` of a comparison; in light themes, another tint replaces
    the palest tint."""
    key = _RUN_COLORS[index % len(_RUN_COLORS)]
    if key == "rankdeck.kind.activations" and theme.is_light:
        key = "rankdeck.kind.gradients"
    return theme.color(key)


def run_pen(theme: Theme, index: int) -> QPen:
    """Return the pen for the curve of the run at position `index` of a comparison."""
    pen = QPen(run_color(theme, index), _CURVE_WIDTH)
    pen.setCosmetic(True)
    if DASHES[index]:
        # Qt measures dashes in pen widths.
        pen.setDashPattern([length / _CURVE_WIDTH for length in DASHES[index]])
        pen.setCapStyle(Qt.PenCapStyle.FlatCap)
    return pen


def paint_letter(painter: QPainter, theme: Theme, box: QRectF, index: int, *, is_baseline: bool) -> None:
    """Paint the letter of the run at position `index` on a rounded box, in the colours of a badge if the run
    is the baseline."""
    color = theme.color
    paint_rounded_box(painter, theme, box, 4, color("badge.background" if is_baseline else "rankdeck.track"))
    ink = color("badge.foreground" if is_baseline else "foreground")
    paint_text(painter, box, run_letter(index), ink, 11, CENTER, bold=True)


def paint_dash(painter: QPainter, theme: Theme, box: QRectF, index: int) -> None:
    """Paint a line across the middle of a box, in the style of the curve of the run at position `index`."""
    painter.setPen(run_pen(theme, index))
    y = box.center().y()
    painter.drawLine(QPointF(box.left(), y), QPointF(box.right(), y))
