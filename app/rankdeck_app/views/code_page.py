"""Shows a code file read-only; the line of a problem is marked, and the problem's message is above the code.

If the setting editor.command is set, files open in the user's own editor instead.
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
from rankdeck_app.widgets.painting import IconWidget

PAGE_KIND = "code"


def page_id(path: Path) -> str:
    return f"{PAGE_KIND}:{path}"


class CodePage(Page):
    """Read-only page of a code file. A thread reads the file each time the page is shown.

    `has_outside` returns whether the user has set an editor of their own; `open_outside` opens a line of the
    file in that editor.
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
        self._open_in_editor = open_outside
        self._has_editor = has_outside
        self.line: int | None = None
        self._message = ""
        self.editor = CodeEditor(theme, self.path.suffix, tr("Code of {file}", file=self.path.name))
        self.editor.setReadOnly(True)
        # setReadOnly leaves only selection by mouse. The keyboard flag adds a cursor, whose line an editor
        # can open.
        self.editor.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self.message_label = text_label(selectable=True)
        # A long word in the message, such as a path, must not widen the page.
        self.message_label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self._message_bar = QWidget()
        symbol = IconWidget(theme, "error", "errorForeground", QSize(16, 18), 16)
        row(
            symbol,
            (self.message_label, 1),
            on=self._message_bar,
            margins=(16, 6, 16, 6),
            spacing=8,
            align=TOP,
        )
        self.error_label = text_label(tone="dim", selectable=True)
        self.error_label.setContentsMargins(16, 12, 16, 12)
        self.error_label.setAlignment(TOP)
        self.find_bar = FindBar(theme, EditorSearch(self.editor))
        column(self._message_bar, self.find_bar, (self.editor, 1), (self.error_label, 1), on=self, spacing=0)
        self.setFocusProxy(self.editor)
        # A thread of its own: a file on a slow disk must not delay the app's other files.
        self._io_thread = IoThread(self, name="code", started=True)
        self._message_bar.hide()
        self.error_label.hide()

    def go_to(self, line: int | None, message: str = "") -> None:
        """Mark a line and show a problem's `message` above the code."""
        self.line, self._message = line, message
        self._read()

    def tooltip(self) -> str:
        return str(self.path)

    def breadcrumbs(self) -> list[str]:
        return [component for component in self.path.parts if component != "/"]

    def tab_actions(self) -> list[PageAction]:
        if not self._has_editor():
            return []
        return [PageAction("link-external", tr("Open in External Editor"), self._open_current_line)]

    def _open_current_line(self) -> None:
        self._open_in_editor(self.path, self.editor.textCursor().blockNumber() + 1)

    def save_state(self) -> dict[str, Any]:
        return {"line": self.line, "said": self._message}

    def restore_state(self, state: dict[str, Any]) -> None:
        line, message = state.get("line"), state.get("said")
        self.line = line if isinstance(line, int) else None
        self._message = message if isinstance(message, str) else ""

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._read()

    def _read(self) -> None:
        self._io_thread.submit(partial(read_code, self.path), self._show_code, key="read")

    def _show_code(self, code: CodeText) -> None:
        has_changed = self.editor.toPlainText() != code.text
        # Setting the same text would reset the cursor and the scroll position.
        if has_changed:
            self.editor.show_code(code.text)
        self.error_label.setText(code.problem)
        self.error_label.setVisible(bool(code.problem))
        self.editor.setVisible(not code.problem)
        num_lines = self.editor.blockCount()
        is_there = self.line is not None and 1 <= self.line <= num_lines
        text = self._message
        if self.line is not None and not is_there and not code.problem:
            missing_line = tr("The file has changed: line {line} no longer exists.", line=self.line)
            text = f"{text} {missing_line}".strip()
        self.message_label.setText(text)
        self._message_bar.setVisible(bool(text))
        if self.line is not None and is_there:
            self.editor.set_line_problems({self.line: self._message} if self._message else {})
            # The file is read whenever the page is shown, which must not move the focus.
            self.editor.go_to_line(self.line, focus=False)
