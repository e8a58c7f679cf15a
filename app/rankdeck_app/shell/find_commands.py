"""The Find commands: Ctrl+F searches the focused text, or else the active page, or else the panel.

A widget with searchable text has a `find_bar` attribute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QApplication, QWidget

from rankdeck_app.commands.table import Context
from rankdeck_app.shell.editor_area import EditorArea
from rankdeck_app.shell.panel import Panel

if TYPE_CHECKING:
    from rankdeck_app.widgets.find_bar import FindBar


class FindCommands(QObject):
    """The Find commands and their context fact "canFind"."""

    def __init__(self, context: Context, editor: EditorArea, panel: Panel, parent: QObject) -> None:
        super().__init__(parent)
        self._context, self._editor, self._panel = context, editor, panel
        app = QApplication.instance()
        assert isinstance(app, QApplication)
        app.focusChanged.connect(self.update_context)
        editor.active_page_changed.connect(self.update_context)
        panel.current_changed.connect(self.update_context)

    def open(self) -> None:
        if (bar := self._find_bar()) is not None:
            bar.open()

    def step(self, step: int) -> None:
        if (bar := self._find_bar()) is not None:
            bar.step(step)

    def _find_bar(self) -> FindBar | None:
        widget = QApplication.focusWidget()
        # The focus may be deep inside the searchable widget.
        while widget is not None:
            if (bar := _get_find_bar(widget)) is not None:
                return bar
            widget = widget.parentWidget()
        body = self._panel.body if self._panel.isVisible() else None
        return _get_find_bar(self._editor.active_page()) or _get_find_bar(body)

    def update_context(self, *_what: object) -> None:
        """Set the context fact "canFind", which is True if there is searchable text."""
        self._context.set("canFind", self._find_bar() is not None)


def _get_find_bar(widget: QWidget | None) -> FindBar | None:
    return cast("FindBar | None", getattr(widget, "find_bar", None))
