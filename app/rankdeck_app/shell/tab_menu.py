"""What a right click on a tab offers: commands of the frame, each with its keys."""

from __future__ import annotations

from functools import partial

from PySide6.QtWidgets import QMenu, QWidget

from rankdeck_app.shell.services import Services

_ROWS = "close closeOthers closeRight closeAll", "keep togglePin", "splitRight splitDown"


def tab_menu(services: Services, parent: QWidget) -> QMenu:
    """Of the tab that commands act on; it is gone once it is hidden."""
    menu = QMenu(parent)
    menu.aboutToHide.connect(menu.deleteLater)
    for row in _ROWS:
        for command_id in (f"editor.{name}" for name in row.split()):
            if services.commands.enabled(command_id):
                label = services.commands[command_id].label
                keys = services.keymap.text_for(command_id)
                menu.addAction(f"{label}\t{keys}", partial(services.commands.run, command_id))
        menu.addSeparator()
    return menu
