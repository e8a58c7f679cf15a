"""Buttons that run a command; plain tool buttons are in widgets/controls.py."""

from __future__ import annotations

from PySide6.QtWidgets import QWidget

from rankdeck_app.shell.services import Services
from rankdeck_app.widgets.controls import ToolButton


def with_shortcut(text: str, keys: str) -> str:
    """Return a tooltip like 'Toggle Panel (Ctrl+J)'."""
    return f"{text} ({keys})" if keys else text


class CommandButton(ToolButton):
    """Tool button of a command, visible while the command is enabled; the tooltip shows the command's name
    and shortcut.

    The button needs a parent: without one, becoming visible would make it a window that takes the focus.
    """

    def __init__(self, services: Services, command_id: str, icon: str, parent: QWidget) -> None:
        super().__init__(services.theme, icon, parent)
        self._services = services
        self._command_id = command_id
        self.clicked.connect(self._run)
        services.keymap.changed.connect(self._update_tooltip)
        services.context.changed.connect(self._update_visibility)
        self._update_tooltip()

    def _run(self) -> None:
        self._services.commands.run(self._command_id)

    def _update_tooltip(self) -> None:
        if self._command_id in self._services.commands:
            label = self._services.commands[self._command_id].label
            self.setToolTip(with_shortcut(label, self._services.keymap.text_for(self._command_id)))
            self.setAccessibleName(label)
        self._update_visibility()

    def _update_visibility(self, _facts: object = None) -> None:
        self.setHidden(not self._services.commands.is_enabled(self._command_id))
