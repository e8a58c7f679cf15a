"""Watermark of an empty editor: the shortcuts of useful commands that are enabled."""

from __future__ import annotations

from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from rankdeck_app.shell.services import Services
from rankdeck_app.widgets.painting import RIGHT, paint_text

_COMMANDS = (
    "palette.commands",
    "palette.quickOpen",
    "run.launch",
    "preferences.settings",
    "view.toggleSideBar",
)
_LINE_HEIGHT = 28


class Watermark(QWidget):
    def __init__(self, services: Services) -> None:
        super().__init__()
        self._services = services
        services.theme.changed.connect(self.update)
        services.keymap.changed.connect(self.update)

    def paintEvent(self, event: QPaintEvent) -> None:
        services = self._services
        rows = [
            (services.commands[command_id].label, services.keymap.text_for(command_id))
            for command_id in _COMMANDS
            if services.commands.is_enabled(command_id) and services.keymap.text_for(command_id)
        ]
        painter = QPainter(self)
        top = self.height() // 2 - len(rows) * _LINE_HEIGHT // 2
        middle = self.width() // 2
        for at, (label, keys) in enumerate(rows):
            y = top + at * _LINE_HEIGHT
            left, right = (
                QRect(0, y, middle - 10, _LINE_HEIGHT),
                QRect(middle + 10, y, middle - 10, _LINE_HEIGHT),
            )
            dim, elide = services.theme.color("descriptionForeground"), Qt.TextElideMode.ElideRight
            paint_text(painter, left, label, dim, 13, RIGHT, elide=elide)
            paint_text(painter, right, keys, services.theme.color("foreground"), 13, elide=elide)
        painter.end()
