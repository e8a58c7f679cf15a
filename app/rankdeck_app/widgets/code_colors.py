"""Quiet colours for TOML and Python: a language is a pattern of tokens, and the quotes that go over lines."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass

from PySide6.QtGui import QSyntaxHighlighter, QTextCharFormat, QTextDocument

from rankdeck_app.theme import Theme

_LONG_QUOTES = ('"""', "'''")
_STRING = r"\"(?:\\.|[^\"\\])*\"?|'(?:\\.|[^'\\])*'?"
_TONES = {
    "header": "textLink.foreground",
    "comment": "descriptionForeground",
    "string": "rankdeck.ok",
    "key": "editorInfo.foreground",
    "number": "rankdeck.number",
}


@dataclass(frozen=True)
class Language:
    """Its groups are named as the tones are; the group `long` opens a string that may go over lines."""

    tokens: re.Pattern[str]


TOML = Language(
    re.compile(
        r"(?P<header>^\s*\[{1,2}[^\]]*\]{1,2})|(?P<comment>#.*)|(?P<long>\"\"\"|''')"
        rf"|(?P<string>{_STRING})|(?P<key>(?<![\w\"'-])[A-Za-z_][\w.-]*(?=\s*=))"
        r"|(?P<number>(?<![\w.\"'-])[+-]?\d[\d_.eE+-]*\b|\b(?:true|false)\b)"
    )
)
PYTHON = Language(
    re.compile(
        rf"(?P<comment>#.*)|(?P<long>\"\"\"|''')|(?P<string>{_STRING})"
        r"|(?P<key>(?<=\bdef )\w+|(?<=\bclass )\w+|^\s*@[\w.]+)"
        rf"|(?P<header>\b(?:{'|'.join(keyword.kwlist)})\b)"
        r"|(?P<number>(?<![\w.])\d[\d_.]*(?:[eE][+-]?\d+)?\b)"
    )
)
LANGUAGES = {".py": PYTHON, ".pyi": PYTHON, ".toml": TOML}


class CodeColors(QSyntaxHighlighter):
    """Colours the lines that are seen, and again when the theme changes: a long file would cost seconds."""

    def __init__(self, document: QTextDocument, theme: Theme, language: Language) -> None:
        super().__init__(document)
        self._theme = theme
        self._language = language
        self._seen = range(0)
        theme.changed.connect(self.rehighlight)

    def show_lines(self, first: int, last: int) -> None:
        """These are seen now, counted from 0."""
        before, self._seen = self._seen, range(first, last + 1)
        document: QTextDocument | None = self.document()
        if document is None:
            return
        block = document.findBlockByNumber(first)
        while block.isValid() and block.blockNumber() <= last:
            if block.blockNumber() not in before:
                self.rehighlightBlock(block)
            block = block.next()

    def highlightBlock(self, text: str) -> None:
        is_plain = not any(quotes in text for quotes in _LONG_QUOTES)
        if is_plain and self.currentBlock().blockNumber() not in self._seen:
            self.setCurrentBlockState(max(self.previousBlockState(), 0))
            return
        start = self._rest_of_long(text, 0, self.previousBlockState() - 1)
        while match := self._language.tokens.search(text, start):
            if match.lastgroup == "long":
                self._color(match.start(), match.end(), "string")
                start = self._rest_of_long(text, match.end(), _LONG_QUOTES.index(match["long"]))
            else:
                self._color(match.start(), match.end(), match.lastgroup or "")
                start = match.end()

    def _rest_of_long(self, text: str, start: int, quotes: int) -> int:
        """Colours a long string from `start` on; where it ends. `quotes` below 0: there is none."""
        self.setCurrentBlockState(0)
        if quotes < 0:
            return start
        end = text.find(_LONG_QUOTES[quotes], start)
        if end < 0:
            self.setCurrentBlockState(quotes + 1)
        end = len(text) if end < 0 else end + 3
        self._color(start, end, "string")
        return end

    def _color(self, start: int, end: int, group: str) -> None:
        style = QTextCharFormat()
        style.setForeground(self._theme.color(_TONES[group]))
        self.setFormat(start, end - start, style)
