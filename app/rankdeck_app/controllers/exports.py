"""Files that a person takes along: asked for in a dialog, written whole or not at all, and told of in a toast
with the way to their folder. The disk writes what the window has, the engine the rest (comparisons.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtWidgets import QFileDialog

from rankdeck_app.controllers.session import Session
from rankdeck_app.language import error_in_words, tr
from rankdeck_app.shell.window import MainWindow

_NOT_IN_NAMES = frozenset('/\\:*?"<>|')
_MOST_BYTES = 200
"""Of a name: 255 are allowed, less what stands around it while the file is written."""


def file_name(*parts: str) -> str:
    """'gpt-dp - Training loss': titles as the name of a file, on any system."""
    signs = (sign if sign.isprintable() and sign not in _NOT_IN_NAMES else "-" for sign in " - ".join(parts))
    return "".join(signs).encode()[:_MOST_BYTES].decode(errors="ignore").strip(" .")


class Exports:
    """`reveal` opens a folder."""

    def __init__(self, window: MainWindow, session: Session, reveal: Callable[[Path], object]) -> None:
        self._window, self._session, self._reveal = window, session, reveal

    def ask_file(self, title: str, name: str, kind: str) -> Path | None:
        """With the suffix that is suggested where none is written."""
        workspace = self._session.workspace
        suggested = str(workspace.dialog_folder / name)
        chosen, _ = QFileDialog.getSaveFileName(self._window, title, suggested, kind)
        path = Path(chosen)
        if not chosen:
            return None
        workspace.chose(path)
        return path if path.suffix else path.with_suffix(Path(name).suffix)

    def write(self, file: Path, fill: Callable[[Path], object], words: str) -> None:
        """Let the disk fill a file, and say `words` once it is there."""

        def write() -> None:
            from rankdeck.run.export import write_whole  # a third of a second where it is not there yet

            write_whole(file, fill)

        self._session.disk.do(write, lambda _: self.tell(file, words), self._refuse, key=file)

    def _refuse(self, error: Exception) -> None:
        self._window.toasts.error(error_in_words(error))

    def tell(self, file: Path, words: str) -> None:
        show = (tr("Open Its Folder"), lambda: self._reveal(file.parent))
        self._window.toasts.show(words, actions=[show])
