"""The main window: it assembles the parts of the frame and manages their visibility, shortcuts and state.

    title bar
    activity bar | side bar | editor
                 |          | panel
    status bar

window_state.py opens the window and adds the frame's own commands. The window does not depend on any view:
composition.compose(window) registers the views after `first_painted`, with `add_activity`, `add_panel_tab`,
`editor.register_page_kind`, `status_bar.item`, `command_palette.add_provider` and `commands.register`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from PySide6.QtCore import QEvent, QMetaObject, QObject, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QCloseEvent, QDragEnterEvent, QDropEvent, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QWidget

from rankdeck.base.phrases import phrase
from rankdeck_app.commands.keymap import Shortcuts, to_text
from rankdeck_app.commands.table import Command
from rankdeck_app.language import tr, translate
from rankdeck_app.shell.appearance import Appearance, fit_minimum_size
from rankdeck_app.shell.controls import with_shortcut
from rankdeck_app.shell.editor_area import EditorArea
from rankdeck_app.shell.find_commands import FindCommands
from rankdeck_app.shell.frame_clock import FrameStats
from rankdeck_app.shell.page import Page
from rankdeck_app.shell.palette import CommandPalette
from rankdeck_app.shell.panel import DEFAULT_HEIGHT, Panel, PanelTab
from rankdeck_app.shell.services import Services
from rankdeck_app.shell.side_bar import DEFAULT_WIDTH, Activity, ActivityBar, SideBar
from rankdeck_app.shell.split_tree import make_splitter
from rankdeck_app.shell.status_bar import StatusBar
from rankdeck_app.shell.tab_switcher import TabSwitcher
from rankdeck_app.shell.title_bar import TitleBar, fill_menu
from rankdeck_app.shell.toasts import Toasts
from rankdeck_app.theme import theme_label
from rankdeck_app.widgets.layouts import column, row

APP_NAME = "Rankdeck"
# Commands of the gear menu of the activity bar; see shell_commands.py.
_MANAGE_COMMANDS = ("palette.commands", "preferences.settings", "preferences.keys", "theme.choose")


class MainWindow(QWidget):
    """The main window.

    `first_painted` is emitted once, when the empty window is on screen; `started` is emitted after all views
    are added, `layout_changed` when parts are toggled or resized, and `closing` when the window is about to
    close.
    """

    first_painted = Signal()
    started = Signal()
    layout_changed = Signal()
    closing = Signal()
    files_dropped = Signal(list)
    """Paths that were dropped where no other widget accepts them."""

    def __init__(self, services: Services) -> None:
        super().__init__()
        self.services = services
        self.settings = services.settings
        self.theme = services.theme
        self.context = services.context
        self.commands = services.commands
        self.keymap = services.keymap
        self.clock = services.clock
        self.setWindowTitle(APP_NAME)
        self._title_connection: QMetaObject.Connection | None = None
        fit_minimum_size(self)
        self.setAcceptDrops(True)
        # A lambda, since _build makes the toasts later.
        self.appearance = Appearance(services, lambda text: self.toasts.error(text), self)
        self._is_zen = False
        self._is_panel_maximized = False
        self._has_painted = False
        self.is_restart_requested = False
        """Whether the app should restart after this window has closed."""
        # Parts that the user wants to see, even while zen mode hides them.
        self.wanted_parts = {"sideBar": True, "panel": True, "statusBar": True}
        self._build()
        self.shortcuts = Shortcuts(self, self.commands, self.keymap)
        self.shortcuts.chord_changed.connect(self._show_chord)
        self._connect()
        self._apply_layout()

    def _build(self) -> None:
        self.title_bar = TitleBar(self.services)
        workspace = self.services.workspace
        self.title_bar.set_command_center_text(workspace.absolute().name if workspace else APP_NAME)
        self.activity_bar = ActivityBar(self.theme)
        self.side_bar = SideBar()
        self.editor = EditorArea(self.services)
        self.panel = Panel(self.services)
        self.status_bar = StatusBar(self.theme, self.commands)
        self.columns = make_splitter(Qt.Orientation.Horizontal, self._reposition_floating)
        self.rows = make_splitter(Qt.Orientation.Vertical, self._reposition_floating)
        self.rows.addWidget(self.editor)
        self.rows.addWidget(self.panel)
        self.rows.setStretchFactor(0, 1)
        self.columns.addWidget(self.side_bar)
        self.columns.addWidget(self.rows)
        self.columns.setStretchFactor(1, 1)
        # For the default width of 1440 px, less 48 px for the activity bar.
        self.columns.setSizes([DEFAULT_WIDTH, 1092])
        self.rows.setSizes([640, DEFAULT_HEIGHT])
        middle = row(self.activity_bar, (self.columns, 1), spacing=0)
        column(self.title_bar, (middle, 1), self.status_bar, on=self, spacing=0)
        self.toasts = Toasts(self.services, self, self.editor, self.status_bar)
        self.command_palette = CommandPalette(self.services, self)
        self.tab_switcher = TabSwitcher(self.services, self.editor, self)
        self.find_commands = FindCommands(self.context, self.editor, self.panel, self)
        self.layout_changed.connect(self.find_commands.update_context)

    def _connect(self) -> None:
        self.activity_bar.add_menu(
            "settings-gear",
            tr("Manage"),
            lambda menu: fill_menu(
                menu, [self.commands[command_id] for command_id in _MANAGE_COMMANDS], self.services
            ),
        )
        self.editor.active_page_changed.connect(self._on_active_page_changed)
        self.keymap.changed.connect(self._update_activity_tooltips)
        self.settings.changed.connect(self._on_setting_changed)
        self.settings.failed.connect(self.toasts.warn)
        self.keymap.failed.connect(self.toasts.warn)
        self.theme.changed.connect(self._on_theme_changed)
        self.toasts.history_changed.connect(self._update_bell)
        self.clock.measured.connect(self._show_frame_stats)
        self._on_theme_changed()
        for problem in [*self.settings.problems, *filter(None, [self.keymap.problem])]:
            QTimer.singleShot(0, self, lambda problem=problem: self.toasts.warn(translate(problem)))

    # -- plugging in views --

    def start(self) -> None:
        """Show the last session's side bar view and panel tab, and restore the editor tabs.

        Call this method once all views are registered.
        """
        if not self.side_bar.current_id:
            self.side_bar.show_initial()
        self.panel.show_initial()
        self.started.emit()
        self._apply_layout()

    def add_activity(self, activity: Activity) -> None:
        """Add a side bar view, its icon, and the command that shows it."""
        self.side_bar.register(activity)
        button = self.activity_bar.add(activity)
        button.clicked.connect(lambda: self._on_activity_clicked(activity.id))
        self._add_show_command("show", activity, self.show_activity, "View/3_activities")

    def add_panel_tab(self, tab: PanelTab) -> None:
        """Add a panel tab, and the command that shows it."""
        self.panel.register(tab)
        self._add_show_command("panel", tab, self._focus_panel, "View/4_panel")

    def _add_show_command(
        self, what: str, row: Activity | PanelTab, show: Callable[[str], object], menu: str
    ) -> None:
        command_id, title = f"view.{what}.{row.id}", phrase("View: Show {view}", view=row.title)
        self.commands.register(Command(command_id, title, partial(show, row.id), row.keys, menu=menu))
        self._apply_layout()

    # -- visibility --

    def show_activity(self, activity_id: str) -> QWidget:
        """Show an activity's view and focus it; if the side bar is hidden, show that too."""
        self._is_zen = False
        self.wanted_parts["sideBar"] = True
        view = self.side_bar.show_activity(activity_id)
        self._apply_layout()
        view.setFocus(Qt.FocusReason.ShortcutFocusReason)
        return view

    def show_panel(self, tab_id: str) -> QWidget:
        """Show a panel tab; if the panel is hidden, show that too."""
        self._is_zen = False
        self.wanted_parts["panel"] = True
        body = self.panel.show_tab(tab_id)
        self._apply_layout()
        return body

    def _focus_panel(self, tab_id: str) -> None:
        """Show a panel tab and focus it."""
        self.show_panel(tab_id).setFocus(Qt.FocusReason.ShortcutFocusReason)

    def _on_activity_clicked(self, activity_id: str) -> None:
        if self.side_bar.isVisible() and self.side_bar.current_id == activity_id:
            self.toggle_part("sideBar")
        else:
            self.show_activity(activity_id)

    def toggle_part(self, part: str) -> None:
        """Show or hide "sideBar", "panel" or "statusBar"."""
        if self._is_zen:
            self.toggle_zen()
            self.wanted_parts[part] = True
        else:
            self.wanted_parts[part] = not self.wanted_parts[part]
        self._apply_layout()

    def restart(self) -> None:
        """Close the window and restart the app with the same layout; runs continue."""
        self.is_restart_requested = True
        self.close()

    def toggle_zen(self) -> None:
        """Show only the editor, or leave zen mode."""
        self._is_zen = not self._is_zen
        self._apply_layout()
        if self._is_zen:
            leave = self.keymap.text_for("view.zenMode") or self.keymap.text_for("view.leaveZenMode")
            self.toasts.info(tr("Zen mode. Press {keys} to exit.", keys=leave) if leave else tr("Zen mode."))

    def set_panel_maximized(self, maximized: bool) -> None:
        """Let the panel take the editor's space, or return the space to the editor."""
        self._is_panel_maximized = maximized
        self.wanted_parts["panel"] = True
        self._apply_layout()

    def set_visible_parts(self, visibility: dict[str, bool]) -> None:
        self.wanted_parts.update(
            {part: bool(visibility[part]) for part in self.wanted_parts if part in visibility}
        )
        self._apply_layout()

    def _apply_layout(self) -> None:
        # Until the first paint, parts show without views, so that the frame does not jump when views are
        # plugged in.
        has_side = not self._has_painted or bool(self.side_bar.activities)
        has_panel = not self._has_painted or bool(self.panel.tabs)
        side = self.wanted_parts["sideBar"] and has_side and not self._is_zen
        panel = self.wanted_parts["panel"] and has_panel and not self._is_zen
        self.side_bar.setVisible(side)
        self.panel.setVisible(panel)
        self.editor.setVisible(not (panel and self._is_panel_maximized))
        self.activity_bar.setVisible(not self._is_zen)
        self.title_bar.setVisible(not self._is_zen)
        status = self.wanted_parts["statusBar"] and not self._is_zen
        self.status_bar.setVisible(status)
        self.activity_bar.set_active(self.side_bar.current_id if side else "")
        self.context.update(
            {
                "hasSideBar": bool(self.side_bar.activities),
                "hasPanel": bool(self.panel.tabs),
                "sideBarVisible": side,
                "panelVisible": panel,
                "panelMaximized": panel and self._is_panel_maximized,
                "statusBarVisible": status,
                "zenMode": self._is_zen,
            }
        )
        self._reposition_floating()

    def _reposition_floating(self) -> None:
        self.toasts.reposition()
        if self.command_palette.isVisible():
            self.command_palette.reposition()
        self.layout_changed.emit()

    # -- updates --

    def _on_active_page_changed(self, page: Page | None) -> None:
        """Show the active page's title in the window title, and update it when the page's title changes."""
        if self._title_connection is not None:
            QObject.disconnect(self._title_connection)
        self._title_connection = None if page is None else page.title_changed.connect(self._show_title)
        self._show_title()

    def _show_title(self) -> None:
        page = self.editor.active_page()
        self.setWindowTitle(f"{page.title} — {APP_NAME}" if page else APP_NAME)

    def _update_activity_tooltips(self) -> None:
        for activity in self.side_bar.activities.values():
            keys = self.keymap.text_for(f"view.show.{activity.id}")
            self.activity_bar.get_button(activity.id).setToolTip(
                with_shortcut(translate(activity.title), keys)
            )

    def _on_setting_changed(self, key: str) -> None:
        if key == "window.show_frame_time":
            self._show_frame_stats(self.clock.stats())

    def _on_theme_changed(self) -> None:
        item = self.status_bar.item("theme", "right", 90, importance=-2)
        name, tooltip = theme_label(self.theme.name), tr("Choose a colour theme")
        item.show_text(name, tooltip=tooltip, command="theme.choose")

    def _update_bell(self) -> None:
        unread = self.toasts.unread
        text, icon = (str(unread), "bell-dot") if unread else (" ", "bell")
        item = self.status_bar.item("notifications", "right", 100)
        item.show_text(text, icon, tooltip=tr("Notifications"), command="notifications.show")

    def _show_chord(self, stroke: str) -> None:
        text = tr("{keys} was pressed. Waiting for the second key…", keys=to_text(stroke)) if stroke else ""
        self.status_bar.item("chord", "left", -100).show_text(text)

    def _show_frame_stats(self, stats: FrameStats | None) -> None:
        text = tooltip = ""
        if stats is not None and self.settings.get("window.show_frame_time", bool):
            text = tr("{rate:.0f} fps · {half:.1f} ms", rate=stats.rate_hz, half=stats.p50_ms)
            tooltip = tr(
                "Frame time: median {half:.1f} ms, 99th percentile {most:.1f} ms",
                half=stats.p50_ms,
                most=stats.p99_ms,
            )
        self.status_bar.item("frames", "right", 80, importance=-1).show_text(text, tooltip=tooltip)

    # -- Qt --

    def paintEvent(self, event: QPaintEvent) -> None:
        if not self._has_painted:
            self._has_painted = True
            QTimer.singleShot(0, self, self.first_painted.emit)

    def resizeEvent(self, event: QResizeEvent) -> None:
        if self._has_painted:
            self._reposition_floating()

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if event.mimeData().hasUrls():
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        paths = [Path(url.toLocalFile()) for url in event.mimeData().urls() if url.isLocalFile()]
        if paths:
            event.acceptProposedAction()
            self.files_dropped.emit(paths)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.WindowStateChange:
            self.clock.set_slow(self.isMinimized())

    def showEvent(self, event: QEvent) -> None:
        self.clock.set_slow(False)

    def hideEvent(self, event: QEvent) -> None:
        self.clock.set_slow(True)

    def closeEvent(self, event: QCloseEvent) -> None:
        """Close the window without asking for confirmation; runs continue."""
        self.closing.emit()
        self.clock.stop()
        self.toasts.dismiss_all()
        event.accept()

    def sizeHint(self) -> QSize:
        return QSize(1440, 900)
