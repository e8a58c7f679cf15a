"""A TOML editor: what code_editor.py shows, and text that changes under the cursor."""

from __future__ import annotations

from PySide6.QtGui import QTextCursor

from rankdeck_app.theme import Theme
from rankdeck_app.widgets.code_editor import CodeEditor


class TomlEditor(CodeEditor):
    def __init__(self, theme: Theme) -> None:
        super().__init__(theme, ".toml", "Configuration as TOML")

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


def _num_shared(one: str, other: str) -> int:
    """How many characters both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))
