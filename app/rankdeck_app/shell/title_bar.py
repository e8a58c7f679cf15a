"""The title bar, 36 px high: menus (built from the command table), command centre and layout toggles."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QPoint, QSize, Qt
from PySide6.QtGui import QAction, QResizeEvent
from PySide6.QtWidgets import QMenu, QMenuBar, QPushButton, QWidget

from rankdeck.base.phrases import tr_noop
from rankdeck_app.commands.table import Command
from rankdeck_app.language import tr
from rankdeck_app.shell.controls import CommandButton, with_shortcut
from rankdeck_app.shell.services import Services

HEIGHT = 36
COMMAND_CENTER_WIDTH = 460
MENU_ORDER = (tr_noop("File"), tr_noop("Edit"), tr_noop("View"), tr_noop("Run"), tr_noop("Help"))
"""Menu names as commands use them, in display order; the window shows them translated."""


def fill_menu(menu: QMenu, commands: list[Command], services: Services) -> None:
    """Add an action per enabled command, with separators between groups.

    Shortcuts are only displayed; the keymap handles them.
    """
    group = None
    for command in sorted(commands, key=lambda command: command.menu):
        if not services.commands.is_enabled(command.id):
            continue
        if group is not None and command.menu != group:
            menu.addSeparator()
        group = command.menu
        action = QAction(f"{command.label}\t{services.keymap.text_for(command.id)}", menu)
        if command.checked:
            action.setCheckable(True)
            action.setChecked(bool(services.context.get(command.checked)))
        action.triggered.connect(lambda _checked=False, id_=command.id: services.commands.run(id_))
        menu.addAction(action)


class TitleBar(QWidget):
    def __init__(self, services: Services) -> None:
        super().__init__()
        self.setObjectName("titleBar")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setFixedHeight(HEIGHT)
        self._services = services
        self.menu_bar = QMenuBar(self)
        # A desktop with a global menu bar would take the menus out of the title bar.
        self.menu_bar.setNativeMenuBar(False)
        self.menu_bar.setAccessibleName(tr("Menus"))
        self._menus: dict[str, QMenu] = {}
        self.command_center = QPushButton(self)
        self.command_center.setObjectName("commandCenter")
        self.command_center.setIcon(services.theme.icon("search", "commandCenter.foreground"))
        self.command_center.setIconSize(QSize(14, 14))
        self.command_center.setFixedHeight(24)
        self.command_center.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.command_center.clicked.connect(self._open_command_center)
        self._toggle_buttons = [
            CommandButton(services, "view.toggleSideBar", "layout-sidebar-left", self),
            CommandButton(services, "view.togglePanel", "layout-panel", self),
            CommandButton(services, "view.zenMode", "layout-centered", self),
        ]
        services.commands.changed.connect(self.rebuild)
        services.context.changed.connect(self._update_menus)
        services.keymap.changed.connect(self._update_command_center)
        self.rebuild()

    def set_command_center_text(self, text: str) -> None:
        """Set the text of the command centre, usually the name of the workspace."""
        self.command_center.setText(f"  {text}")

    def rebuild(self) -> None:
        """Make a menu for every menu name in the command table, in MENU_ORDER."""
        names = {command.menu.split("/")[0] for command in self._services.commands if command.menu}
        ordered = [name for name in MENU_ORDER if name in names] + sorted(names - set(MENU_ORDER))
        if [*self._menus] != ordered:
            self.menu_bar.clear()
            self._menus = {}
            for name in ordered:
                menu = QMenu(tr(name), self.menu_bar)
                menu.aboutToShow.connect(partial(self.build_menu, name))
                self.menu_bar.addMenu(menu)
                self._menus[name] = menu
        self._update_command_center()
        self._update_menus()

    def build_menu(self, name: str) -> QMenu:
        """Fill a menu with the commands that are enabled now, and return it."""
        menu = self._menus[name]
        menu.clear()
        fill_menu(menu, self._commands_in(name), self._services)
        return menu

    def open_menu(self, name: str) -> None:
        """Open a menu for keyboard use; the arrow keys move to the other menus."""
        if name in self._menus and self._menus[name].menuAction().isEnabled():
            self.menu_bar.setFocus(Qt.FocusReason.MenuBarFocusReason)
            self.menu_bar.setActiveAction(self._menus[name].menuAction())

    def _commands_in(self, name: str) -> list[Command]:
        return [c for c in self._services.commands if c.menu.split("/")[0] == name]

    def _update_menus(self, _facts: object = None) -> None:
        """Disable menus that contain no enabled command; disabled menus keep their position."""
        for name, menu in self._menus.items():
            enabled = self._services.commands.is_enabled
            menu.menuAction().setEnabled(any(enabled(command.id) for command in self._commands_in(name)))
        self._arrange()

    def _open_command_center(self) -> None:
        # Quick open is disabled while it has no provider.
        if not self._services.commands.run("palette.quickOpen"):
            self._services.commands.run("palette.commands")

    def _update_command_center(self) -> None:
        quick = self._services.commands.is_enabled("palette.quickOpen")
        keys = self._services.keymap.text_for("palette.quickOpen" if quick else "palette.commands")
        tip = with_shortcut(tr("Search runs, presets and files") if quick else tr("Search commands"), keys)
        self.command_center.setToolTip(tip)
        self.command_center.setAccessibleName(tip)

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._arrange()

    def _arrange(self) -> None:
        """Place the menus at the left, the toggles at the right, and the command centre between them, as
        close to the middle of the window as possible."""
        menus = self.menu_bar.sizeHint()
        self.menu_bar.setGeometry(4, (HEIGHT - menus.height()) // 2, menus.width(), menus.height())
        x = self.width() - 10
        for button in reversed(self._toggle_buttons):
            # isVisible is False until the window is shown.
            if not button.isHidden():
                x -= 32
                button.move(QPoint(x + 5, (HEIGHT - button.height()) // 2))
        left, right = menus.width() + 16, x - 12
        width = max(120, min(COMMAND_CENTER_WIDTH, right - left))
        middle = (self.width() - width) // 2
        self.command_center.setFixedWidth(width)
        self.command_center.move(max(left, min(middle, right - width)), (HEIGHT - 24) // 2)
