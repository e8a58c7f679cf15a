"""The Runs side bar: every run, newest first, with a search field and a context menu.

Like the Runs page (runs_page.py), it emits signals and does not change any run itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from PySide6.QtCore import QEvent, QObject, QPoint, QSortFilterProxyModel, Qt, Signal
from PySide6.QtGui import QCursor, QKeyEvent
from PySide6.QtWidgets import QAbstractItemView, QLineEdit, QListView, QMenu, QWidget

from rankdeck.run.row import RunInfo
from rankdeck_app.language import tr
from rankdeck_app.state.run_search import RunSearch
from rankdeck_app.state.runs import Runs, RunsModel
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.controls import tool_button
from rankdeck_app.widgets.layouts import MIDDLE, column, row, text_label
from rankdeck_app.widgets.painting import Index
from rankdeck_app.widgets.run_list import INDENT, RunDelegate


class _RunFilter(QSortFilterProxyModel):
    """Filter of runs by the search text. Archived runs are shown only if the search asks for them."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self.search = RunSearch()
        self.expanded_races: set[Path] = set()
        """Races whose entries are shown."""

    def set_expanded(self, race: Path, *, is_open: bool) -> None:
        self.beginFilterChange()
        (self.expanded_races.add if is_open else self.expanded_races.discard)(race)
        self.endFilterChange(QSortFilterProxyModel.Direction.Rows)

    def set_search(self, text: str) -> None:
        self.beginFilterChange()
        self.search = RunSearch(text)
        self.endFilterChange(QSortFilterProxyModel.Direction.Rows)

    def filterAcceptsRow(self, row: int, parent: Index) -> bool:
        source = self.sourceModel()
        info: RunInfo = source.index(row, 0).data(RunsModel.InfoRole)
        while info.entry_of is not None:  # entries follow their race, which must be expanded and shown
            if info.entry_of not in self.expanded_races:
                return False
            row -= 1
            info = source.index(row, 0).data(RunsModel.InfoRole)
        is_hidden = info.labels.is_archived and not self.search.includes_archived
        return not is_hidden and self.search.matches(info)


