"""The entries of a race under each other, and the names of the columns above them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QAbstractListModel, QModelIndex, QRect, Qt, Signal
from PySide6.QtGui import QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QResizeEvent, QWheelEvent
from PySide6.QtWidgets import QListView, QWidget

from rankdeck_app.theme import Theme
from rankdeck_app.views.race.race_figures import RaceRow, slowest_s
from rankdeck_app.views.race.row_delegate import RaceColumns, RaceRowDelegate
from rankdeck_app.widgets.chart_colors import ChartColors
from rankdeck_app.widgets.painting import DATA_ROLE, LEFT, RIGHT, Index, paint_text

_HEAD_HEIGHT = 20


class RaceModel(QAbstractListModel):
    """The rows; `set_rows` tells the view only what differs, or with `repaint` all of it."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.figures: list[RaceRow] = []

    def set_rows(self, figures: Sequence[RaceRow], *, repaint: bool) -> None:
        fresh = list(figures)
        if [figure.number for figure in fresh] != [figure.number for figure in self.figures]:
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


class RaceTable(QListView):
    """`picked` carries the number of an entry that is double-clicked, or on which Enter is pressed."""

    picked = Signal(int)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self.race_model = RaceModel(self)
        self._delegate = RaceRowDelegate(theme, self)
        self.setModel(self.race_model)
        self.setItemDelegate(self._delegate)
        self.setMouseTracking(True)
        self.setVerticalScrollMode(QListView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setResizeMode(QListView.ResizeMode.Adjust)
        self.setAccessibleName("Strategies and how fast each was")
        self._has_moved = False
        self.activated.connect(self._pick)
        theme.changed.connect(self._retheme)

    def set_rows(self, figures: Sequence[RaceRow]) -> None:
        """The current row and the place on show stay, also where rows change their order; until a key or a
        click has moved it, the entry that runs is the current one."""
        current, top = self.currentIndex(), self.verticalScrollBar().value()
        number = self.race_model.figures[current.row()].number if current.isValid() else 0
        end_s = slowest_s(figures)
        has_new_scale, self._delegate.end_s = end_s != self._delegate.end_s, end_s
        self.race_model.set_rows(figures, repaint=has_new_scale)
        numbers = [figure.number for figure in figures]
        running = next((figure.number for figure in figures if figure.share is not None), None)
        if running is not None and not self._has_moved:
            self.setCurrentIndex(self.race_model.index(numbers.index(running)))
            self._show_current()
        elif numbers:
            kept = numbers.index(number) if self._has_moved and number in numbers else 0
            self.setCurrentIndex(self.race_model.index(kept))
            self.verticalScrollBar().setValue(top if self._has_moved else 0)

    def _show_current(self) -> None:
        if not self._has_moved:
            self.scrollTo(self.currentIndex())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._show_current()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        before = self.currentIndex()
        super().keyPressEvent(event)
        self._has_moved = self._has_moved or self.currentIndex() != before

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._has_moved = True
        super().mousePressEvent(event)

    def wheelEvent(self, event: QWheelEvent) -> None:
        self._has_moved = True
        super().wheelEvent(event)

    def _pick(self, index: QModelIndex) -> None:
        self.picked.emit(self.race_model.figures[index.row()].number)

    def _retheme(self) -> None:
        self._delegate.colors = ChartColors(self._theme)
        self.viewport().update()


class RaceHead(QWidget):
    """The names of the columns. `width_of` tells how wide rows are beside a scroll bar."""

    def __init__(self, theme: Theme, width_of: Callable[[], int]) -> None:
        super().__init__()
        self._theme = theme
        self._width_of = width_of
        self._with_plan = False
        self.setFixedHeight(_HEAD_HEIGHT)
        theme.changed.connect(self.update)

    def show_plan(self, wanted: bool) -> None:
        """Whether times were predicted, too."""
        if wanted != self._with_plan:
            self._with_plan = wanted
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        columns = RaceColumns(self._width_of())
        times = "Measured; below: predicted" if self._with_plan else "Step time, and where 8 of 10 lie"
        for left, width, text, where in (
            (columns.icon, columns.name_width + 24, "Strategy", LEFT),
            (columns.bar, columns.bar_width, times, LEFT),
            (columns.step, columns.step_width, "Step", RIGHT),
            (columns.peak, columns.peak_width, "Fullest device", RIGHT),
            (columns.sent, columns.sent_width, "Sent a step", RIGHT),
            (columns.losses + 21, columns.losses_width - 21, "Losses", LEFT),
        ):
            ink, elide = self._theme.color("descriptionForeground"), Qt.TextElideMode.ElideRight
            if width:
                paint_text(painter, QRect(left, 0, width, _HEAD_HEIGHT), text, ink, 11, where, elide=elide)
        painter.end()
