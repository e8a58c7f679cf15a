"""A TOML editor: line numbers, quiet colours, and a mark at every line that a problem names."""

from __future__ import annotations

import re
from collections.abc import Mapping

from PySide6.QtCore import QPoint, QRect
from PySide6.QtGui import (
    QColor,
    QFontMetrics,
    QHelpEvent,
    QPainter,
    QPaintEvent,
    QResizeEvent,
    QSyntaxHighlighter,
    QTextBlock,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
)
from PySide6.QtWidgets import QPlainTextEdit, QTextEdit, QToolTip, QWidget

from rankdeck_app.theme import Theme, draw_icon
from rankdeck_app.widgets.painting import RIGHT

_MARGIN = 26

_TOKENS = re.compile(
    r"(?P<header>^\s*\[{1,2}[^\]]*\]{1,2})|(?P<comment>#.*)"
    r"|(?P<string>\"(?:\\.|[^\"\\])*\"|'[^']*')|(?P<key>(?<![\w\"'-])[A-Za-z_][\w.-]*(?=\s*=))"
    r"|(?P<number>(?<![\w.\"'-])[+-]?\d[\d_.eE+-]*\b|\b(?:true|false)\b)"
)
_TONES = {
    "header": "textLink.foreground",
    "comment": "descriptionForeground",
    "string": "rankdeck.ok",
    "key": "rankdeck.rest",
    "number": "rankdeck.kind.activations",
}


class TomlHighlighter(QSyntaxHighlighter):
    """Headers, keys, numbers, strings and comments."""

    def __init__(self, document: QTextDocument, theme: Theme) -> None:
        super().__init__(document)
        self._theme = theme
        theme.changed.connect(self.rehighlight)

    def highlightBlock(self, text: str) -> None:
        for match in _TOKENS.finditer(text):
            style = QTextCharFormat()
            style.setForeground(self._theme.color(_TONES[match.lastgroup or ""]))
            self.setFormat(match.start(), match.end() - match.start(), style)


class _Margin(QWidget):
    """Line numbers, and a symbol where a problem is."""

    def __init__(self, editor: TomlEditor) -> None:
        super().__init__(editor)
        self._editor = editor

    def paintEvent(self, event: QPaintEvent) -> None:
        self._editor.paint_margin(event)

    def event(self, event: object) -> bool:
        if isinstance(event, QHelpEvent):
            self._editor.explain(event)
            return True
        return super().event(event)  # type: ignore[arg-type]


class TomlEditor(QPlainTextEdit):
    """`set_marks` names lines (from 1) and what is wrong there."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self.marks: dict[int, str] = {}
        self.setFont(theme.font(12, mono=True))
        self.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.setTabChangesFocus(True)
        self.setAccessibleName("Configuration as TOML")
        self._margin = _Margin(self)
        self._highlighter = TomlHighlighter(self.document(), theme)
        self.blockCountChanged.connect(lambda _count: self._place_margin())
        self.updateRequest.connect(self._scroll_margin)
        theme.changed.connect(self._retheme)
        self._place_margin()

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

    def set_marks(self, marks: Mapping[int, str]) -> None:
        self.marks = dict(marks)
        self._underline()
        self._margin.update()

    def go_to_line(self, line: int) -> None:
        block = self.document().findBlockByNumber(line - 1)
        if block.isValid():
            self.setTextCursor(QTextCursor(block))
            self.centerCursor()
        self.setFocus()

    def margin_width(self) -> int:
        digits = max(2, len(str(self.blockCount())))
        return QFontMetrics(self.font()).horizontalAdvance("0") * digits + _MARGIN

    def paint_margin(self, event: QPaintEvent) -> None:
        painter = QPainter(self._margin)
        painter.setFont(self.font())
        block: QTextBlock = self.firstVisibleBlock()
        offset = self.contentOffset()
        while block.isValid():
            box = self.blockBoundingGeometry(block).translated(offset)
            if box.top() > event.rect().bottom():
                break
            self._paint_line(painter, block.blockNumber() + 1, box.toRect())
            block = block.next()
        painter.end()

    def _paint_line(self, painter: QPainter, line: int, box: QRect) -> None:
        wrong = line in self.marks
        painter.setPen(self._theme.color("errorForeground" if wrong else "editorLineNumber.foreground"))
        where = QRect(0, box.y(), self._margin.width() - 10, box.height())
        painter.drawText(where, RIGHT, str(line))
        if wrong:
            symbol = QRect(2, box.y() + (box.height() - 13) // 2, 13, 13)
            draw_icon(painter, "error", symbol.toRectF(), self._theme.color("errorForeground"))

    def explain(self, event: QHelpEvent) -> None:
        """The problem of the line under the mouse, as a tooltip."""
        cursor = self.cursorForPosition(QPoint(0, event.pos().y()))
        QToolTip.showText(event.globalPos(), self.marks.get(cursor.blockNumber() + 1, ""), self)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place_margin()

    def _underline(self) -> None:
        chosen = []
        for line in self.marks:
            block = self.document().findBlockByNumber(line - 1)
            if block.isValid():
                chosen.append(_underlined(block, self._theme.color("editorError.foreground")))
        self.setExtraSelections(chosen)

    def _place_margin(self) -> None:
        width = self.margin_width()
        self.setViewportMargins(width, 0, 0, 0)
        area = self.contentsRect()
        self._margin.setGeometry(area.x(), area.y(), width, area.height())

    def _scroll_margin(self, rect: QRect, dy: int) -> None:
        if dy:
            self._margin.scroll(0, dy)
        else:
            self._margin.update(0, rect.y(), self._margin.width(), rect.height())

    def _retheme(self) -> None:
        self._underline()
        self._margin.update()


def _num_shared(one: str, other: str) -> int:
    """How many characters both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def _underlined(block: QTextBlock, color: QColor) -> QTextEdit.ExtraSelection:
    selection = QTextEdit.ExtraSelection()
    style = QTextCharFormat()
    style.setUnderlineStyle(QTextCharFormat.UnderlineStyle.WaveUnderline)
    style.setUnderlineColor(color)
    cursor = QTextCursor(block)
    cursor.movePosition(QTextCursor.MoveOperation.EndOfBlock, QTextCursor.MoveMode.KeepAnchor)
    selection.cursor = cursor
    selection.format = style
    return selection
