"""Paragraphs that take the width that there is and as much height as they need, and can be selected.

Unlike a label's they break a word where it is longer than a line: a path is read whole at any width.
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QTextBlockFormat, QTextCharFormat, QTextCursor, QTextOption, QWheelEvent
from PySide6.QtWidgets import QFrame, QSizePolicy, QTextEdit

from rankdeck_app.theme import Theme

Paragraph = tuple[str, str]
"""Its words, and how they look: "" as text does, "apart" with more room above, "dim", or "mono"."""
_GAP_PX, _APART_PX = 2, 6
_SMALL = ("dim", "mono")


class WrappedText(QTextEdit):
    """`name` is what a screen reader says of it."""

    def __init__(self, theme: Theme, name: str) -> None:
        super().__init__()
        self._theme = theme
        self._paragraphs: list[Paragraph] = []
        self.setReadOnly(True)
        self.setAccessibleName(name)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self.setTabChangesFocus(True)
        self.setUndoRedoEnabled(False)
        self.setWordWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.document().setDocumentMargin(0)
        self.viewport().setAutoFillBackground(False)
        policy = QSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)
        self._heights: dict[int, int] = {}
        theme.changed.connect(self._write)

    def set_paragraphs(self, paragraphs: Sequence[Paragraph]) -> None:
        if list(paragraphs) != self._paragraphs:
            self._paragraphs = list(paragraphs)
            self._write()

    @property
    def words(self) -> str:
        return "\n".join(text for text, _ in self._paragraphs)

    def _write(self) -> None:
        self.document().clear()
        cursor = QTextCursor(self.document())
        block = QTextBlockFormat()
        for at, (text, look) in enumerate(self._paragraphs):
            block.setTopMargin(_APART_PX if look == "apart" else _GAP_PX)
            letters = QTextCharFormat()
            letters.setFont(self._theme.font(11 if look in _SMALL else 12, mono=look == "mono"))
            ink = "descriptionForeground" if look == "dim" else "foreground"
            letters.setForeground(self._theme.color(ink))
            if at:
                cursor.insertBlock(block)
            cursor.insertText(text, letters)
        self._heights.clear()
        self.updateGeometry()

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        """Of a copy: the text itself is laid out for the width that it has."""
        if width not in self._heights:
            measured = self.document().clone()
            measured.setDefaultTextOption(self.document().defaultTextOption())
            measured.setTextWidth(width)
            self._heights[width] = int(measured.size().height()) + 1
            measured.deleteLater()
        return self._heights[width]

    def sizeHint(self) -> QSize:
        return QSize(200, self.fontMetrics().height())

    minimumSizeHint = sizeHint

    def wheelEvent(self, event: QWheelEvent) -> None:
        """It is the page that scrolls."""
        event.ignore()
