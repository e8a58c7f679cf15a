"""The sheet on which a person writes what there is to say of a run."""

from __future__ import annotations

from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QDialog, QPlainTextEdit, QWidget

from rankdeck_app.language import tr
from rankdeck_app.widgets.layouts import column, push_button, row, text_label


class RunNote(QDialog):
    """`accepted`: `text` is to be kept. Ctrl+Enter keeps it too, since Enter begins a line."""

    def __init__(self, title: str, note: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle(tr("Note"))
        self.setModal(True)
        self.setMinimumSize(480, 300)
        heading = tr("Note of {run}", run=title)
        self.field = QPlainTextEdit(note)
        self.field.setProperty("kind", "field")
        self.field.setAccessibleName(heading)
        self.field.setTabChangesFocus(True)
        self.keep = push_button(tr("Keep"), tr("Keep the note (Ctrl+Enter)"), self.accept, kind="primary")
        leave = push_button(tr("Cancel"), tr("Leave it as it was (Escape)"), self.reject)
        for keys in ("Ctrl+Return", "Ctrl+Enter"):
            QShortcut(QKeySequence(keys), self, self.accept)
        parts = (text_label(heading, "section"), (self.field, 1), row(None, leave, self.keep))
        column(*parts, on=self, margins=(20, 16, 20, 16), spacing=10)
        self.field.setFocus()

    @property
    def text(self) -> str:
        return self.field.toPlainText()
