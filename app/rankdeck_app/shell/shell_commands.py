"""Commands of the window's frame, as entries of the command table."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import Qt
from PySide6.QtGui import QContextMenuEvent
from PySide6.QtWidgets import QAbstractItemView, QApplication, QWidget

from rankdeck.base.home import expand_home
from rankdeck.base.phrases import phrase
from rankdeck_app.commands.table import Command
from rankdeck_app.language import tr
from rankdeck_app.shell.floating_list import QuickPickItem
from rankdeck_app.shell.title_bar import MENU_ORDER
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.shell.zoom import Zoom
from rankdeck_app.theme import BUILT_IN_THEMES, SYSTEM_THEME, ThemeError, theme_label


def shell_commands(window: MainWindow) -> list[Command]:
    return [
        *_file_commands(window),
        *_view_commands(window),
        *_edit_commands(window),
        *_zoom_commands(window),
        *_layout_commands(window),
        *_tab_commands(window),
        *_multi_tab_commands(window),
        *_group_commands(window),
        *_menu_commands(window),
    ]


def _menu_commands(window: MainWindow) -> list[Command]:
    """Return the commands that open a menu with Alt and the first letter of the menu's English name."""
    row, show = partial(Command, when="!zenMode", palette=False), window.title_bar.open_menu
    return [
        row(
            f"menu.{name.lower()}",
            phrase("View: Open the {menu} Menu", menu=phrase(name)),
            partial(show, name),
            (f"Alt+{name[0]}",),
        )
        for name in MENU_ORDER
    ]


def _file_commands(window: MainWindow) -> list[Command]:
    row, page, box = partial(Command, menu="File/8_preferences"), window.editor.open, window.command_palette
    settings, keys = partial(page, "settings:"), partial(page, "keys:")
    go_to = phrase("File: Go to Run, Preset or File")
    return [
        row(
            "preferences.settings",
            phrase("Preferences: Settings"),
            settings,
            ("Ctrl+,",),
            "pageKind.settings",
        ),
        row(
            "preferences.keys",
            phrase("Preferences: Keyboard Shortcuts"),
            keys,
            ("Ctrl+K Ctrl+S",),
            "pageKind.keys",
        ),
        row(
            "theme.choose",
            phrase("Preferences: Colour Theme"),
            lambda: choose_theme(window),
            ("Ctrl+K Ctrl+T",),
        ),
        Command("palette.quickOpen", go_to, box.show_quick_open, ("Ctrl+P",), "quickOpen", "File/1_open"),
        Command("app.quit", phrase("File: Quit"), window.close, ("Ctrl+Q",), menu="File/9_quit"),
    ]


def _view_commands(window: MainWindow) -> list[Command]:
    """Return the commands for keyboard focus, palette, notifications and full screen."""
    show, clear = partial(window.editor.open, "notifications:"), window.toasts.dismiss_all
    commands, when = window.command_palette.show_commands, "pageKind.notifications"
    return [
        Command(
            "palette.commands",
            phrase("View: Command Palette"),
            commands,
            ("Ctrl+Shift+P", "F1"),
            menu="View/1_palette",
        ),
        Command(
            "notifications.show",
            phrase("View: Show Notifications"),
            show,
            ("Ctrl+K Ctrl+N",),
            when,
            "View/5_notifications",
        ),
        Command("notifications.clear", phrase("View: Close Notifications"), clear, ("Ctrl+K Ctrl+Shift+N",)),
        Command(
            "view.fullScreen",
            phrase("View: Toggle Full Screen"),
            lambda: _toggle_full_screen(window),
            ("F11",),
        ),
        Command(
            "view.focusNextPart", phrase("View: Focus Next Part"), lambda: focus_part(window, 1), ("F6",)
        ),
        Command(
            "view.contextMenu",
            phrase("View: Open Context Menu"),
            lambda: open_context_menu(window),
            ("Shift+F10",),
            palette=False,
        ),
        Command(
            "view.focusPreviousPart",
            phrase("View: Focus Previous Part"),
            lambda: focus_part(window, -1),
            ("Shift+F6",),
        ),
    ]


def _zoom_commands(window: MainWindow) -> list[Command]:
    row, step = partial(Command, menu="View/8_zoom"), Zoom(window).step
    return [
        # Keyboard layouts differ in whether "+" needs Shift.
        row("view.zoomIn", phrase("View: Zoom In"), lambda: step(1), ("Ctrl+=", "Ctrl++")),
        row("view.zoomOut", phrase("View: Zoom Out"), lambda: step(-1), ("Ctrl+-",)),
        row("view.zoomReset", phrase("View: Reset Zoom"), lambda: step(0), ("Ctrl+0",)),
    ]


