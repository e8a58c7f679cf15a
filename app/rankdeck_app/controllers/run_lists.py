"""Connects the run lists (the Runs page and the side bar) to tabs and commands.

A click previews a run: its dashboard opens in the group next to the Runs page (or, after a click in the side
bar, in the active group), and the next click replaces that preview. A double click or Enter opens the run.
The layout of the page's table is stored per workspace folder.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, QPoint, QTimer
from PySide6.QtWidgets import QApplication, QWidget

from rankdeck.base.phrases import phrase
from rankdeck.run.row import RunInfo
from rankdeck_app.commands.table import Command
from rankdeck_app.controllers.launcher import Launcher
from rankdeck_app.controllers.run_actions import RunActions
from rankdeck_app.controllers.run_organizer import RunOrganizer
from rankdeck_app.controllers.run_tabs import RunTabs
from rankdeck_app.controllers.scripts import Scripts
from rankdeck_app.controllers.session import Session
from rankdeck_app.controllers.view_commands import AppCommands
from rankdeck_app.language import tr
from rankdeck_app.shell.page import Page
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.state.state_file import StateFile

if TYPE_CHECKING:
    from rankdeck_app.views.runs import RunsView
    from rankdeck_app.views.runs_page import RunsPage

PAGE_KIND = "runs"
_MAX_FOLDERS = 100


class RunLists(QObject):
    def __init__(
        self,
        window: MainWindow,
        session: Session,
        tabs: RunTabs,
        launching: Launcher,
        scripts: Scripts,
        actions: AppCommands,
    ) -> None:
        super().__init__(window)
        self._window, self._session, self._tabs = window, session, tabs
        self.organizer = keeping = RunOrganizer(window, session)
        self.actions = RunActions(
            window,
            {
                "open": self._open_all,
                "save": lambda infos: tabs.save_checkpoint(infos[0].path),
                "stop": self._stop_all,
                "resume": lambda infos: launching.resume(infos[0].path),
                "again": lambda infos: scripts.run_again(infos[0].path),
                "reuse": lambda infos: actions.use_configuration(infos[0].path),
                "rename": self._rename,
                "tags": keeping.ask_tags,
                "note": lambda infos: keeping.ask_note(infos[0]),
                "archive": keeping.archive,
                "unarchive": partial(keeping.archive, is_archived=False),
                "reveal": lambda infos: tabs.reveal(infos[0].path),
                "copy": lambda infos: tabs.copy_paths([info.path for info in infos]),
                "trash": keeping.trash,
            },
        )
        self._tables: dict[str, Any] = {}
        self._state_file = StateFile(
            window.services.state_folder / "runs_table.json",
            lambda: {"tables": self._tables},
            self,
            io_thread=window.services.io_thread,
        )
        self._load_tables()
        window.editor.register_page_kind(PAGE_KIND, self._make_page, tr("Runs"))

    @property
    def selected_runs(self) -> list[RunInfo]:
        """The runs that commands act on."""
        return self.actions.selected_runs

    def commands(self) -> list[Command]:
        show = Command(
            "runs.table",
            phrase("View: Show Runs as Table"),
            self.show,
            ("Ctrl+K R",),
            menu="View/3_activities",
        )
        find = Command(
            "runs.find", phrase("Runs: Search"), self._focus_search, ("Ctrl+F",), "runsFocus", palette=False
        )
        return [show, find, *self.actions.commands()]

    def show(self) -> None:
        self._window.editor.open(f"{PAGE_KIND}:")

    def close(self) -> None:
        self._state_file.close()

    # The page

    def _make_page(self, page_id: str) -> Page:
        from rankdeck_app.views.runs_page import RunsPage

        page = RunsPage(page_id, self._window.theme, self._session.runs)
        page.restore_table(self._tables.get(self._folder, {}))
        page.opened.connect(lambda info: self._tabs.open(info.path))
        page.preview_requested.connect(lambda info: self._preview(info, page))
        page.renamed.connect(self.organizer.rename)
        page.menu_requested.connect(lambda at: self._open_menu(page.selected_runs(), page, at))
        page.layout_changed.connect(lambda: self._save_table(page))
        page.selection_changed.connect(self._update_selection_soon)
        page.focus_changed.connect(self._update_selection_soon)
        return page

    def make_side_view(self) -> RunsView:
        """Create the side bar view for Runs."""
        from rankdeck_app.views.runs import RunsView

        view = RunsView(self._window.theme, self._session.runs, self.actions.build_menu)
        view.opened.connect(lambda info: self._tabs.open(info.path))
        view.preview_requested.connect(lambda info: self._preview(info, None))
        view.table_requested.connect(self.show)
        view.selection_changed.connect(self._update_selection_soon)
        view.focus_changed.connect(self._update_selection_soon)
        return view

    def _preview(self, info: RunInfo, beside: Page | None) -> None:
        self._tabs.open(info.path, focus=False, preview=True, beside=beside)

    def _open_all(self, infos: list[RunInfo]) -> None:
        for info in infos:
            self._tabs.open(info.path)

    def _stop_all(self, infos: list[RunInfo]) -> None:
        for info in infos:
            self._tabs.stop(info.path)

    def _open_menu(self, infos: list[RunInfo], parent: QWidget, at: QPoint) -> None:
        if infos:
            menu = self.actions.build_menu(infos, parent)
            menu.aboutToHide.connect(menu.deleteLater)
            menu.popup(at)

    def _rename(self, infos: list[RunInfo]) -> None:
        """Rename the run in place if the focused list supports that; otherwise ask for the name in the
        palette."""
        used = self._focused_list()
        if used is not None and used.can_rename_inline:
            used.rename(infos[0].path)
        else:
            self.organizer.ask_name(infos[0])

    def _focus_search(self) -> None:
        used = self._focused_list()
        if used is not None:
            used.focus_search()

    # The focused list

    def current_selection(self) -> list[RunInfo]:
        """Return the runs selected in the focused list; if there are none, those selected in the visible
        table."""
        from rankdeck_app.views.runs_page import RunsPage

        page = self._window.editor.active_page()
        of_table = page.selected_runs() if isinstance(page, RunsPage) else []
        return self.actions.selected_runs or of_table

    def _focused_list(self) -> Any:
        """Return the RunsPage or RunsView that has the keyboard focus, or None."""
        focused = QApplication.focusWidget()
        while focused is not None and not hasattr(focused, "can_rename_inline"):
            focused = focused.parentWidget()
        return focused

    def _update_selection_soon(self) -> None:
        """Update the selection once the focus has settled, unless a menu or the palette is open then."""
        QTimer.singleShot(0, self, self._update_selection)

    def _update_selection(self) -> None:
        if QApplication.activePopupWidget() is not None or self._window.command_palette.isVisible():
            return
        used, focused = self._focused_list(), QApplication.focusWidget()
        is_in_list = used is not None and focused in (used.focusProxy(), used)
        self._window.context.set("runsFocus", used is not None)
        self.actions.select(used.selected_runs() if used is not None and is_in_list else [])

    # The saved layout

    @property
    def _folder(self) -> str:
        return str(self._session.workspace.folder)

    def _save_table(self, page: RunsPage) -> None:
        self._tables.pop(self._folder, None)
        self._tables[self._folder] = page.table_state()
        # The current folder was re-inserted last, so the oldest folders are dropped.
        for folder in list(self._tables)[:-_MAX_FOLDERS]:
            del self._tables[folder]
        self._state_file.save_soon()

    def _load_tables(self) -> None:
        tables = self._state_file.read().get("tables")
        if isinstance(tables, dict):
            self._tables = {key: table for key, table in tables.items() if isinstance(table, dict)}
