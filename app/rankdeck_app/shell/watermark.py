"""What an empty editor shows: the keys that lead somewhere, and only those whose command works now."""

from __future__ import annotations

from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from rankdeck_app.shell.services import Services

_COMMANDS = (
    "palette.commands",
    "palette.quickOpen",
    "run.launch",
    "preferences.settings",
    "view.toggleSideBar",
)
_LINE = 28


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
            if services.commands.enabled(command_id) and services.keymap.text_for(command_id)
        ]
        painter = QPainter(self)
        painter.setFont(services.theme.font(13))
        top = self.height() // 2 - len(rows) * _LINE // 2
        middle = self.width() // 2
        for at, (label, keys) in enumerate(rows):
            y = top + at * _LINE
            painter.setPen(services.theme.color("descriptionForeground"))
            painter.drawText(QRect(0, y, middle - 10, _LINE), Qt.AlignmentFlag.AlignRight, label)
            painter.setPen(services.theme.color("foreground"))
            painter.drawText(QRect(middle + 10, y, middle, _LINE), Qt.AlignmentFlag.AlignLeft, keys)
        painter.end()
