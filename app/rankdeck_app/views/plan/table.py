"""The strategies under each other, the names of the columns above them, the kinds of the segments below.

A list with a painting delegate (row_delegate.py): rows come one by one and in any order, so a row that is
answered changes in its place, and the pointer's row does not move while others arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PySide6.QtCore import QAbstractListModel, QModelIndex, QRect, QSize, Qt, Signal
from PySide6.QtGui import QBrush, QFontMetrics, QKeyEvent, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QListView, QSizePolicy, QStyleOptionViewItem, QWidget

from rankdeck_app.theme import Theme
from rankdeck_app.views.plan.plan_figures import SEGMENT_LABELS, RowFigure, Scale
from rankdeck_app.views.plan.row_delegate import (
    CAPACITY_DASHES,
    ICON_WIDTH,
    INDEX_WIDTH,
    Columns,
    PlanRowDelegate,
)
from rankdeck_app.widgets.chart import Chart
from rankdeck_app.widgets.chart_colors import ChartColors
from rankdeck_app.widgets.legend import LegendEntry, paint_entries, place_entries
from rankdeck_app.widgets.painting import DATA_ROLE, LEFT, RIGHT, Index, chart_font, dashed_line, paint_text

_EDGE_HEIGHT = 20


class PlanModel(QAbstractListModel):
    """The rows; `set_rows` tells the view only what differs, or with `repaint` all of it."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.figures: list[RowFigure] = []

    def set_rows(self, figures: Sequence[RowFigure], *, repaint: bool) -> None:
        fresh = list(figures)
        if [figure.key for figure in fresh] != [figure.key for figure in self.figures]:
            self.beginResetModel()
            self.figures = fresh
            self.endResetModel()
            return
        before, self.figures = self.figures, fresh
        for row, (old, new) in enumerate(zip(before, fresh, strict=True)):
            if old != new or repaint:
                self.dataChanged.emit(self.index(row), self.index(row))

    def rowCount(self, parent: Index | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(self.figures)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> object:
        figure = self.figures[index.row()]
        if role == DATA_ROLE:
            return figure
        if role == Qt.ItemDataRole.ToolTipRole:
            return figure.tooltip or None
        if role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.AccessibleTextRole):
            return figure.description
        return None


