"""The list of what fits at the cursor, below it: words, what they are, and what the marked one is for.

It never takes the keyboard: the editor asks `take_key` first. Enter or Tab takes the marked one, Escape
closes.
"""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QModelIndex, QRect, Qt, Signal
from PySide6.QtGui import QColor, QKeyEvent, QPainter, QStandardItem, QStandardItemModel
from PySide6.QtWidgets import QFrame, QListView, QWidget

from rankdeck_app.language import tr
from rankdeck_app.state.toml_schema import Offer
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.layouts import column, text_label
from rankdeck_app.widgets.painting import (
    DATA_ROLE,
    RIGHT,
    Index,
    ListRowDelegate,
    paint_text,
    painted_width,
)

WIDTH = 460
ROW_HEIGHT = 22
MAX_ROWS = 8
_STEPS = {
    Qt.Key.Key_Down: 1,
    Qt.Key.Key_Up: -1,
    Qt.Key.Key_PageDown: MAX_ROWS,
    Qt.Key.Key_PageUp: -MAX_ROWS,
}


class _OfferDelegate(ListRowDelegate):
    def paint_row(self, painter: QPainter, rect: QRect, index: Index, ink: Callable[[str], QColor]) -> None:
        one: Offer = index.data(DATA_ROLE)
        room = rect.adjusted(8, 0, -8, 0)
        paint_text(painter, room, one.text, ink("foreground"), 12, mono=True)
        left = room.x() + painted_width(painter, one.text) + 16
        elide = Qt.TextElideMode.ElideRight
        beside = QRect(left, room.y(), max(0, room.right() - left), room.height())
        paint_text(painter, beside, one.detail, ink("descriptionForeground"), 11, RIGHT, elide=elide)


class CompletionBox(QFrame):
    """`taken` carries the candidate."""

    taken = Signal(object)

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._room = parent
        self._cursor = QRect()
        self.setProperty("kind", "floating")
        self.setAccessibleName(tr("Suggestions"))
        self.model = QStandardItemModel(self)
        self.list = QListView()
        self.list.setAccessibleName(tr("Suggestions"))
        self.list.setModel(self.model)
        self.list.setItemDelegate(_OfferDelegate(theme, self.list, ROW_HEIGHT))
        self.list.setUniformItemSizes(True)
        self.list.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.list.setMouseTracking(True)
        self.list.clicked.connect(lambda _index: self.take())
        self.list.selectionModel().currentChanged.connect(self._tell)
        self.help = text_label(tone="small")
        self._column = column(self.list, self.help, on=self, margins=(4, 4, 4, 6), spacing=4)
        self.hide()

    @property
    def texts(self) -> list[str]:
        return [self.model.item(row).text() for row in range(self.model.rowCount())]

    def offer(self, candidates: tuple[Offer, ...], cursor: QRect) -> None:
        """Show these under the cursor, a rectangle in the parent; none hides the list."""
        self.model.clear()
        for one in candidates:
            item = QStandardItem(one.text)
            item.setData(one, DATA_ROLE)
            item.setData(", ".join(filter(None, (one.text, one.detail))), Qt.ItemDataRole.AccessibleTextRole)
            self.model.appendRow(item)
        if not candidates:
            self.hide()
            return
        self.list.setFixedHeight(min(len(candidates), MAX_ROWS) * ROW_HEIGHT)
        self.list.setCurrentIndex(self.model.index(0, 0))
        self._place(cursor)
        self.show()
        self.raise_()

    def _place(self, cursor: QRect) -> None:
        """Below the cursor, or above it where there is more room."""
        room = self._room.rect()
        self.setFixedWidth(min(WIDTH, room.width() - 8))
        depends = self._column.hasHeightForWidth()  # it does not while there is no help
        size = self._column.totalSizeHint().height()
        self.setFixedHeight(self._column.totalHeightForWidth(self.width()) if depends else size)
        is_above = cursor.bottom() + 2 + self.height() > room.bottom() and cursor.top() > room.center().y()
        top = cursor.top() - 2 - self.height() if is_above else cursor.bottom() + 2
        self.move(min(cursor.x(), room.right() - self.width() - 4), top)
        self._cursor = cursor

    def _tell(self, index: QModelIndex, _before: QModelIndex) -> None:
        one: Offer | None = index.data(DATA_ROLE) if index.isValid() else None
        self.help.setText(one.help if one is not None else "")
        self.help.setVisible(bool(self.help.text()))
        if self.isVisible():
            self._place(self._cursor)

    def take(self) -> None:
        """Choose the marked one."""
        one: Offer | None = self.list.currentIndex().data(DATA_ROLE)
        self.hide()
        if one is not None:
            self.taken.emit(one)

    def take_key(self, event: QKeyEvent) -> bool:
        """Whether a key was for the list."""
        key = Qt.Key(event.key())
        if not self.isVisible() or event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            return False
        if (step := _STEPS.get(key)) is not None:
            last, row = self.model.rowCount() - 1, self.list.currentIndex().row()
            wrapped = (row + step) % (last + 1) if abs(step) == 1 else min(last, max(0, row + step))
            self.list.setCurrentIndex(self.model.index(wrapped, 0))
        elif key in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Tab):
            self.take()
        elif key == Qt.Key.Key_Escape:
            self.hide()
        else:
            return False
        return True