class RunsView(QWidget):
    """The run list. `opened` (Enter, double click) and `preview_requested` (click) carry a RunInfo.

    `table_requested` is emitted to open the Runs page, `selection_changed` when the selection changes.
    """

    can_rename_inline = False

    opened = Signal(object)
    preview_requested = Signal(object)
    table_requested = Signal()
    selection_changed = Signal()
    focus_changed = Signal()

    def __init__(self, theme: Theme, runs: Runs, menu: Callable[[Sequence[RunInfo], QWidget], QMenu]) -> None:
        super().__init__()
        self._runs, self._make_menu = runs, menu
        hint = tr("Search, {tag}, {state}", tag="tag:x", state="state:failed")
        self.filter = QLineEdit(placeholderText=hint, clearButtonEnabled=True)
        self.filter.setAccessibleName(tr("Search runs"))
        self.proxy = _RunFilter(self)
        self.proxy.setSourceModel(runs.model)
        self.filter.textChanged.connect(self._set_search)
        self.list = QListView()
        self.list.setModel(self.proxy)
        self.list.setItemDelegate(RunDelegate(theme, self.list, self.proxy.expanded_races))
        self.list.setAccessibleName(tr("Runs"))
        # With thousands of runs, Qt must not measure each row.
        self.list.setUniformItemSizes(True)
        self.list.setMouseTracking(True)
        self.list.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.list.customContextMenuRequested.connect(self._open_menu)
        self.list.clicked.connect(self._on_clicked)
        self.list.activated.connect(lambda index: self.opened.emit(index.data(RunsModel.InfoRole)))
        self.list.selectionModel().selectionChanged.connect(lambda *_: self.selection_changed.emit())
        self.list.installEventFilter(self)
        self.table_button = tool_button(theme, "table", tr("Show Runs as a Table"), self.table_requested.emit)
        self.empty_label = text_label(tone="dim")
        self.empty_label.setContentsMargins(14, 4, 14, 4)
        top = row((self.filter, 1), self.table_button, margins=(12, 0, 12, 0), spacing=6, align=MIDDLE)
        column(top, self.empty_label, (self.list, 1), on=self, spacing=8)
        self.setFocusProxy(self.list)
        theme.changed.connect(self.list.viewport().update)
        runs.changed.connect(self._update_empty_label)
        runs.ages_changed.connect(self.list.viewport().update)
        self._update_empty_label()

    def current_run(self) -> RunInfo | None:
        info = self.list.currentIndex().data(RunsModel.InfoRole)
        return info if isinstance(info, RunInfo) else None

    def selected_runs(self) -> list[RunInfo]:
        """Return the selected runs from top to bottom."""
        # Qt does not sort the selection.
        indexes = sorted(self.list.selectionModel().selectedIndexes(), key=lambda index: index.row())
        return [index.data(RunsModel.InfoRole) for index in indexes]

    def focus_search(self) -> None:
        """Focus the search field."""
        self.filter.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self.filter.selectAll()

    def _on_clicked(self, index: Index) -> None:
        info: RunInfo = index.data(RunsModel.InfoRole)
        # `clicked` does not carry the position, so the pointer is read.
        if info.race is not None and self.list.viewport().mapFromGlobal(QCursor.pos()).x() < 10 + INDENT:
            self.proxy.set_expanded(info.path, is_open=info.path not in self.proxy.expanded_races)
        elif len(self.selected_runs()) == 1:
            self.preview_requested.emit(info)

    def _expand_or_collapse(self, info: RunInfo, key: Qt.Key) -> bool:
        """Expand a race on Right, collapse it on Left, or move from an entry to its race on Left. Return
        whether `info` is a race or an entry."""
        if info.race is not None:
            self.proxy.set_expanded(info.path, is_open=key == Qt.Key.Key_Right)
        elif info.entry_of is not None and key == Qt.Key.Key_Left:
            at = self.list.currentIndex().row()
            while self.proxy.index(at, 0).data(RunsModel.InfoRole).entry_of is not None:
                at -= 1
            self.list.setCurrentIndex(self.proxy.index(at, 0))
        return info.race is not None or info.entry_of is not None

    def _set_search(self, text: str) -> None:
        self.proxy.set_search(text)
        self._update_empty_label()

    def _update_empty_label(self) -> None:
        text = ""
        if not self.proxy.rowCount():
            text = tr("No runs yet. Start a run from the Launch view.")
            if not self._runs.is_known or self._runs.num_unread:
                text = tr("Looking for runs…")
            elif self._runs.infos:
                text = tr("No matching runs.")
        self.empty_label.setText(text)
        self.empty_label.setVisible(bool(text))

    def build_menu(self, info: RunInfo) -> QMenu:
        """Build the menu for a run, or for the selection if the run is part of it."""
        chosen = self.selected_runs()
        return self._make_menu(chosen if info in chosen else [info], self)

    def _open_menu(self, at: QPoint) -> None:
        index = self.list.indexAt(at)
        info = index.data(RunsModel.InfoRole) if index.isValid() else self.current_run()
        if isinstance(info, RunInfo):
            menu = self.build_menu(info)
            menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
            menu.popup(self.list.viewport().mapToGlobal(at))

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() in (QEvent.Type.FocusIn, QEvent.Type.FocusOut):
            self.focus_changed.emit()
        if event.type() == QEvent.Type.KeyPress and isinstance(event, QKeyEvent):
            info = self.current_run()
            key = Qt.Key(event.key())
            if (
                info is not None
                and key in (Qt.Key.Key_Left, Qt.Key.Key_Right)
                and self._expand_or_collapse(info, key)
            ):
                return True
            if key == Qt.Key.Key_Space and info is not None:
                self.preview_requested.emit(info)
                return True
        return False