def _edit_commands(window: MainWindow) -> list[Command]:
    """Return the Find commands, which are enabled where there is searchable text."""
    row = partial(Command, when="canFind", menu="Edit/2_find")
    finding = window.find_commands
    return [
        row("edit.find", phrase("Edit: Find"), finding.open, ("Ctrl+F",)),
        row("edit.findNext", phrase("Edit: Find Next"), lambda: finding.step(1), ("F3",)),
        row("edit.findPrevious", phrase("Edit: Find Previous"), lambda: finding.step(-1), ("Shift+F3",)),
    ]


def _layout_commands(window: MainWindow) -> list[Command]:
    """Return the commands that show and hide parts of the window."""
    row, zen, resize = partial(Command, menu="View/2_layout"), window.toggle_zen, window.set_panel_maximized
    side, panel, status = (partial(window.toggle_part, part) for part in ("sideBar", "panel", "statusBar"))
    is_small = "panelVisible && !panelMaximized"
    return [
        row(
            "view.toggleSideBar",
            phrase("View: Toggle Side Bar"),
            side,
            ("Ctrl+B",),
            "hasSideBar",
            checked="sideBarVisible",
        ),
        row(
            "view.togglePanel",
            phrase("View: Toggle Panel"),
            panel,
            ("Ctrl+J", "Ctrl+`"),
            "hasPanel",
            checked="panelVisible",
        ),
        row("view.toggleStatusBar", phrase("View: Toggle Status Bar"), status, checked="statusBarVisible"),
        row("view.zenMode", phrase("View: Toggle Zen Mode"), zen, ("Ctrl+K Z",), checked="zenMode"),
        Command(
            "view.leaveZenMode",
            phrase("View: Exit Zen Mode"),
            zen,
            ("Escape Escape",),
            # Escape closes the palette first.
            "zenMode && !paletteOpen",
        ),
        Command("view.maximizePanel", phrase("View: Maximise Panel"), lambda: resize(True), when=is_small),
        Command(
            "view.restorePanel",
            phrase("View: Restore Panel Size"),
            lambda: resize(False),
            when="panelMaximized",
        ),
    ]


def _tab_commands(window: MainWindow) -> list[Command]:
    row, editor, menu = partial(Command, when="editorOpen"), window.editor, "File/3_tabs"
    split, close = partial(row, menu="View/6_editor"), editor.close_tabs
    return [
        row("editor.close", phrase("View: Close Tab"), editor.close_page, ("Ctrl+W", "Ctrl+F4"), menu=menu),
        Command(
            "editor.reopen",
            phrase("View: Reopen Closed Tab"),
            editor.reopen_closed,
            ("Ctrl+Shift+T",),
            "closedTabs",
            menu,
        ),
        row(
            "editor.closeAll",
            phrase("View: Close All Tabs in Group"),
            lambda: close("all"),
            ("Ctrl+K W",),
        ),
        Command("editor.keep", phrase("View: Keep Tab Open"), editor.keep, ("Ctrl+K Return",), "previewOpen"),
        row(
            "editor.closeAllGroups",
            phrase("View: Close All Tabs"),
            editor.close_all,
            ("Ctrl+K Ctrl+W",),
            menu=menu,
        ),
        row(
            "editor.togglePin", phrase("View: Pin or Unpin Tab"), editor.toggle_pin, ("Ctrl+K Shift+Return",)
        ),
        split("editor.splitRight", phrase("View: Split Right"), lambda: editor.split("right"), ("Ctrl+\\",)),
        split(
            "editor.splitDown",
            phrase("View: Split Down"),
            lambda: editor.split("bottom"),
            ("Ctrl+K Ctrl+\\",),
        ),
    ]


def _multi_tab_commands(window: MainWindow) -> list[Command]:
    row, close = partial(Command, when="severalTabs"), window.editor.close_tabs
    cycle, move, recent = window.editor.cycle_tabs, window.editor.move_tab, window.tab_switcher.step
    return [
        row("editor.closeOthers", phrase("View: Close Other Tabs"), lambda: close("others")),
        row("editor.closeRight", phrase("View: Close Tabs to the Right"), lambda: close("right")),
        row("editor.next", phrase("View: Next Tab"), lambda: cycle(1), ("Ctrl+PgDown",)),
        row("editor.previous", phrase("View: Previous Tab"), lambda: cycle(-1), ("Ctrl+PgUp",)),
        row("editor.openRecent", phrase("View: Recently Used Tabs"), lambda: recent(1), ("Ctrl+Tab",)),
        row(
            "editor.openOldest",
            phrase("View: Least Recently Used Tab"),
            lambda: recent(-1),
            ("Ctrl+Shift+Tab",),
        ),
        row("editor.moveRight", phrase("View: Move Tab Right"), lambda: move(1), ("Ctrl+Shift+PgDown",)),
        row("editor.moveLeft", phrase("View: Move Tab Left"), lambda: move(-1), ("Ctrl+Shift+PgUp",)),
    ]


