"""A table with a column for each run of a comparison: groups of rows, the best marked, notes below a group.

Its height follows from its rows and its width, for a page that scrolls. What is cut is whole in the tooltip.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QFontMetricsF, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy

from rankdeck.compare.table import letter_of
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme, draw_icon
from rankdeck_app.widgets.chart import Chart
from rankdeck_app.widgets.painting import LEFT, RIGHT, chart_font, paint_text, painted_width
from rankdeck_app.widgets.run_signs import LETTER_HEIGHT, LETTER_WIDTH, paint_letter

_HEAD, _GROUP, _ROW, _TALL_ROW, _NOTE = 28, 28, 24, 38, 18
_LEAST_LABEL, _MOST_LABEL = 120, 190
LEAST_COLUMN = 88
_GAP = 14
_ELIDED = Qt.TextElideMode.ElideRight


@dataclass(frozen=True)
class SideCell:
    """`below` stands smaller under the text; `tooltip` has what there is no room for."""

    text: str
    below: str = ""
    is_best: bool = False
    is_dim: bool = False
    tooltip: str = ""


@dataclass(frozen=True)
class SideLine:
    """A row with its cells; without cells a note, or with `is_group` the heading of what follows, at whose
    end stands who made the figures below."""

    label: str
    cells: tuple[SideCell, ...] = ()
    is_group: bool = False
    source: str = ""

    def height(self, width: float) -> int:
        if self.cells:
            return _TALL_ROW if any(cell.below for cell in self.cells) else _ROW
        return _GROUP if self.is_group else _NOTE * len(self.note_lines(width))

    def note_lines(self, width: float) -> list[str]:
        """A note in as many lines as it needs."""
        metrics, lines = QFontMetricsF(chart_font(11)), [""]
        for word in self.label.split():
            longer = f"{lines[-1]} {word}".strip()
            if lines[-1] and metrics.horizontalAdvance(longer) > width:
                lines.append(word)
            else:
                lines[-1] = longer
        return lines


@dataclass(frozen=True)
class SideFigure:
    """`is_text`: words in a fixed-width face, from the left, instead of numbers."""

    num_runs: int = 0
    baseline: int = 0
    lines: tuple[SideLine, ...] = ()
    is_text: bool = False

    def height(self, width: float) -> int:
        return _HEAD + sum(line.height(width) for line in self.lines) + 4

    @cached_property
    def label_width(self) -> float:
        """What the names of the rows take."""
        metrics = QFontMetricsF(chart_font(12))
        widths = (metrics.horizontalAdvance(line.label) for line in self.lines if line.cells)
        return min(_MOST_LABEL, max(_LEAST_LABEL, *widths, 0.0) + 4)

    @property
    def comfortable_width(self) -> int:
        """In which no number is cut."""
        return round(self.label_width) + (LEAST_COLUMN + 12) * self.num_runs


class SideBySide(Chart[SideFigure]):
    """Figures, or keys that differ."""

    def __init__(self, theme: Theme, name: str) -> None:
        super().__init__(theme, SideFigure(), name)
        policy = QSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Minimum)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        return self.figure.height(width)

    def sizeHint(self) -> QSize:
        width = self.minimumSizeHint().width()
        return QSize(width, self.figure.height(max(width, self.width())))

    def minimumSizeHint(self) -> QSize:
        return QSize(_LEAST_LABEL + LEAST_COLUMN * self.figure.num_runs, _HEAD)

    def describe(self) -> str:
        return "; ".join(self._spoken(line) for line in self.figure.lines if line.label)

    def _spoken(self, line: SideLine) -> str:
        cells = (_spoken_cell(letter_of(place), cell) for place, cell in enumerate(line.cells))
        return ": ".join(filter(None, (line.label, line.source or ", ".join(cells))))

    def _label_width(self) -> float:
        return min(self.figure.label_width, self.width() - LEAST_COLUMN * self.figure.num_runs)

    def _cell_box(self, place: int, top: float, height: float) -> QRectF:
        left = self._label_width()
        width = (self.width() - left) / max(1, self.figure.num_runs)
        return QRectF(left + place * width + _GAP, top, width - _GAP, height)

    def paint(self, painter: QPainter, event: QPaintEvent) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        for place in range(self.figure.num_runs):
            box = self._cell_box(place, 4, LETTER_HEIGHT)
            left = box.left() if self.figure.is_text else box.right() - LETTER_WIDTH
            plate = QRectF(left, box.top(), LETTER_WIDTH, LETTER_HEIGHT)
            paint_letter(painter, self._theme, plate, place, is_baseline=place == self.figure.baseline)
        top = float(_HEAD)
        for line in self.figure.lines:
            height = line.height(self.width())
            if event.rect().top() <= top + height and top <= event.rect().bottom():
                self._paint_line(painter, line, top)
            top += height

    def _paint_line(self, painter: QPainter, line: SideLine, top: float) -> None:
        colors, elide = self._colors, _ELIDED
        if line.is_group:
            room = QRectF(0, top + 6, self.width(), _GROUP - 6)
            shown = paint_text(painter, room, line.label, colors.foreground, 12, bold=True, elide=elide)
            room.setLeft(painted_width(painter, shown) + _GAP)
            paint_text(painter, room, line.source, colors.axis, 11, RIGHT, elide=elide)
            return
        if not line.cells:
            for number, words in enumerate(line.note_lines(self.width())):
                room = QRectF(0, top + number * _NOTE, self.width(), _NOTE)
                paint_text(painter, room, words, colors.axis, 11)
            return
        painter.setPen(QPen(colors.grid, 1))
        painter.drawLine(QPointF(0, top + 0.5), QPointF(self.width(), top + 0.5))
        label = QRectF(0, top, self._label_width(), _ROW)
        paint_text(painter, label, line.label, colors.muted, 12, elide=elide)
        for place, cell in enumerate(line.cells):
            self._paint_cell(painter, cell, self._cell_box(place, top, _ROW))

    def _paint_cell(self, painter: QPainter, cell: SideCell, box: QRectF) -> None:
        colors, is_text = self._colors, self.figure.is_text
        ink = colors.muted if cell.is_dim else colors.foreground
        if cell.is_best:
            ink = self._theme.color("rankdeck.ok")
        align = LEFT if is_text else RIGHT
        shown = paint_text(
            painter, box, cell.text, ink, 12, align, bold=cell.is_best, mono=True, elide=_ELIDED
        )
        if cell.is_best:
            # Beside the number: a sign that needs no colour.
            width = painter.fontMetrics().horizontalAdvance(shown)
            sign = QRectF(box.right() - width - 17, box.top() + 5, 13, 13)
            draw_icon(painter, "star-full", sign, ink)
        if cell.below:
            below = QRectF(box.left(), box.top() + 19, box.width(), 15)
            paint_text(painter, below, cell.below, colors.axis, 11, align, elide=_ELIDED)

    def tooltip_at(self, x: float, y: float) -> str:
        top = float(_HEAD)
        for line in self.figure.lines:
            height = line.height(self.width())
            if top <= y < top + height:
                return self._tooltip_of(line, x, top)
            top += height
        return ""

    def _tooltip_of(self, line: SideLine, x: float, top: float) -> str:
        for place, cell in enumerate(line.cells):
            if self._cell_box(place, top, _ROW).contains(x, top + 1):
                return cell.tooltip or cell.text
        return "\n".join(filter(None, (line.label, line.source)))


def _spoken_cell(letter: str, cell: SideCell) -> str:
    best = tr("{letter} {value} (best)", letter=letter, value=cell.text)
    return best if cell.is_best else f"{letter} {cell.text}"
