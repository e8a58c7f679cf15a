"""A TOML editor: what code_editor.py shows, text that changes under the cursor, what fits there, and what a
key is for.

A list comes while one types and with `suggest` (Ctrl+Space); the mouse over a key tells what it takes.
"""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QFocusEvent, QHelpEvent, QKeyEvent, QTextCursor
from PySide6.QtWidgets import QToolTip

from rankdeck_app.language import tr
from rankdeck_app.state import toml_schema
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.code_editor import CodeEditor
from rankdeck_app.widgets.completion_box import CompletionBox


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
