"""The Runs activity: every run that can be found, newest first, with a filter and what to do with each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from PySide6.QtCore import QPoint, QSortFilterProxyModel, Qt
from PySide6.QtWidgets import QLineEdit, QListView, QMenu, QWidget

from rankdeck.run.row import RunInfo
from rankdeck_app.state.runs import Runs, RunsModel
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.layouts import column, text_label
from rankdeck_app.widgets.run_list import RunDelegate


class RunsView(QWidget):
    """`acts` do something to a run's directory: open, save, stop, resume, again, reuse, reveal and copy."""

    def __init__(self, theme: Theme, runs: Runs, acts: Mapping[str, Callable[[Path], object]]) -> None:
        super().__init__()
        self._runs, self._acts = runs, acts
        self.filter = QLineEdit(
            placeholderText="Filter by name, strategy or outcome", clearButtonEnabled=True
        )
        self.filter.setAccessibleName("Filter runs")
        self.proxy = QSortFilterProxyModel(self)
        self.proxy.setSourceModel(runs.model)
        self.proxy.setFilterCaseSensitivity(Qt.CaseSensitivity.CaseInsensitive)
        self.filter.textChanged.connect(self._filter)
        self.list = QListView()
        self.list.setModel(self.proxy)
        self.list.setItemDelegate(RunDelegate(theme, self.list))
        self.list.setAccessibleName("Runs")
        self.list.setUniformItemSizes(True)
        self.list.setMouseTracking(True)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.list.customContextMenuRequested.connect(self._open_menu)
        self.list.activated.connect(lambda index: acts["open"](index.data(RunsModel.InfoRole).path))
        self.empty = text_label(tone="dim")
        self.empty.setContentsMargins(14, 4, 14, 4)
        top = column(self.filter, margins=(12, 0, 12, 0))
        column(top, self.empty, (self.list, 1), on=self, spacing=8)
        self.setFocusProxy(self.list)
        theme.changed.connect(self.list.viewport().update)
        runs.changed.connect(self._describe)
        self._describe()

    def selected(self) -> RunInfo | None:
        info = self.list.currentIndex().data(RunsModel.InfoRole)
        return info if isinstance(info, RunInfo) else None

    def _filter(self, text: str) -> None:
        self.proxy.setFilterFixedString(text)
        self._describe()

    def _describe(self) -> None:
        text = ""
        if not self.proxy.rowCount():
            text = "No run matches." if self._runs.infos else "No run yet. Launch one from the Launch view."
            text = text if self._runs.known else "Looking for runs…"
        self.empty.setText(text)
        self.empty.setVisible(bool(text))

    def build_menu(self, info: RunInfo) -> QMenu:
        """What can be done to a run."""
        menu = QMenu(self)

        def add(text: str, act: str) -> None:
            menu.addAction(text, lambda: self._acts[act](info.path))

        add("Open", "open")
        if info.is_alive:
            if not info.is_script:
                add("Save Checkpoint Now", "save")
            add("Stop", "stop")
        elif info.is_script:
            add("Run Again", "again")
        elif info.is_resumable:
            add("Resume", "resume")
        add("Use Its Configuration", "reuse")
        menu.addSeparator()
        add("Open Its Folder", "reveal")
        add("Copy Path", "copy")
        return menu

    def _open_menu(self, at: QPoint) -> None:
        index = self.list.indexAt(at)
        info = index.data(RunsModel.InfoRole) if index.isValid() else self.selected()
        if isinstance(info, RunInfo):
            menu = self.build_menu(info)
            menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
            menu.popup(self.list.viewport().mapToGlobal(at))
