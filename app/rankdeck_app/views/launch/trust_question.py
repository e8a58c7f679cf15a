"""The question before a folder's own Python code runs for the first time.

Nothing of the person's code has run when it is asked; no answer, Escape and closing it all mean no.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QDialog, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

TITLE = "Do you trust the authors of the files in this folder?"


class TrustQuestion(QDialog):
    """A sheet over the window. `accepted` is trust, remembered by whoever asks."""

    def __init__(self, folders: Sequence[Path], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.folders = list(folders)
        self.setWindowTitle("Trust")
        self.setModal(True)
        self.setMinimumWidth(460)
        title = QLabel(TITLE if len(folders) == 1 else TITLE.replace("this folder", "these folders"))
        title.setProperty("tone", "title")
        title.setWordWrap(True)
        places = QLabel("\n".join(map(str, folders)))
        places.setProperty("tone", "mono")
        places.setTextFormat(Qt.TextFormat.PlainText)
        places.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        places.setWordWrap(True)
        why = QLabel(
            "This run imports Python code from there: it can do whatever you can do on this machine. "
            "The answer holds for the folder and everything below it."
        )
        why.setProperty("tone", "dim")
        why.setWordWrap(True)
        self.yes = QPushButton("Yes, I trust the authors")
        self.yes.setProperty("kind", "primary")
        self.yes.setToolTip("Remember this folder and launch (Enter)")
        self.yes.clicked.connect(self.accept)
        self.no = QPushButton("No, do not launch")
        self.no.setToolTip("Nothing runs (Escape)")
        self.no.clicked.connect(self.reject)
        self.no.setDefault(True)
        self.setAccessibleName(title.text())
        self.setAccessibleDescription(places.text())
        buttons = QHBoxLayout()
        buttons.addStretch(1)
        buttons.addWidget(self.no)
        buttons.addWidget(self.yes)
        column = QVBoxLayout(self)
        column.setContentsMargins(24, 20, 24, 20)
        column.setSpacing(12)
        for widget in (title, places, why):
            column.addWidget(widget)
        column.addLayout(buttons)
        self.no.setFocus()
