"""Asks for trust before a folder's own Python code runs for the first time.

No user code runs before the answer. Escape, closing the dialog and a missing answer all mean no.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtWidgets import QDialog, QWidget

from rankdeck_app.language import tr
from rankdeck_app.widgets.layouts import column, push_button, row, text_label


class TrustDialog(QDialog):
    """Modal dialog that asks for trust. `accepted` means that the user trusts the folders; the caller saves
    the answer."""

    def __init__(self, folders: Sequence[Path], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.folders = list(folders)
        self.setWindowTitle(tr("Trust"))
        self.setModal(True)
        self.setMinimumWidth(460)
        heading = tr(
            "Do you trust the authors of the files in these folders?",
            "Do you trust the authors of the files in this folder?",
            len(folders),
        )
        folder_list = "\n".join(map(str, folders))
        why = tr(
            "This run imports Python code from each listed folder. That code can do anything "
            "that you can do on this machine. Your answer applies to each listed folder and "
            "everything below it."
        )
        remembered = tr("Remember the answer and launch")
        self.accept_button = push_button(
            tr("Yes, I trust the authors"), remembered, self.accept, kind="primary"
        )
        self.reject_button = push_button(tr("No, do not launch"), tr("Nothing runs (Enter)"), self.reject)
        # Enter, pressed out of habit, must not grant trust.
        self.reject_button.setDefault(True)
        self.setAccessibleName(heading)
        self.setAccessibleDescription(folder_list)
        texts = (
            text_label(heading, "title"),
            text_label(folder_list, "mono", selectable=True),
            text_label(why, "dim"),
        )
        column(
            *texts,
            row(None, self.reject_button, self.accept_button),
            on=self,
            margins=(24, 20, 24, 20),
            spacing=12,
        )
        self.reject_button.setFocus()
