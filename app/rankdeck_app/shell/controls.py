"""Small controls that the frame's parts share: flat tool buttons, and buttons that stand for a command."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QSize, Qt
from PySide6.QtWidgets import QToolButton, QWidget

from rankdeck_app.shell.services import Services
from rankdeck_app.theme import Theme


def with_keys(text: str, keys: str) -> str:
    """'Toggle Panel (Ctrl+J)', as every tooltip of a command reads."""
    return f"{text} ({keys})" if keys else text


class ToolButton(QToolButton):
    """A flat 22 px button with a 16 px icon, reachable by Tab."""

    def __init__(self, theme: Theme, icon: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("kind", "tool")
        self.setIcon(theme.icon(icon))
        self.setIconSize(QSize(16, 16))
        self.setFixedSize(22, 22)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        theme.changed.connect(self.update)


def tool_button(theme: Theme, icon: str, tooltip: str, on_click: Callable[[], object]) -> ToolButton:
    """A tool button that calls; named by its tooltip."""
    button = ToolButton(theme, icon)
    button.setToolTip(tooltip)
    button.setAccessibleName(tooltip)
    button.clicked.connect(lambda _checked=False: on_click())
    return button


class CommandButton(ToolButton):
    """A tool button for a command of the table: its name and keys in the tooltip, shown while the command
    applies."""

    def __init__(self, services: Services, command_id: str, icon: str, parent: QWidget | None = None) -> None:
        super().__init__(services.theme, icon, parent)
        self._services = services
        self._command_id = command_id
        self.clicked.connect(self._run)
        services.keymap.changed.connect(self._describe)
        services.context.changed.connect(self._follow)
        self._describe()

    def _run(self) -> None:
        self._services.commands.run(self._command_id)

    def _describe(self) -> None:
        if self._command_id in self._services.commands:
            label = self._services.commands[self._command_id].label
            self.setToolTip(with_keys(label, self._services.keymap.text_for(self._command_id)))
            self.setAccessibleName(label)
        self._follow()

    def _follow(self, _facts: object = None) -> None:
        self.setHidden(not self._services.commands.enabled(self._command_id))
