"""Table with a column per compared run, grouped rows, the best values marked, and notes below groups.

Its height depends on its rows and width, so that it can be part of a scrolling page. Tooltips show the full
text of elided cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QFontMetricsF, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy

from rankdeck.compare.table import run_letter
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme, draw_icon
from rankdeck_app.widgets.chart import Chart
from rankdeck_app.widgets.painting import LEFT, RIGHT, chart_font, paint_text, text_width
from rankdeck_app.widgets.run_markers import LETTER_HEIGHT, LETTER_WIDTH, paint_letter

_HEADER_HEIGHT, _GROUP_HEIGHT, _ROW_HEIGHT, _TALL_ROW_HEIGHT, _NOTE_HEIGHT = 28, 28, 24, 38, 18
_MIN_LABEL_WIDTH, _MAX_LABEL_WIDTH = 120, 190
MIN_COLUMN_WIDTH = 88
_GAP = 14
_ELIDE_MODE = Qt.TextElideMode.ElideRight


@dataclass(frozen=True)
class ComparisonCell:
    """A value of one run. `detail` is shown in smaller type below the text; if `tooltip` is empty, the
    tooltip shows the text."""

    text: str
    detail: str = ""
    is_best: bool = False
    is_dim: bool = False
    tooltip: str = ""


@dataclass(frozen=True)
class ComparisonLine:
    """A row of cells, a note, or a group heading.

    A line without cells is a note or, if `is_group` is True, the heading of the lines below. `source`, shown
    at the right end of a heading, is the source of the values in those lines.
    """

    label: str
    cells: tuple[ComparisonCell, ...] = ()
    is_group: bool = False
    source: str = ""

    def height(self, width: float) -> int:
        if self.cells:
            return _TALL_ROW_HEIGHT if any(cell.detail for cell in self.cells) else _ROW_HEIGHT
        return _GROUP_HEIGHT if self.is_group else _NOTE_HEIGHT * len(self.note_lines(width))

    def note_lines(self, width: float) -> list[str]:
        """Return the note's text, wrapped into lines at most `width` pixels wide."""
        metrics, lines = QFontMetricsF(chart_font(11)), [""]
        for word in self.label.split():
            longer = f"{lines[-1]} {word}".strip()
            if lines[-1] and metrics.horizontalAdvance(longer) > width:
                lines.append(word)
            else:
                lines[-1] = longer
        return lines


@dataclass(frozen=True)
class ComparisonTableData:
    """Lines of a comparison. If `is_text` is True, the cells contain left-aligned text instead of numbers."""

    num_runs: int = 0
    baseline: int = 0
    lines: tuple[ComparisonLine, ...] = ()
    is_text: bool = False

    def height(self, width: float) -> int:
        return _HEADER_HEIGHT + sum(line.height(width) for line in self.lines) + 4

    @cached_property
    def label_width(self) -> float:
        """Width of the row labels in pixels."""
        metrics = QFontMetricsF(chart_font(12))
        widths = (metrics.horizontalAdvance(line.label) for line in self.lines if line.cells)
        return min(_MAX_LABEL_WIDTH, max(_MIN_LABEL_WIDTH, *widths, 0.0) + 4)

    @property
    def preferred_width(self) -> int:
        """Width in pixels at which no number is elided."""
        return round(self.label_width) + (MIN_COLUMN_WIDTH + 12) * self.num_runs


