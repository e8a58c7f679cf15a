"""Text in a page, and cards that hold it under a small heading."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QLabel, QVBoxLayout


def text_label(text: str, tone: str = "") -> QLabel:
    """Plain text; `tone` is one that the style sheet knows (dim, small, section, title, mono).

    Small text keeps to one line.
    """
    label = QLabel(text)
    label.setWordWrap(tone != "small")
    label.setTextFormat(Qt.TextFormat.PlainText)
    if tone:
        label.setProperty("tone", tone)
    return label


def framed(title: str) -> tuple[QFrame, QVBoxLayout]:
    """A card with its heading, and the column to go on in."""
    frame = QFrame()
    frame.setProperty("kind", "card")
    column = QVBoxLayout(frame)
    column.setContentsMargins(16, 12, 16, 14)
    column.setSpacing(6)
    column.addWidget(text_label(title.upper(), "section"))
    return frame, column
