"""Text field for code: line numbers, muted syntax colours, and marks on the current line and faulty lines.

toml_editor.py extends it for editing; code_page.py uses it to show a file.
"""

from __future__ import annotations

import keyword
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from PySide6.QtCore import QPoint, QRect
from PySide6.QtGui import (
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
    QTextFormat,
)
from PySide6.QtWidgets import QPlainTextEdit, QTextEdit, QToolTip, QWidget

from rankdeck_app.theme import Theme, draw_icon
from rankdeck_app.widgets.painting import RIGHT, paint_text

MAX_HIGHLIGHTED_LENGTH = 100_000
_LINE_NUMBER_PADDING = 26


class _LineNumberArea(QWidget):
    """Margin with line numbers, and an error icon beside each line that has a problem."""

    def __init__(self, editor: CodeEditor) -> None:
        super().__init__(editor)
        self._editor = editor

    def paintEvent(self, event: QPaintEvent) -> None:
        self._editor.paint_line_numbers(event)

    def event(self, event: object) -> bool:
        if isinstance(event, QHelpEvent):
            self._editor.show_problem_tooltip(event)
            return True
        return super().event(event)  # type: ignore[arg-type]


class CodeEditor(QPlainTextEdit):
    """Text field for code.

    `set_line_problems` sets the problem texts by line number (from 1). `language` is a file suffix in
    LANGUAGES; other suffixes get no highlighting.
    """

    def __init__(self, theme: Theme, language: str, accessible_name: str) -> None:
        super().__init__()
        self._theme = theme
        self.line_problems: dict[int, str] = {}
        self._matches: Sequence[tuple[int, int]] = ()
        self.setFont(theme.font(12, mono=True))
        self.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        # Keyboard users must be able to leave the editor with Tab.
        self.setTabChangesFocus(True)
        self.setAccessibleName(accessible_name)
        self._line_number_area = _LineNumberArea(self)
        code_language = LANGUAGES.get(language)
        self._highlighter = (
            CodeHighlighter(self.document(), theme, code_language) if code_language is not None else None
        )
        self.blockCountChanged.connect(lambda _count: self._layout_line_numbers())
        self.updateRequest.connect(self._scroll_line_numbers)
        self.cursorPositionChanged.connect(self._update_selections)
        theme.changed.connect(self._retheme)
        self.verticalScrollBar().valueChanged.connect(lambda _value: self._update_visible_lines())
        self.textChanged.connect(self._update_visible_lines)
        self._layout_line_numbers()

    def show_code(self, text: str) -> None:
        """Replace the shown text. A very long text is not highlighted, because highlighting would take a
        large part of a second."""
        if self._highlighter is not None:
            self._highlighter.setDocument(self.document() if len(text) <= MAX_HIGHLIGHTED_LENGTH else None)
        self.setPlainText(text)

    def set_line_problems(self, marks: Mapping[int, str]) -> None:
        self.line_problems = dict(marks)
        self._update_selections()
        self._line_number_area.update()

    def go_to_line(self, line: int, *, focus: bool = True) -> None:
        block = self.document().findBlockByNumber(line - 1)
        if block.isValid():
            self.setTextCursor(QTextCursor(block))
            self.centerCursor()
        if focus:
            self.setFocus()

    def line_number_width(self) -> int:
        digits = max(2, len(str(self.blockCount())))
        return QFontMetrics(self.font()).horizontalAdvance("0") * digits + _LINE_NUMBER_PADDING

    def paint_line_numbers(self, event: QPaintEvent) -> None:
        painter = QPainter(self._line_number_area)
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
        wrong = line in self.line_problems
        ink = self._theme.color("errorForeground" if wrong else "editorLineNumber.foreground")
        where = QRect(0, box.y(), self._line_number_area.width() - 10, box.height())
        paint_text(painter, where, str(line), ink, 12, RIGHT, font=self.font())
        if wrong:
            symbol = QRect(2, box.y() + (box.height() - 13) // 2, 13, 13)
            draw_icon(painter, "error", symbol.toRectF(), self._theme.color("errorForeground"))

    def show_problem_tooltip(self, event: QHelpEvent) -> None:
        """Show the problem of the line under the pointer as a tooltip."""
        cursor = self.cursorForPosition(QPoint(0, event.pos().y()))
        QToolTip.showText(event.globalPos(), self.line_problems.get(cursor.blockNumber() + 1, ""), self)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._layout_line_numbers()
        self._update_visible_lines()

    def show_matches(self, matches: Sequence[tuple[int, int]]) -> None:
        """Highlight the search `matches`, which are (start, end) positions in ascending order."""
        self._matches = matches
        self._update_selections()

    def _update_selections(self) -> None:
        """Highlight the current line and the matches, and underline every line that has a problem."""
        color = self._theme.color
        line = QTextCharFormat()
        line.setBackground(color("editor.lineHighlightBackground"))
        line.setProperty(QTextFormat.Property.FullWidthSelection, True)
        lit = QTextCharFormat()
        lit.setBackground(color("editor.findMatchHighlightBackground"))
        wave = QTextCharFormat()
        wave.setUnderlineStyle(QTextCharFormat.UnderlineStyle.WaveUnderline)
        wave.setUnderlineColor(color("editorError.foreground"))
        here = self.textCursor()
        here.clearSelection()
        marked = filter(None, map(self._line_cursor, self.line_problems))
        self.setExtraSelections(
            [
                _make_selection(here, line),
                *(_make_selection(cursor, lit) for cursor in self._visible_matches()),
                *(_make_selection(cursor, wave) for cursor in marked),
            ]
        )

    def _last_visible_line(self) -> int:
        height = max(1, self.fontMetrics().lineSpacing())
        return self.firstVisibleBlock().blockNumber() + self.viewport().height() // height + 1

    def _visible_matches(self) -> list[QTextCursor]:
        """Return cursors for the visible matches only, because creating cursors for thousands of matches
        would take a second."""
        first = self.firstVisibleBlock()
        last = self.document().findBlockByNumber(self._last_visible_line())
        end = last.position() + last.length() if last.isValid() else self.document().characterCount()
        at = bisect_left(self._matches, (first.position(), 0))
        cursors = []
        # Start one match early: it may begin above the first visible line and end in it.
        for start, stop in self._matches[max(0, at - 1) :]:
            if start > end:
                break
            cursor = QTextCursor(self.document())
            cursor.setPosition(start)
            cursor.setPosition(stop, QTextCursor.MoveMode.KeepAnchor)
            cursors.append(cursor)
        return cursors

    def _update_visible_lines(self) -> None:
        """Update the highlighting and the matches of the lines that are visible now."""
        first, last = self.firstVisibleBlock().blockNumber(), self._last_visible_line()
        if self._highlighter is not None:
            self._highlighter.set_visible_lines(first, last)
        if self._matches:
            self._update_selections()

    def _line_cursor(self, line: int) -> QTextCursor | None:
        """Return a cursor that selects the text of a line; None if the line does not exist."""
        block = self.document().findBlockByNumber(line - 1)
        if not block.isValid():
            return None
        text, cursor = block.text(), QTextCursor(block)
        cursor.setPosition(block.position() + len(text) - len(text.lstrip()))
        cursor.movePosition(QTextCursor.MoveOperation.EndOfBlock, QTextCursor.MoveMode.KeepAnchor)
        return cursor

    def _layout_line_numbers(self) -> None:
        width = self.line_number_width()
        self.setViewportMargins(width, 0, 0, 0)
        area = self.contentsRect()
        height = self.viewport().height()  # without the horizontal scroll bar
        self._line_number_area.setGeometry(area.x(), area.y(), width, height)

    def _scroll_line_numbers(self, rect: QRect, dy: int) -> None:
        if dy:
            self._line_number_area.scroll(0, dy)
        else:
            self._line_number_area.update(0, rect.y(), self._line_number_area.width(), rect.height())

    def _retheme(self) -> None:
        self._update_selections()
        self._line_number_area.update()


def _make_selection(cursor: QTextCursor, style: QTextCharFormat) -> QTextEdit.ExtraSelection:
    selection = QTextEdit.ExtraSelection()
    selection.cursor, selection.format = cursor, style
    return selection


# Muted highlighting of TOML and Python. A language is a token pattern; its triple-quoted strings may span
# lines.

_MULTILINE_QUOTES = ('"""', "'''")
_STRING = r"\"(?:\\.|[^\"\\])*\"?|'(?:\\.|[^'\\])*'?"
_TOKEN_COLORS = {
    "header": "textLink.foreground",
    "comment": "descriptionForeground",
    "string": "rankdeck.ok",
    "key": "editorInfo.foreground",
    "number": "rankdeck.number",
}


@dataclass(frozen=True)
class CodeLanguage:
    """Token pattern of a language.

    The pattern's groups are named after keys of _TOKEN_COLORS, except `long`, which matches the opening
    quotes of a string that can span several lines.
    """

    tokens: re.Pattern[str]


TOML = CodeLanguage(
    re.compile(
        r"(?P<header>^\s*\[{1,2}[^\]]*\]{1,2})|(?P<comment>#.*)|(?P<long>\"\"\"|''')"
        rf"|(?P<string>{_STRING})|(?P<key>(?<![\w\"'-])[A-Za-z_][\w.-]*(?=\s*=))"
        r"|(?P<number>(?<![\w.\"'-])[+-]?\d[\d_.eE+-]*\b|\b(?:true|false)\b)"
    )
)
PYTHON = CodeLanguage(
    re.compile(
        rf"(?P<comment>#.*)|(?P<long>\"\"\"|''')|(?P<string>{_STRING})"
        r"|(?P<key>(?<=\bdef )\w+|(?<=\bclass )\w+|^\s*@[\w.]+)"
        rf"|(?P<header>\b(?:{'|'.join(keyword.kwlist)})\b)"
        r"|(?P<number>(?<![\w.])\d[\d_.]*(?:[eE][+-]?\d+)?\b)"
    )
)
LANGUAGES = {".py": PYTHON, ".pyi": PYTHON, ".toml": TOML}


class CodeHighlighter(QSyntaxHighlighter):
    """Highlighter that processes the visible lines only, because highlighting all lines of a long file would
    take seconds."""

    def __init__(self, document: QTextDocument, theme: Theme, language: CodeLanguage) -> None:
        super().__init__(document)
        self._theme = theme
        self._language = language
        self._visible_lines = range(0)
        theme.changed.connect(self.rehighlight)

    def set_visible_lines(self, first: int, last: int) -> None:
        """Set the visible lines, counted from 0, and highlight those that were not visible before."""
        before, self._visible_lines = self._visible_lines, range(first, last + 1)
        document: QTextDocument | None = self.document()
        if document is None:
            return
        block = document.findBlockByNumber(first)
        while block.isValid() and block.blockNumber() <= last:
            # Lines that were visible before are highlighted already.
            if block.blockNumber() not in before:
                self.rehighlightBlock(block)
            block = block.next()

    def highlightBlock(self, text: str) -> None:
        is_plain = not any(quotes in text for quotes in _MULTILINE_QUOTES)
        if is_plain and self.currentBlock().blockNumber() not in self._visible_lines:
            # Pass on whether a multiline string is open, without highlighting the line.
            self.setCurrentBlockState(max(self.previousBlockState(), 0))
            return
        # The state of a line is 1 + the index of the quotes that are open at its end, 0 for none.
        start = self._highlight_multiline_string(text, 0, self.previousBlockState() - 1)
        while match := self._language.tokens.search(text, start):
            if match.lastgroup == "long":
                self._highlight(match.start(), match.end(), "string")
                start = self._highlight_multiline_string(
                    text, match.end(), _MULTILINE_QUOTES.index(match["long"])
                )
            else:
                self._highlight(match.start(), match.end(), match.lastgroup or "")
                start = match.end()

    def _highlight_multiline_string(self, text: str, start: int, quotes: int) -> int:
        """Highlight the part of a multiline string that starts at `start` in `text`, and return the end of
        that part.

        `quotes` is the index in _MULTILINE_QUOTES of the quotes that delimit the string; if it is negative,
        highlight nothing and return `start`.
        """
        self.setCurrentBlockState(0)
        if quotes < 0:
            return start
        end = text.find(_MULTILINE_QUOTES[quotes], start)
        if end < 0:
            self.setCurrentBlockState(quotes + 1)
        end = len(text) if end < 0 else end + 3
        self._highlight(start, end, "string")
        return end

    def _highlight(self, start: int, end: int, group: str) -> None:
        style = QTextCharFormat()
        style.setForeground(self._theme.color(_TOKEN_COLORS[group]))
        self.setFormat(start, end - start, style)
