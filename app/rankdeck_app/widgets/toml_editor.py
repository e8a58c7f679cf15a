"""TOML editor: a code editor with completion and hover help for keys.

The completion list opens while the user types and on `suggest` (Ctrl+Space); hovering over a key shows which
values the key accepts.
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
from rankdeck_app.state.toml_schema import CompletionItem
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.code_editor import CodeEditor
from rankdeck_app.widgets.layouts import column, text_label
from rankdeck_app.widgets.painting import (
    DATA_ROLE,
    RIGHT,
    Index,
    ListRowDelegate,
    paint_text,
    text_width,
)


class TomlEditor(CodeEditor):
    def __init__(self, theme: Theme) -> None:
        super().__init__(theme, ".toml", tr("Configuration as TOML"))
        self.completion_box = CompletionBox(theme, self)
        self.completion_box.item_accepted.connect(self._insert_item)
        self._word_start = 0
        # Scrolling moves the cursor's line away from the list.
        self.verticalScrollBar().valueChanged.connect(self.completion_box.hide)

    def show_text(self, text: str) -> None:
        """Show a text by replacing only the part that differs, so that the cursor stays in place and the
        change can be undone."""
        old = self.toPlainText()
        if old == text:
            return
        start = _num_common(old, text)
        # The common end of what follows the common start.
        end = _num_common(old[start:][::-1], text[start:][::-1])
        cursor = QTextCursor(self.document())
        cursor.setPosition(start)
        cursor.setPosition(len(old) - end, QTextCursor.MoveMode.KeepAnchor)
        cursor.insertText(text[start : len(text) - end])

    def suggest(self, *, is_explicit: bool = True) -> None:
        """Show the completions at the cursor. Unless `is_explicit`, show them only if part of a word has been
        typed."""
        cursor = self.textCursor()
        completions = toml_schema.complete(self.toPlainText(), cursor.blockNumber(), cursor.positionInBlock())
        is_whole = [item.text for item in completions.items] == [completions.word]
        if is_whole or not (is_explicit or completions.word):
            self.completion_box.hide()
            return
        self._word_start = cursor.block().position() + completions.start
        word_cursor = QTextCursor(cursor)
        word_cursor.setPosition(self._word_start)
        where = self.cursorRect(word_cursor)
        where.moveTopLeft(self.viewport().mapTo(self, where.topLeft()))
        self.completion_box.show_items(completions.items, where)

    def _insert_item(self, item: toml_schema.CompletionItem) -> None:
        """Replace the typed word with the completion. If the completion ends in a quote and a quote follows
        the cursor, do not duplicate the quote."""
        cursor = self.textCursor()
        end = cursor.position()
        rest = cursor.block().text()[cursor.positionInBlock() :]
        if item.text.endswith('"') and rest.startswith('"'):
            end += 1
        cursor.setPosition(self._word_start)
        cursor.setPosition(end, QTextCursor.MoveMode.KeepAnchor)
        cursor.insertText(item.text)
        self.setTextCursor(cursor)
        self.setFocus()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if self.completion_box.handle_key(event):
            return
        super().keyPressEvent(event)
        typed, is_open = event.text(), self.completion_box.isVisible()
        if typed and (typed.isalnum() or typed in '_."['):
            self.suggest(is_explicit=is_open)
        elif event.key() in (Qt.Key.Key_Backspace, Qt.Key.Key_Delete) and is_open:
            self.suggest()
        # A modifier key alone keeps the list open.
        elif typed or event.key() not in (Qt.Key.Key_Shift, Qt.Key.Key_Control, Qt.Key.Key_Alt):
            self.completion_box.hide()

    def focusNextPrevChild(self, forward: bool) -> bool:
        """Accept the current completion on Tab if the list is open, otherwise move the focus."""
        if self.completion_box.isVisible() and forward:
            self.completion_box.accept()
            return True
        return super().focusNextPrevChild(forward)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.completion_box.hide()

    def mousePressEvent(self, event: object) -> None:
        self.completion_box.hide()
        super().mousePressEvent(event)  # type: ignore[arg-type]

    def viewportEvent(self, event: QEvent) -> bool:
        """Show a tooltip with the problem on the line under the pointer and the help for the key at that
        position."""
        if event.type() != QEvent.Type.ToolTip or not isinstance(event, QHelpEvent):
            return super().viewportEvent(event)
        cursor = self.cursorForPosition(event.pos())
        line, position = cursor.blockNumber(), cursor.positionInBlock()
        texts = [
            self.line_problems.get(line + 1, ""),
            toml_schema.hover_text(self.toPlainText(), line, position),
        ]
        QToolTip.showText(event.globalPos(), "\n\n".join(filter(None, texts)), self)
        return True


def _num_common(text: str, other: str) -> int:
    """Return the length of the prefix that two texts have in common."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(text), len(other)))


# Completion list below the cursor: texts, details, and the help of the current item. It never takes the
# focus: the editor passes keys to `handle_key` first. Enter or Tab accepts the current item, Escape closes
# the list.

