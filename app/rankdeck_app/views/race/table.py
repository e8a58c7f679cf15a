"""The entries of a race under each other, and the names of the columns above them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QModelIndex, Signal
from PySide6.QtGui import QMouseEvent, QPainter, QPaintEvent, QResizeEvent, QWheelEvent
from PySide6.QtWidgets import QWidget

from rankdeck_app.language import tr
from rankdeck_app.theme import Theme
from rankdeck_app.views.race.race_figures import RaceRow, slowest_s
from rankdeck_app.views.race.row_delegate import RaceColumns, RaceRowDelegate
from rankdeck_app.widgets.figure_list import HEAD_HEIGHT, FigureList, paint_head
from rankdeck_app.widgets.painting import LEFT, RIGHT


class RaceTable(FigureList):
    """`picked` carries the number of an entry that is double-clicked, or on which Enter is pressed."""

    picked = Signal(int)

    def __init__(self, theme: Theme) -> None:
        self._delegate = RaceRowDelegate(theme)
        super().__init__(theme, self._delegate, tr("Strategies and how fast each was"))
        self.activated.connect(self._pick)

    def set_rows(self, figures: Sequence[RaceRow]) -> None:
        """The current row and the place on show stay, also where rows change their order; until a key or a
        click has moved it, the entry that runs is the current one."""
        number, top = self.current_key(), self.verticalScrollBar().value()
        end_s = slowest_s(figures)
        has_new_scale, self._delegate.end_s = end_s != self._delegate.end_s, end_s
        self.rows.set_rows(figures, repaint=has_new_scale)
        numbers = [figure.key for figure in figures]
        running = next((figure.key for figure in figures if figure.share is not None), None)
        if running is not None and not self.has_moved:
            self.setCurrentIndex(self.rows.index(numbers.index(running)))
            self._show_current()
        elif numbers:
            kept = numbers.index(number) if self.has_moved and number in numbers else 0
            self.setCurrentIndex(self.rows.index(kept))
            self.verticalScrollBar().setValue(top if self.has_moved else 0)

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
    """The names of the columns. `width_of` tells how wide rows are beside a scroll bar."""

    def __init__(self, theme: Theme, width_of: Callable[[], int]) -> None:
        super().__init__()
        self._theme = theme
        self._width_of = width_of
        self._with_plan = False
        self.setFixedHeight(HEAD_HEIGHT)
        theme.changed.connect(self.update)

    def show_plan(self, wanted: bool) -> None:
        """Whether times were predicted, too."""
        if wanted != self._with_plan:
            self._with_plan = wanted
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        columns = RaceColumns(self._width_of())
        predicted, times = tr("Measured; below: predicted"), tr("Step time, and where 8 of 10 lie")
        names = (
            (columns.icon, columns.name_width + 24, tr("Strategy"), LEFT),
            (columns.bar, columns.bar_width, predicted if self._with_plan else times, LEFT),
            (columns.step, columns.step_width, tr("Step"), RIGHT),
            (columns.peak, columns.peak_width, tr("Fullest device"), RIGHT),
            (columns.sent, columns.sent_width, tr("Sent a step"), RIGHT),
            (columns.losses + 21, columns.losses_width - 21, tr("Losses"), LEFT),
        )
        paint_head(painter, self._theme, names)
        painter.end()
