"""A TOML editor: what code_editor.py shows, text that changes under the cursor, what fits there, and what a
key is for.

A list comes while one types and with `suggest` (Ctrl+Space); the mouse over a key tells what it takes.
"""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEvent, QModelIndex, QRect, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFocusEvent,
    QHelpEvent,
    QKeyEvent,
    QPainter,
    QStandardItem,
    QStandardItemModel,
    QTextCursor,
)
from PySide6.QtWidgets import QFrame, QListView, QToolTip, QWidget

from rankdeck_app.language import tr
from rankdeck_app.state import toml_schema
from rankdeck_app.state.toml_schema import Offer
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.code_editor import CodeEditor
from rankdeck_app.widgets.layouts import column, text_label
from rankdeck_app.widgets.painting import (
    DATA_ROLE,
    RIGHT,
    Index,
    ListRowDelegate,
    paint_text,
    painted_width,
)


class TomlEditor(CodeEditor):
    def __init__(self, theme: Theme) -> None:
        super().__init__(theme, ".toml", tr("Configuration as TOML"))
        self.box = CompletionBox(theme, self)
        self.box.taken.connect(self._put)
        self._start = 0
        self.verticalScrollBar().valueChanged.connect(self.box.hide)

    def show_text(self, text: str) -> None:
        """Change what differs and no more, so that the cursor stays and undo goes back over it."""
        old = self.toPlainText()
        if old == text:
            return
        start = _num_shared(old, text)
        end = _num_shared(old[start:][::-1], text[start:][::-1])
        cursor = QTextCursor(self.document())
        cursor.setPosition(start)
        cursor.setPosition(len(old) - end, QTextCursor.MoveMode.KeepAnchor)
        cursor.insertText(text[start : len(text) - end])

    def suggest(self, *, is_asked: bool = True) -> None:
        """List what fits at the cursor. Where nobody has asked, only what goes on from a word."""
        cursor = self.textCursor()
        found = toml_schema.complete(self.toPlainText(), cursor.blockNumber(), cursor.positionInBlock())
        is_whole = [one.text for one in found.candidates] == [found.word]
        if is_whole or not (is_asked or found.word):
            self.box.hide()
            return
        self._start = cursor.block().position() + found.start
        place = QTextCursor(cursor)
        place.setPosition(self._start)
        where = self.cursorRect(place)
        where.moveTopLeft(self.viewport().mapTo(self, where.topLeft()))
        self.box.offer(found.candidates, where)

    def _put(self, one: toml_schema.Offer) -> None:
        """In place of the word that was begun, with the bracket or quote that is there already."""
        cursor = self.textCursor()
        end = cursor.position()
        rest = cursor.block().text()[cursor.positionInBlock() :]
        if one.text.endswith('"') and rest.startswith('"'):
            end += 1
        cursor.setPosition(self._start)
        cursor.setPosition(end, QTextCursor.MoveMode.KeepAnchor)
        cursor.insertText(one.text)
        self.setTextCursor(cursor)
        self.setFocus()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if self.box.take_key(event):
            return
        super().keyPressEvent(event)
        typed, is_open = event.text(), self.box.isVisible()
        if typed and (typed.isalnum() or typed in '_."['):
            self.suggest(is_asked=is_open)
        elif event.key() in (Qt.Key.Key_Backspace, Qt.Key.Key_Delete) and is_open:
            self.suggest()
        elif typed or event.key() not in (Qt.Key.Key_Shift, Qt.Key.Key_Control, Qt.Key.Key_Alt):
            self.box.hide()

    def focusNextPrevChild(self, forward: bool) -> bool:
        """Tab takes what is marked in the list; else it goes on to the next widget."""
        if self.box.isVisible() and forward:
            self.box.take()
            return True
        return super().focusNextPrevChild(forward)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.box.hide()

    def mousePressEvent(self, event: object) -> None:
        self.box.hide()
        super().mousePressEvent(event)  # type: ignore[arg-type]

    def viewportEvent(self, event: QEvent) -> bool:
        """What is wrong in the line under the mouse, or what the key there is for."""
        if event.type() != QEvent.Type.ToolTip or not isinstance(event, QHelpEvent):
            return super().viewportEvent(event)
        cursor = self.cursorForPosition(event.pos())
        line, place = cursor.blockNumber(), cursor.positionInBlock()
        told = [self.marks.get(line + 1, ""), toml_schema.explain(self.toPlainText(), line, place)]
        QToolTip.showText(event.globalPos(), "\n\n".join(filter(None, told)), self)
        return True


def _num_shared(one: str, other: str) -> int:
    """How many characters both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


# The list of what fits at the cursor, below it: words, what they are, and what the marked one is for.
#
# It never takes the keyboard: the editor asks `take_key` first. Enter or Tab takes the marked one, Escape
# closes.

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