class ComparisonTable(Chart[ComparisonTableData]):
    """Table of compared metrics or of differing config keys."""

    def __init__(self, theme: Theme, name: str) -> None:
        super().__init__(theme, ComparisonTableData(), name)
        policy = QSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Minimum)
        # Notes wrap, so the height depends on the width.
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        return self.data.height(width)

    def sizeHint(self) -> QSize:
        width = self.minimumSizeHint().width()
        return QSize(width, self.data.height(max(width, self.width())))

    def minimumSizeHint(self) -> QSize:
        return QSize(_MIN_LABEL_WIDTH + MIN_COLUMN_WIDTH * self.data.num_runs, _HEADER_HEIGHT)

    def describe(self) -> str:
        return "; ".join(self._accessible_text(line) for line in self.data.lines if line.label)

    def _accessible_text(self, line: ComparisonLine) -> str:
        cells = (_accessible_cell_text(run_letter(index), cell) for index, cell in enumerate(line.cells))
        return ": ".join(filter(None, (line.label, line.source or ", ".join(cells))))

    def _label_width(self) -> float:
        # Labels shrink before the columns of numbers do.
        return min(self.data.label_width, self.width() - MIN_COLUMN_WIDTH * self.data.num_runs)

    def _cell_box(self, index: int, top: float, height: float) -> QRectF:
        left = self._label_width()
        width = (self.width() - left) / max(1, self.data.num_runs)
        return QRectF(left + index * width + _GAP, top, width - _GAP, height)

    def paint(self, painter: QPainter, event: QPaintEvent) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        for index in range(self.data.num_runs):
            box = self._cell_box(index, 4, LETTER_HEIGHT)
            left = box.left() if self.data.is_text else box.right() - LETTER_WIDTH
            plate = QRectF(left, box.top(), LETTER_WIDTH, LETTER_HEIGHT)
            paint_letter(painter, self._theme, plate, index, is_baseline=index == self.data.baseline)
        top = float(_HEADER_HEIGHT)
        for line in self.data.lines:
            height = line.height(self.width())
            # Only visible lines: the table is in a scroll area and may be long.
            if event.rect().top() <= top + height and top <= event.rect().bottom():
                self._paint_line(painter, line, top)
            top += height

    def _paint_line(self, painter: QPainter, line: ComparisonLine, top: float) -> None:
        colors, elide = self._colors, _ELIDE_MODE
        if line.is_group:
            room = QRectF(0, top + 6, self.width(), _GROUP_HEIGHT - 6)
            painted_text = paint_text(
                painter, room, line.label, colors.foreground, 12, bold=True, elide=elide
            )
            room.setLeft(text_width(painter, painted_text) + _GAP)
            paint_text(painter, room, line.source, colors.axis, 11, RIGHT, elide=elide)
            return
        if not line.cells:
            for number, text in enumerate(line.note_lines(self.width())):
                room = QRectF(0, top + number * _NOTE_HEIGHT, self.width(), _NOTE_HEIGHT)
                paint_text(painter, room, text, colors.axis, 11)
            return
        painter.setPen(QPen(colors.grid, 1))
        painter.drawLine(QPointF(0, top + 0.5), QPointF(self.width(), top + 0.5))
        label = QRectF(0, top, self._label_width(), _ROW_HEIGHT)
        paint_text(painter, label, line.label, colors.muted, 12, elide=elide)
        for index, cell in enumerate(line.cells):
            self._paint_cell(painter, cell, self._cell_box(index, top, _ROW_HEIGHT))

    def _paint_cell(self, painter: QPainter, cell: ComparisonCell, box: QRectF) -> None:
        colors, is_text = self._colors, self.data.is_text
        ink = colors.muted if cell.is_dim else colors.foreground
        if cell.is_best:
            ink = self._theme.color("rankdeck.ok")
        align = LEFT if is_text else RIGHT
        painted_text = paint_text(
            painter, box, cell.text, ink, 12, align, bold=cell.is_best, mono=True, elide=_ELIDE_MODE
        )
        if cell.is_best:
            # The star marks the best value without relying on colour.
            width = painter.fontMetrics().horizontalAdvance(painted_text)
            sign = QRectF(box.right() - width - 17, box.top() + 5, 13, 13)
            draw_icon(painter, "star-full", sign, ink)
        if cell.detail:
            below = QRectF(box.left(), box.top() + 19, box.width(), 15)
            paint_text(painter, below, cell.detail, colors.axis, 11, align, elide=_ELIDE_MODE)

    def tooltip_at(self, x: float, y: float) -> str:
        top = float(_HEADER_HEIGHT)
        for line in self.data.lines:
            height = line.height(self.width())
            if top <= y < top + height:
                return self._line_tooltip(line, x, top)
            top += height
        return ""

    def _line_tooltip(self, line: ComparisonLine, x: float, top: float) -> str:
        for index, cell in enumerate(line.cells):
            if self._cell_box(index, top, _ROW_HEIGHT).contains(x, top + 1):
                return cell.tooltip or cell.text
        return "\n".join(filter(None, (line.label, line.source)))


def _accessible_cell_text(letter: str, cell: ComparisonCell) -> str:
    best = tr("{letter} {value} (best)", letter=letter, value=cell.text)
    return best if cell.is_best else f"{letter} {cell.text}"
