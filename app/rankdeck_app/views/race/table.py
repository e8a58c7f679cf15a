"""The entries of a race under each other, and the names of the columns above them."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QModelIndex, Signal
from PySide6.QtGui import QMouseEvent, QPainter, QPaintEvent, QResizeEvent, QWheelEvent
from PySide6.QtWidgets import QWidget

from rankdeck_app.language import tr
from rankdeck_app.theme import Theme
from rankdeck_app.views.race.race_figures import RaceRow, slowest_s
from rankdeck_app.views.race.row_delegate import (
    HEADS,
    ICON_WIDTH,
    ROW_HEIGHT,
    RaceColumns,
    RaceRowDelegate,
    name_width,
)
from rankdeck_app.widgets.figure_list import HEAD_HEIGHT, FigureList, paint_head
from rankdeck_app.widgets.painting import LEFT, RIGHT

_LEAST_ROWS = 3


class RaceTable(FigureList):
    """`picked` carries the number of an entry that is double-clicked, or on which Enter is pressed."""

    picked = Signal(int)

    def __init__(self, theme: Theme) -> None:
        self._delegate = RaceRowDelegate(theme)
        super().__init__(theme, self._delegate, tr("Strategies and how fast each was"))
        self.activated.connect(self._pick)
        self.setMinimumHeight(_LEAST_ROWS * ROW_HEIGHT)

    def set_rows(self, figures: Sequence[RaceRow]) -> None:
        """The current row and the place on show stay, also where rows change their order; until a key or a
        click has moved it, the entry that runs is the current one."""
        number, top = self.current_key(), self.verticalScrollBar().value()
        end_s = slowest_s(figures)
        drawn = end_s, max(map(name_width, figures), default=0)
        is_other = drawn != (self._delegate.end_s, self._delegate.widest_name)
        self._delegate.end_s, self._delegate.widest_name = drawn
        self.rows.set_rows(figures, repaint=is_other)
        numbers = [figure.key for figure in figures]
        running = next((figure.key for figure in figures if figure.share is not None), None)
        if running is not None and not self.has_moved:
            self.setCurrentIndex(self.rows.index(numbers.index(running)))
            self._show_current()
        elif numbers:
            kept = numbers.index(number) if self.has_moved and number in numbers else 0
            self.setCurrentIndex(self.rows.index(kept))
            self.verticalScrollBar().setValue(top if self.has_moved else 0)

    def columns(self) -> RaceColumns:
        """Where they stand now, beside a scroll bar."""
        return self._delegate.columns(self.viewport().width())

    def _show_current(self) -> None:
        if not self.has_moved:
            self.scrollTo(self.currentIndex())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._show_current()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self.has_moved = True
        super().mousePressEvent(event)

    def wheelEvent(self, event: QWheelEvent) -> None:
        self.has_moved = True
        super().wheelEvent(event)

    def _pick(self, index: QModelIndex) -> None:
        self.picked.emit(self.rows.figures[index.row()].key)


class RaceHead(QWidget):
    """The names of the columns of a table."""

    def __init__(self, theme: Theme, table: RaceTable) -> None:
        super().__init__()
        self._theme = theme
        self._table = table
        self._with_plan = False
        self.setFixedHeight(HEAD_HEIGHT)
        theme.changed.connect(self.update)

    def show_plan(self, wanted: bool) -> None:
        """Whether times were predicted, too."""
        self._with_plan = wanted
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        columns, name = self._table.columns(), {key: tr(name) for key, name in HEADS.items()}
        sign = ICON_WIDTH if columns.has_loss_words else 0
        names = (
            (columns.icon, columns.name_width + 24, name["name"], LEFT),
            (columns.bar, columns.bar_head_width, name["planned" if self._with_plan else "bar"], LEFT),
            (columns.step, columns.step_width, name["step"], RIGHT),
            (columns.peak, columns.peak_width, name["peak"], RIGHT),
            (columns.sent, columns.sent_width, name["sent"], RIGHT),
            (columns.losses + sign, columns.losses_width - sign, name["losses"], LEFT),
        )
        paint_head(painter, self._theme, names)
        painter.end()
