"""A file of code to look at: the line that a problem names is marked, and what the problem is stands above.

Nothing is changed here. The setting editor.command opens files in an editor of the person's own instead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from rankdeck_app.io_thread import IoThread
from rankdeck_app.language import tr
from rankdeck_app.shell.page import Page, PageAction
from rankdeck_app.state.code_file import CodeText, read_code
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.code_editor import CodeEditor
from rankdeck_app.widgets.find_bar import EditorSearch, FindBar
from rankdeck_app.widgets.layouts import TOP, column, row, text_label
from rankdeck_app.widgets.painting import Symbol

PAGE_KIND = "code"


def page_id(path: Path) -> str:
    return f"{PAGE_KIND}:{path}"


class CodePage(Page):
    """The file is read by a thread each time the page comes into view. `open_outside` shows a line in the
    person's editor, if `has_outside`.
    """

    def __init__(
        self,
        wanted_id: str,
        theme: Theme,
        open_outside: Callable[[Path, int], object],
        has_outside: Callable[[], bool],
    ) -> None:
        self.path = Path(wanted_id.partition(":")[2])
        super().__init__(wanted_id, title=self.path.name, icon="file-code")
        self._open_outside = open_outside
        self._has_outside = has_outside
        self.line: int | None = None
        self._said = ""
        self.editor = CodeEditor(theme, self.path.suffix, tr("Code of {file}", file=self.path.name))
        self.editor.setReadOnly(True)
        self.editor.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self.said = text_label(selectable=True)
        self.said.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self._strip = QWidget()
        symbol = Symbol(theme, "error", "errorForeground", QSize(16, 18), 16)
        row(symbol, (self.said, 1), on=self._strip, margins=(16, 6, 16, 6), spacing=8, align=TOP)
        self.refusal = text_label(tone="dim", selectable=True)
        self.refusal.setContentsMargins(16, 12, 16, 12)
        self.refusal.setAlignment(TOP)
        self.find_bar = FindBar(theme, EditorSearch(self.editor))
        column(self._strip, self.find_bar, (self.editor, 1), (self.refusal, 1), on=self, spacing=0)
        self.setFocusProxy(self.editor)
        self._thread = IoThread(self, name="code", started=True)
        self._strip.hide()
        self.refusal.hide()

    def go_to(self, line: int | None, said: str = "") -> None:
        """Mark a line, and say above what is wrong there."""
        self.line, self._said = line, said
        self._read()

    def tooltip(self) -> str:
        return str(self.path)

    def breadcrumbs(self) -> list[str]:
        return [part for part in self.path.parts if part != "/"]

    def tab_actions(self) -> list[PageAction]:
        if not self._has_outside():
            return []
        return [PageAction("link-external", tr("Open in Your Editor"), self._show_outside)]

    def _show_outside(self) -> None:
        self._open_outside(self.path, self.editor.textCursor().blockNumber() + 1)

    def save_state(self) -> dict[str, Any]:
        return {"line": self.line, "said": self._said}

    def restore_state(self, state: dict[str, Any]) -> None:
        line, said = state.get("line"), state.get("said")
        self.line = line if isinstance(line, int) else None
        self._said = said if isinstance(said, str) else ""

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._read()

    def _read(self) -> None:
        self._thread.do(partial(read_code, self.path), self._show, key="read")

    def _show(self, code: CodeText) -> None:
        has_changed = self.editor.toPlainText() != code.text
        if has_changed:
            self.editor.show_code(code.text)
        self.refusal.setText(code.problem)
        self.refusal.setVisible(bool(code.problem))
        self.editor.setVisible(not code.problem)
        num_lines = self.editor.blockCount()
        is_there = self.line is not None and 1 <= self.line <= num_lines
        words = self._said
        if self.line is not None and not is_there and not code.problem:
            gone = tr("The file has changed since: it has no line {line}.", line=self.line)
            words = f"{words} {gone}".strip()
        self.said.setText(words)
        self._strip.setVisible(bool(words))
        if self.line is not None and is_there:
            self.editor.set_marks({self.line: self._said or tr("Here")} if self._said else {})
            self.editor.go_to_line(self.line, focus=False)