def _group_commands(window: MainWindow) -> list[Command]:
    row, cycle = partial(Command, when="severalGroups"), window.editor.cycle_groups
    direct, focus = partial(Command, when="editorOpen", palette=False), window.editor.focus_group
    rows = [
        direct(
            f"editor.focusGroup{n}",
            phrase("View: Focus Editor Group {number}", number=n),
            partial(focus, n - 1),
            (f"Ctrl+{n}",),
        )
        for n in (1, 2, 3)
    ]
    return [
        *rows,
        row(
            "editor.focusNextGroup",
            phrase("View: Focus Next Editor Group"),
            lambda: cycle(1),
            ("Ctrl+K Ctrl+Right",),
        ),
        row(
            "editor.focusPreviousGroup",
            phrase("View: Focus Previous Editor Group"),
            lambda: cycle(-1),
            ("Ctrl+K Ctrl+Left",),
        ),
    ]


def choose_theme(window: MainWindow) -> None:
    """Let the user pick a built-in theme or a VS Code theme file.

    The window previews the current row; the theme in use is marked, and is restored if no theme is chosen.
    """
    current_name = window.settings.get("theme.name", str)
    names = [
        *BUILT_IN_THEMES,
        SYSTEM_THEME,
        *([] if current_name in (*BUILT_IN_THEMES, SYSTEM_THEME) else [current_name]),
    ]

    def item(name: str) -> QuickPickItem:
        description = (
            tr(BUILT_IN_THEMES[name].kind) if name in BUILT_IN_THEMES else tr("a VS Code colour theme")
        )
        description = tr("follows the desktop") if name == SYSTEM_THEME else description
        right, icon = (tr("current"), "check") if name == current_name else ("", "color-mode")
        show = partial(preview_theme, window, name)
        return QuickPickItem(
            theme_label(name), description, partial(set_theme, window, name), right, icon, show
        )

    items = [item(name) for name in names]
    file_item = QuickPickItem(
        tr("VS Code colour theme…"),
        tr("from a JSON file"),
        lambda: window.command_palette.prompt(
            tr("Path of a VS Code colour theme"), partial(set_theme, window)
        ),
        icon="file-code",
    )
    back = partial(preview_theme, window, current_name)
    window.command_palette.pick(
        [*items, file_item],
        tr("Choose a colour theme"),
        current_index=names.index(current_name),
        on_cancel=back,
    )


def preview_theme(window: MainWindow, name: str) -> None:
    """Load a theme without saving the choice."""
    try:
        window.theme.load(name)
    except ThemeError:
        pass  # its file was deleted meanwhile: keep the current theme


def set_theme(window: MainWindow, name: str) -> None:
    """Load a theme and save the choice; if the theme cannot be loaded, report that and change nothing."""
    # Any other name is the path of a theme file.
    name = name if name in (*BUILT_IN_THEMES, SYSTEM_THEME) else str(expand_home(name.strip()))
    try:
        window.theme.load(name)
        window.settings.set("theme.name", name)
    except ThemeError as error:
        window.toasts.error(str(error))


def _toggle_full_screen(window: MainWindow) -> None:
    window.showNormal() if window.isFullScreen() else window.showFullScreen()


def focus_part(window: MainWindow, step: int) -> None:
    """Move the focus to the next or previous part: editor, panel, status bar, activity bar or side bar."""
    parts: list[QWidget] = [
        window.editor,
        window.panel,
        window.status_bar,
        window.activity_bar,
        window.side_bar,
    ]
    parts = [part for part in parts if part.isVisible()]
    focused = QApplication.focusWidget()
    here = next(
        (at for at, part in enumerate(parts) if focused is not None and part.isAncestorOf(focused)), -1
    )
    # Skip parts without a focusable widget.
    for offset in range(1, len(parts) + 1):
        target = parts[(here + step * offset) % len(parts)]
        # A page may have a focus proxy, which is not the first focusable widget.
        if target is window.editor and window.editor.active_group.tabs:
            window.editor.active_group.focus_page()
            return
        if (inner := _find_focusable(target)) is not None:
            inner.setFocus(Qt.FocusReason.TabFocusReason)
            return


def open_context_menu(window: MainWindow) -> None:
    """Open the context menu of the focused widget, at its current row if it has one; if the widget has no
    menu, open the menu of the active tab."""
    widget = QApplication.focusWidget()
    if widget is not None:
        at = widget.rect().center()
        if isinstance(widget, QAbstractItemView) and widget.currentIndex().isValid():
            at = widget.visualRect(widget.currentIndex()).center()
        event = QContextMenuEvent(QContextMenuEvent.Reason.Keyboard, at, widget.mapToGlobal(at))
        QApplication.sendEvent(widget, event)
        # A widget without a menu does not accept the event.
        if event.isAccepted():
            return
    window.editor.active_group.bar.open_menu()


def _find_focusable(part: QWidget) -> QWidget | None:
    return next(
        (
            child
            for child in part.findChildren(QWidget)
            if child.isVisible() and child.isEnabled() and child.focusPolicy() & Qt.FocusPolicy.TabFocus
        ),
        None,
    )