class PlanTable(QListView):
    """`picked` carries a row's key when it is clicked, or Enter is pressed on it."""

    picked = Signal(tuple)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self.plan_model = PlanModel(self)
        self._delegate = PlanRowDelegate(theme, self)
        self.setModel(self.plan_model)
        self.setItemDelegate(self._delegate)
        self.setMouseTracking(True)
        self.setVerticalScrollMode(QListView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setResizeMode(QListView.ResizeMode.Adjust)
        self.setAccessibleName("Strategies and what each would need")
        self._has_moved = False
        self.clicked.connect(self._pick)
        self.activated.connect(self._pick)
        theme.changed.connect(self._retheme)

    def set_rows(self, figures: Sequence[RowFigure], scale: Scale) -> None:
        """Where rows come or go, the current one and the place on show stay; until a key has moved it, the
        chosen row is the current one.
        """
        current, top = self.currentIndex(), self.verticalScrollBar().value()
        key = self.plan_model.figures[current.row()].key if current.isValid() else None
        heights = [self._height(row) for row in range(self.plan_model.rowCount())]
        has_new_scale, self._delegate.scale = scale != self._delegate.scale, scale
        self.plan_model.set_rows(figures, repaint=has_new_scale)
        if heights != [self._height(row) for row in range(self.plan_model.rowCount())]:
            self.scheduleDelayedItemsLayout()
        keys = [figure.key for figure in figures]
        if key not in keys or not self._has_moved:
            key = next((figure.key for figure in figures if figure.is_chosen), None)
        if key is not None:
            self.setCurrentIndex(self.plan_model.index(keys.index(key)))
        self.verticalScrollBar().setValue(top)

    def brush(self, kind: str, *, leads: bool) -> QBrush:
        return self._delegate.brush(kind, leads=leads)

    def _height(self, row: int) -> int:
        return self._delegate.sizeHint(QStyleOptionViewItem(), self.plan_model.index(row)).height()

    def _pick(self, index: QModelIndex) -> None:
        self.picked.emit(self.plan_model.figures[index.row()].key)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        before = self.currentIndex()
        super().keyPressEvent(event)
        self._has_moved = self._has_moved or self.currentIndex() != before

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.scheduleDelayedItemsLayout()

    def _retheme(self) -> None:
        self._delegate.colors = ChartColors(self._theme)
        self.viewport().update()


def _bars_room(columns: Columns) -> int:
    """For the name of the bars' column: the one beside it begins late, at the right of its numbers."""
    return columns.bars_width - INDEX_WIDTH + 26


class ColumnNames(QWidget):
    """The head of the table. `width_of` tells how wide its rows are beside a scroll bar."""

    def __init__(self, theme: Theme, width_of: Callable[[], int]) -> None:
        super().__init__()
        self._theme = theme
        self._width_of = width_of
        self._axis = ""
        self.setFixedHeight(_EDGE_HEIGHT)
        theme.changed.connect(self.update)

    def show_axis(self, words: str) -> None:
        """What a whole bar stands for."""
        if words != self._axis:
            self._axis = words
            self.setAccessibleName(f"Bars: {words}")
            self.update()

    def _bars_words(self, columns: Columns) -> str:
        """The scale goes before the name of the column where both have no room."""
        whole = f"Each device, {self._axis}" if self._axis else "Each device"
        fits = QFontMetrics(chart_font(11)).horizontalAdvance(whole) <= _bars_room(columns)
        return whole if fits else self._axis

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        columns = Columns(self._width_of())
        for left, width, text, where in (
            (columns.name, columns.name_width, "Strategy", LEFT),
            (columns.bars + INDEX_WIDTH, _bars_room(columns), self._bars_words(columns), LEFT),
            (columns.peak, columns.peak_width, "Fullest", RIGHT),
            (columns.step, columns.step_width, "Step time", RIGHT),
            (columns.verdict + ICON_WIDTH, columns.verdict_width - ICON_WIDTH, "Verdict", LEFT),
        ):
            ink, elide = self._theme.color("descriptionForeground"), Qt.TextElideMode.ElideRight
            if width:
                paint_text(painter, QRect(left, 0, width, _EDGE_HEIGHT), text, ink, 11, where, elide=elide)
        painter.end()


@dataclass(frozen=True)
class SeenKinds:
    """The kinds of memory that can be seen, with the most bytes of each, and whether a capacity is drawn."""

    kinds: tuple[tuple[str, int], ...] = ()
    has_capacity: bool = False


class PlanLegend(Chart[SeenKinds]):
    """The kinds that can be seen, and the sign of the capacity."""

    def __init__(self, theme: Theme, brush: Callable[[str], QBrush]) -> None:
        super().__init__(theme, SeenKinds(), "Kinds of memory")
        self._brush = brush
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def describe(self) -> str:
        return ", ".join(SEGMENT_LABELS[kind] for kind, _ in self.figure.kinds)

    def sizeHint(self) -> QSize:
        return QSize(200, _EDGE_HEIGHT)

    def paint(self, painter: QPainter, event: QPaintEvent) -> None:
        entries = [
            LegendEntry(SEGMENT_LABELS[kind], [self._brush(kind)], weight=num_bytes)
            for kind, num_bytes in self.figure.kinds
        ]
        if self.figure.has_capacity:
            entries.append(LegendEntry("capacity", dashed_line(self._colors.capacity, CAPACITY_DASHES)))
        painter.translate(4, 0)
        [line] = place_entries(entries, self.width() - 4)
        paint_entries(painter, line, self.height() / 2, self._colors.muted)