WIDTH = 460
ROW_HEIGHT = 22
MAX_ROWS = 8
_KEY_STEPS = {
    Qt.Key.Key_Down: 1,
    Qt.Key.Key_Up: -1,
    Qt.Key.Key_PageDown: MAX_ROWS,
    Qt.Key.Key_PageUp: -MAX_ROWS,
}


class _CompletionDelegate(ListRowDelegate):
    def paint_row(self, painter: QPainter, rect: QRect, index: Index, ink: Callable[[str], QColor]) -> None:
        item: CompletionItem = index.data(DATA_ROLE)
        room = rect.adjusted(8, 0, -8, 0)
        paint_text(painter, room, item.text, ink("foreground"), 12, mono=True)
        left = room.x() + text_width(painter, item.text) + 16
        elide = Qt.TextElideMode.ElideRight
        detail_box = QRect(left, room.y(), max(0, room.right() - left), room.height())
        paint_text(painter, detail_box, item.detail, ink("descriptionForeground"), 11, RIGHT, elide=elide)


class CompletionBox(QFrame):
    """Completion list. `item_accepted` carries the chosen CompletionItem."""

    item_accepted = Signal(object)

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._container = parent
        self._cursor_rect = QRect()
        self.setProperty("kind", "floating")
        self.setAccessibleName(tr("Suggestions"))
        self.model = QStandardItemModel(self)
        self.list = QListView()
        self.list.setAccessibleName(tr("Suggestions"))
        self.list.setModel(self.model)
        self.list.setItemDelegate(_CompletionDelegate(theme, self.list, ROW_HEIGHT))
        self.list.setUniformItemSizes(True)
        self.list.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.list.setMouseTracking(True)
        self.list.clicked.connect(lambda _index: self.accept())
        self.list.selectionModel().currentChanged.connect(self._update_help)
        self.help_label = text_label(tone="small")
        self._column = column(self.list, self.help_label, on=self, margins=(4, 4, 4, 6), spacing=4)
        self.hide()

    @property
    def texts(self) -> list[str]:
        return [self.model.item(row).text() for row in range(self.model.rowCount())]

    def show_items(self, candidates: tuple[CompletionItem, ...], cursor: QRect) -> None:
        """Show the candidates next to `cursor`, the text cursor's rectangle in the parent widget; hide the
        list if there are none."""
        self.model.clear()
        for candidate in candidates:
            item = QStandardItem(candidate.text)
            item.setData(candidate, DATA_ROLE)
            item.setData(
                ", ".join(filter(None, (candidate.text, candidate.detail))),
                Qt.ItemDataRole.AccessibleTextRole,
            )
            self.model.appendRow(item)
        if not candidates:
            self.hide()
            return
        self.list.setFixedHeight(min(len(candidates), MAX_ROWS) * ROW_HEIGHT)
        self.list.setCurrentIndex(self.model.index(0, 0))
        self._reposition(cursor)
        self.show()
        self.raise_()

    def _reposition(self, cursor: QRect) -> None:
        """Place the list below the cursor, or above it if it does not fit below."""
        room = self._container.rect()
        self.setFixedWidth(min(WIDTH, room.width() - 8))
        depends = self._column.hasHeightForWidth()  # False while the help label is hidden
        size = self._column.totalSizeHint().height()
        self.setFixedHeight(self._column.totalHeightForWidth(self.width()) if depends else size)
        is_above = cursor.bottom() + 2 + self.height() > room.bottom() and cursor.top() > room.center().y()
        top = cursor.top() - 2 - self.height() if is_above else cursor.bottom() + 2
        self.move(min(cursor.x(), room.right() - self.width() - 4), top)
        self._cursor_rect = cursor

    def _update_help(self, index: QModelIndex, _before: QModelIndex) -> None:
        item: CompletionItem | None = index.data(DATA_ROLE) if index.isValid() else None
        self.help_label.setText(item.documentation if item is not None else "")
        self.help_label.setVisible(bool(self.help_label.text()))
        if self.isVisible():
            self._reposition(self._cursor_rect)

    def accept(self) -> None:
        """Accept the current item."""
        item: CompletionItem | None = self.list.currentIndex().data(DATA_ROLE)
        self.hide()
        if item is not None:
            self.item_accepted.emit(item)

    def handle_key(self, event: QKeyEvent) -> bool:
        """Handle a key if it is meant for the list. Return whether the key was handled."""
        key = Qt.Key(event.key())
        if not self.isVisible() or event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            return False
        if (step := _KEY_STEPS.get(key)) is not None:
            last, row = self.model.rowCount() - 1, self.list.currentIndex().row()
            wrapped = (row + step) % (last + 1) if abs(step) == 1 else min(last, max(0, row + step))
            self.list.setCurrentIndex(self.model.index(wrapped, 0))
        elif key in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Tab):
            self.accept()
        elif key == Qt.Key.Key_Escape:
            self.hide()
        else:
            return False
        return True
