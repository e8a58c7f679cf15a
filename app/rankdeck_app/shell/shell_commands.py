"""The frame's own rows of the command table."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QWidget

from rankdeck_app.commands.table import Command
from rankdeck_app.shell.palette import QuickItem
from rankdeck_app.shell.title_bar import MENU_ORDER
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.theme import BUILT_IN, ThemeError

KEYS_PAGE = "keys:"
NOTIFICATIONS_PAGE = "notifications:"
SETTINGS_PAGE = "settings:"


def shell_commands(window: MainWindow) -> list[Command]:
    return [
        *_file(window),
        *_palette(window),
        *_view(window),
        *_focus(window),
        *_closing(window),
        *_tab_order(window),
        *_groups(window),
        *_menus(window),
    ]


def _menus(window: MainWindow) -> list[Command]:
    """Alt and the first letter opens a menu."""
    return [
        Command(
            f"menu.{name.lower()}",
            f"View: Open the {name} Menu",
            partial(window.title_bar.open_menu, name),
            keys=(f"Alt+{name[0]}",),
            when="!zenMode",
            palette=False,
        )
        for name in MENU_ORDER
    ]


def _file(window: MainWindow) -> list[Command]:
    return [
        Command(
            "preferences.settings",
            "Preferences: Settings",
            lambda: window.editor.open(SETTINGS_PAGE),
            keys=("Ctrl+,",),
            when="pageKind.settings",
            menu="File/8_preferences",
        ),
        Command(
            "preferences.keys",
            "Preferences: Keyboard Shortcuts",
            lambda: window.editor.open(KEYS_PAGE),
            keys=("Ctrl+K Ctrl+S",),
            when="pageKind.keys",
            menu="File/8_preferences",
        ),
        Command(
            "theme.choose",
            "Preferences: Colour Theme",
            lambda: choose_theme(window),
            keys=("Ctrl+K Ctrl+T",),
            menu="File/8_preferences",
        ),
        Command("app.quit", "File: Quit", window.close, keys=("Ctrl+Q",), menu="File/9_quit"),
        Command(
            "notifications.show",
            "View: Show Notifications",
            lambda: window.editor.open(NOTIFICATIONS_PAGE),
            keys=("Ctrl+K Ctrl+N",),
            when="pageKind.notifications",
            menu="View/5_notifications",
        ),
        Command(
            "notifications.clear",
            "View: Close Notifications",
            window.toasts.clear,
            keys=("Ctrl+K Ctrl+Shift+N",),
        ),
    ]


def _palette(window: MainWindow) -> list[Command]:
    box = window.palette_box
    return [
        Command(
            "palette.commands",
            "View: Command Palette",
            box.show_commands,
            keys=("Ctrl+Shift+P", "F1"),
            menu="View/1_palette",
        ),
        Command(
            "palette.quickOpen",
            "File: Go to Run, Preset or File",
            box.show_quick_open,
            keys=("Ctrl+P",),
            when="quickOpen",
            menu="File/1_open",
        ),
    ]


def _view(window: MainWindow) -> list[Command]:
    context = window.context
    return [
        Command(
            "view.toggleSideBar",
            "View: Toggle Side Bar",
            lambda: window.toggle("sideBar"),
            keys=("Ctrl+B",),
            when="hasSideBar",
            menu="View/2_layout",
            checked=lambda: bool(context.get("sideBarVisible")),
        ),
        Command(
            "view.togglePanel",
            "View: Toggle Panel",
            lambda: window.toggle("panel"),
            keys=("Ctrl+J",),
            when="hasPanel",
            menu="View/2_layout",
            checked=lambda: bool(context.get("panelVisible")),
        ),
        Command(
            "view.maximizePanel",
            "View: Maximize Panel",
            lambda: window.set_panel_max(True),
            when="panelVisible && !panelMaximized",
        ),
        Command(
            "view.restorePanel",
            "View: Restore Panel Size",
            lambda: window.set_panel_max(False),
            when="panelMaximized",
        ),
        Command(
            "view.toggleStatusBar",
            "View: Toggle Status Bar",
            lambda: window.toggle("statusBar"),
            menu="View/2_layout",
            checked=window.status.isVisible,
        ),
        Command(
            "view.zenMode",
            "View: Toggle Zen Mode",
            lambda: window.set_zen(not context.get("zenMode")),
            keys=("Ctrl+K Z",),
            menu="View/2_layout",
            checked=lambda: bool(context.get("zenMode")),
        ),
        Command(
            "view.leaveZenMode",
            "View: Leave Zen Mode",
            lambda: window.set_zen(False),
            keys=("Escape Escape",),
            when="zenMode && !paletteOpen",
        ),
    ]


def _focus(window: MainWindow) -> list[Command]:
    return [
        Command("view.fullScreen", "View: Toggle Full Screen", lambda: _full_screen(window), keys=("F11",)),
        Command("view.focusNextPart", "View: Focus Next Part", lambda: focus_part(window, 1), keys=("F6",)),
        Command(
            "view.focusPreviousPart",
            "View: Focus Previous Part",
            lambda: focus_part(window, -1),
            keys=("Shift+F6",),
        ),
    ]


def _closing(window: MainWindow) -> list[Command]:
    """Close, reopen and pin tabs."""
    editor = window.editor
    return [
        Command(
            "editor.close",
            "View: Close Tab",
            editor.close_page,
            keys=("Ctrl+W", "Ctrl+F4"),
            when="editorOpen",
            menu="File/3_tabs",
        ),
        Command(
            "editor.reopen",
            "View: Reopen Closed Tab",
            editor.reopen_closed,
            keys=("Ctrl+Shift+T",),
            when="closedTabs",
            menu="File/3_tabs",
        ),
        Command(
            "editor.closeOthers",
            "View: Close Other Tabs",
            lambda: editor.close_tabs("others"),
            when="severalTabs",
        ),
        Command(
            "editor.closeRight",
            "View: Close Tabs to the Right",
            lambda: editor.close_tabs("right"),
            when="severalTabs",
        ),
        Command(
            "editor.closeAll",
            "View: Close All Tabs of the Group",
            lambda: editor.close_tabs("all"),
            keys=("Ctrl+K W",),
            when="editorOpen",
        ),
        Command(
            "editor.togglePin",
            "View: Pin or Unpin Tab",
            editor.toggle_pin,
            keys=("Ctrl+K Shift+Return",),
            when="editorOpen",
        ),
    ]


def _tab_order(window: MainWindow) -> list[Command]:
    editor = window.editor
    return [
        Command(
            "editor.next",
            "View: Next Tab",
            lambda: editor.cycle_tabs(1),
            keys=("Ctrl+PgDown", "Ctrl+Tab"),
            when="severalTabs",
        ),
        Command(
            "editor.previous",
            "View: Previous Tab",
            lambda: editor.cycle_tabs(-1),
            keys=("Ctrl+PgUp", "Ctrl+Shift+Tab"),
            when="severalTabs",
        ),
        Command(
            "editor.moveRight",
            "View: Move Tab Right",
            lambda: editor.move_tab(1),
            keys=("Ctrl+Shift+PgDown",),
            when="severalTabs",
        ),
        Command(
            "editor.moveLeft",
            "View: Move Tab Left",
            lambda: editor.move_tab(-1),
            keys=("Ctrl+Shift+PgUp",),
            when="severalTabs",
        ),
    ]


def _groups(window: MainWindow) -> list[Command]:
    editor = window.editor
    rows = [
        Command(
            "editor.splitRight",
            "View: Split Right",
            lambda: editor.split("right"),
            keys=("Ctrl+\\",),
            when="editorOpen",
            menu="View/6_editor",
        ),
        Command(
            "editor.splitDown",
            "View: Split Down",
            lambda: editor.split("bottom"),
            keys=("Ctrl+K Ctrl+\\",),
            when="editorOpen",
            menu="View/6_editor",
        ),
        Command(
            "editor.focusNextGroup",
            "View: Focus Next Editor Group",
            lambda: editor.cycle_groups(1),
            keys=("Ctrl+K Ctrl+Right",),
            when="severalGroups",
        ),
        Command(
            "editor.focusPreviousGroup",
            "View: Focus Previous Editor Group",
            lambda: editor.cycle_groups(-1),
            keys=("Ctrl+K Ctrl+Left",),
            when="severalGroups",
        ),
    ]
    rows += [
        Command(
            f"editor.focusGroup{number}",
            f"View: Focus Editor Group {number}",
            partial(editor.focus_group, number - 1),
            keys=(f"Ctrl+{number}",),
            when="editorOpen",
            palette=False,
        )
        for number in (1, 2, 3)
    ]
    return rows


def choose_theme(window: MainWindow) -> None:
    """Pick a built-in theme, or the file of a VS Code theme."""
    items = [
        QuickItem(name, table.kind, partial(set_theme, window, name), icon="color-mode")
        for name, table in BUILT_IN.items()
    ]
    ask = QuickItem(
        "VS Code colour theme…",
        "from a JSON file",
        lambda: window.palette_box.ask("Path of a VS Code colour theme", partial(set_theme, window)),
        icon="file-code",
    )
    window.palette_box.pick([*items, ask], "Choose a colour theme")


def set_theme(window: MainWindow, name: str) -> None:
    """Keep the choice; a theme that cannot be used is reported and leaves all as it is."""
    name = name if name in BUILT_IN else str(Path(name.strip()).expanduser())
    try:
        window.theme.load(name)
        window.settings.set("theme.name", name)
    except ThemeError as error:
        window.toasts.error(str(error))
    except OSError as error:
        window.toasts.error(f"The theme cannot be kept: {error}.")


def _full_screen(window: MainWindow) -> None:
    window.showNormal() if window.isFullScreen() else window.showFullScreen()


def focus_part(window: MainWindow, step: int) -> None:
    """Walk the keyboard through editor, panel, status bar, activity bar and side bar."""
    parts: list[QWidget] = [window.editor, window.panel, window.status, window.activity_bar, window.side_bar]
    parts = [part for part in parts if part.isVisible()]
    focused = QApplication.focusWidget()
    here = next(
        (at for at, part in enumerate(parts) if focused is not None and part.isAncestorOf(focused)), -1
    )
    for offset in range(1, len(parts) + 1):
        target = parts[(here + step * offset) % len(parts)]
        if target is window.editor and window.editor.active_group.tabs:
            window.editor.active_group.focus_page()
            return
        if (inner := _first_focusable(target)) is not None:
            inner.setFocus(Qt.FocusReason.TabFocusReason)
            return


def _first_focusable(part: QWidget) -> QWidget | None:
    return next(
        (
            child
            for child in part.findChildren(QWidget)
            if child.isVisible() and child.isEnabled() and child.focusPolicy() & Qt.FocusPolicy.TabFocus
        ),
        None,
    )
