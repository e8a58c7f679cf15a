"""Table of runs as a widget: hand-painted rows and group headers, columns that can be hidden, moved and
resized.

The name column stays in view during horizontal scrolling. The selection, current row and scroll position stay
with their runs when rows are sorted, searched or folded.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from PySide6.QtCore import QItemSelection, QItemSelectionModel, QModelIndex, QRect, Qt, Signal
from PySide6.QtGui import QFocusEvent, QKeyEvent, QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QStyle,
    QStyleOptionViewItem,
    QTableView,
)

from rankdeck.run.row import RunInfo
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.run_cells import ROW_HEIGHT, RunCellDelegate
from rankdeck_app.widgets.run_columns import COLUMNS, COLUMNS_BY_KEY, NAME_COLUMN
from rankdeck_app.widgets.run_header import RunHeader
from rankdeck_app.widgets.run_list import INDENT
from rankdeck_app.widgets.run_table_model import RunGroup, RunTableModel, row_key


class RunTable(QTableView):
    """Table of runs.

    `opened` (Enter, double click) and `preview_requested` (click) carry a RunInfo, `menu_requested` a global
    position. `selection_changed` is emitted when the selection changes, `layout_changed` when sorting, groups
    or columns change.
    """

    opened = Signal(object)
    preview_requested = Signal(object)
    selection_changed = Signal()
    focus_changed = Signal()
    menu_requested = Signal(object)
    layout_changed = Signal()

    def __init__(self, theme: Theme, runs: RunTableModel) -> None:
        super().__init__()
        self.runs = runs
        self._theme = theme
        self._selected_paths: list[Path] = []
        self._current_key: object = None
        self._top_path: Path | None = None
        self._is_restoring = False
        self.header = RunHeader(theme)
        self.setHorizontalHeader(self.header)
        self.setModel(runs)
        self._cells = RunCellDelegate(theme, self, runs)
        self.setItemDelegate(self._cells)
        self.setAccessibleName(tr("Runs"))
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setShowGrid(False)
        self.setWordWrap(False)
        # Tab leaves the table instead of going through its cells.
        self.setTabKeyNavigation(False)
        self.setMouseTracking(True)
        # Opaque, so that Qt scrolls the painted pixels instead of painting them again: 9 ms become 1.7 ms.
        self.viewport().setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.verticalHeader().setVisible(False)
        self.verticalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        self.verticalHeader().setDefaultSectionSize(ROW_HEIGHT)
        self.header.restore()
        self.header.sort_requested.connect(self.sort_by)
        self.header.group_requested.connect(self.group_by)
        self.header.layout_changed.connect(self.layout_changed)
        self.update_sort()
        self.customContextMenuRequested.connect(
            lambda at: self.menu_requested.emit(self.viewport().mapToGlobal(at))
        )
        runs.modelAboutToBeReset.connect(self._save_selection)
        runs.rows_changed.connect(self._restore_selection)
        runs.rows_changed.connect(self._fit_columns)
        runs.dataChanged.connect(lambda first, last: self._fit_columns(first.row(), last.row()))
        self._fit_columns()
        # Names and group headers do not scroll horizontally, so everything is painted again.
        for viewport in (self.viewport(), self.header.viewport()):
            self.horizontalScrollBar().valueChanged.connect(
                lambda _value, viewport=viewport: viewport.update()
            )
        theme.changed.connect(self.viewport().update)

    # Columns

    def _fit_columns(self, first: int = 0, last: int | None = None) -> None:
        """Fit the columns to the new rows from `first` to `last`; by default, fit them to all rows."""
        self.header.fit_rows(first, len(self.runs.rows) - 1 if last is None else last, self.runs.text_at)

    def sort_by(self, key: str) -> None:
        """Sort by a column; if the table is already sorted by this column, reverse the order."""
        now, column = self.runs.arrangement, COLUMNS_BY_KEY[key]
        turned = not now.is_descending if now.sort == key else column.is_number
        self.runs.arrange(replace(now, sort=key, is_descending=turned))
        self.update_sort()
        self.layout_changed.emit()

    def update_sort(self) -> None:
        now = self.runs.arrangement
        self.header.set_sort(now.sort, is_descending=now.is_descending)

    def group_by(self, key: str) -> None:
        """Group the runs by a column; "" for no groups."""
        self.runs.arrange(replace(self.runs.arrangement, group=key, collapsed=frozenset()))
        self.layout_changed.emit()

    # Selection

    def selected_runs(self) -> list[RunInfo]:
        """Return the selected runs from top to bottom."""
        chosen = sorted(index.row() for index in self.selectionModel().selectedRows(NAME_COLUMN))
        runs = [row for at in chosen if isinstance(row := self.runs.rows[at], RunInfo)]
        return list({info.path: info for info in runs}.values())  # a run may be in several groups

    def current_run(self) -> RunInfo | None:
        row = self._row_at(self.currentIndex().row())
        return row if isinstance(row, RunInfo) else None

    def selectionChanged(self, selected: QItemSelection, deselected: QItemSelection) -> None:
        super().selectionChanged(selected, deselected)
        if not self._is_restoring:
            self.selection_changed.emit()

    def _save_selection(self) -> None:
        self._selected_paths = [info.path for info in self.selected_runs()]
        current = self._row_at(self.currentIndex().row())
        self._current_key = None if current is None else row_key(current)
        top = self.rowAt(0)
        # A view at the top stays there, so that new runs are visible.
        row = self.runs.rows[top] if top > 0 else None
        self._top_path = row.path if isinstance(row, RunInfo) else None

    def _restore_selection(self) -> None:
        """Restore the selected rows, the current row and the scroll position after the rows have changed."""
        self._is_restoring = True
        rows_by_key = {row_key(row): at for at, row in enumerate(self.runs.rows)}
        if self._current_key in rows_by_key:
            index = self.runs.index(rows_by_key[self._current_key], NAME_COLUMN)
            self.selectionModel().setCurrentIndex(index, QItemSelectionModel.SelectionFlag.NoUpdate)
        selection = QItemSelection()
        for row in sorted(rows_by_key[path] for path in self._selected_paths if path in rows_by_key):
            selection.select(self.runs.index(row, 0), self.runs.index(row, len(COLUMNS) - 1))
        self.selectionModel().select(selection, QItemSelectionModel.SelectionFlag.ClearAndSelect)
        if self._top_path in rows_by_key:
            self.verticalScrollBar().setValue(rows_by_key[self._top_path] * ROW_HEIGHT)
        self._is_restoring = False
        self.selection_changed.emit()

    def select_run(self, path: Path) -> None:
        """Select a run and scroll to it."""
        at = self.runs.find_row(path)
        if at is not None:
            self.setCurrentIndex(self.runs.index(at, NAME_COLUMN))
            self.scrollTo(self.currentIndex())

    # Actions, keyboard and mouse

    def rename(self) -> None:
        """Edit the name of the current run; entries of a race cannot be renamed."""
        current = self.current_run()
        if current is not None and current.entry_of is None:
            index = self.runs.index(self.currentIndex().row(), NAME_COLUMN)
            self.setCurrentIndex(index)
            self.scrollTo(index)
            self.edit(index)

    def set_group_open(self, label: str, is_open: bool) -> None:
        now = self.runs.arrangement
        closed = now.collapsed - {label} if is_open else now.collapsed | {str(label)}
        self.runs.arrange(replace(now, collapsed=closed))
        self.layout_changed.emit()

    def _set_race_open(self, race: RunInfo, is_open: bool) -> None:
        self.runs.set_expanded(race.path, is_open=is_open)

    def _handle_fold_key(self, row: RunInfo | RunGroup | None, key: Qt.Key) -> bool:
        """Fold or unfold a race or, on Left, move from an entry to its race. Return whether the key was
        handled."""
        if not isinstance(row, RunInfo) or key not in (Qt.Key.Key_Left, Qt.Key.Key_Right):
            return False
        if row.race is not None:
            self._set_race_open(row, key == Qt.Key.Key_Right)
        elif row.entry_of is not None and key == Qt.Key.Key_Left:
            self.select_run(row.entry_of)
        return row.race is not None or row.entry_of is not None

    def _is_on_fold_icon(self, row: RunInfo | RunGroup | None, x: float) -> bool:
        left = 0 if self.header.frozen_width else self.columnViewportPosition(NAME_COLUMN)
        return isinstance(row, RunInfo) and row.race is not None and left <= x < left + INDENT + 6

    def _row_at(self, at: int) -> RunInfo | RunGroup | None:
        return self.runs.rows[at] if 0 <= at < len(self.runs.rows) else None

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self.viewport())
        painter.fillRect(event.rect(), self._theme.color("editor.background"))
        painter.end()
        super().paintEvent(event)
        if self.header.frozen_width:
            self._paint_names(self.header.frozen_width)

    def _paint_names(self, width: int) -> None:
        """Paint the name column on top of the columns that are scrolled beneath it."""
        painter, option = QPainter(self.viewport()), QStyleOptionViewItem()
        self.initViewItemOption(option)
        first = max(0, self.rowAt(0))
        last = self.rowAt(self.viewport().height() - 1)
        for at in range(first, (last if last >= 0 else len(self.runs.rows) - 1) + 1):
            option.rect = QRect(0, self.rowViewportPosition(at), width, ROW_HEIGHT)
            painter.fillRect(option.rect, self._theme.color("editor.background"))
            index = self.runs.index(at, NAME_COLUMN)
            option.state = QStyle.StateFlag.State_Enabled
            if self.selectionModel().isSelected(index):
                option.state |= QStyle.StateFlag.State_Selected
            if self.isActiveWindow():
                option.state |= QStyle.StateFlag.State_Active
            self._cells.paint(painter, option, index)
        painter.fillRect(QRect(width - 1, 0, 1, self.viewport().height()), self._theme.color("panel.border"))
        painter.end()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        row, key = self._row_at(self.currentIndex().row()), Qt.Key(event.key())
        is_enter = key in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if self.state() == QAbstractItemView.State.EditingState and not self.hasFocus():
            super().keyPressEvent(event)  # it belongs to the name editor
        elif isinstance(row, RunGroup) and (is_enter or key in (Qt.Key.Key_Left, Qt.Key.Key_Right)):
            self.set_group_open(row.label, not row.is_open if is_enter else key == Qt.Key.Key_Right)
        elif self._handle_fold_key(row, key):
            pass
        elif isinstance(row, RunInfo) and is_enter:
            self.opened.emit(row)
        elif isinstance(row, RunInfo) and key == Qt.Key.Key_Space:
            self.preview_requested.emit(row)
        elif key in (Qt.Key.Key_Home, Qt.Key.Key_End) and self.runs.rows:
            self._go_to_row(0 if key == Qt.Key.Key_Home else len(self.runs.rows) - 1, event)
        else:
            super().keyPressEvent(event)

    def _go_to_row(self, at: int, event: QKeyEvent) -> None:
        """Move to row `at`, which the caller sets to the first row for the Home key and to the last row for
        End. By default, Qt would only move to the ends of the current row."""
        index = self.runs.index(at, max(self.currentIndex().column(), 0))
        self.selectionModel().setCurrentIndex(index, self.selectionCommand(index, event))

    def mousePressEvent(self, event: QMouseEvent) -> None:
        at = self.rowAt(event.position().toPoint().y())
        row = self._row_at(at)
        super().mousePressEvent(event)
        if event.button() == Qt.MouseButton.LeftButton and isinstance(row, RunGroup):
            self.set_group_open(row.label, not row.is_open)
        elif event.button() == Qt.MouseButton.LeftButton and self._is_on_fold_icon(row, event.position().x()):
            assert isinstance(row, RunInfo)
            self._set_race_open(row, row.path not in self.runs.expanded_races)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        super().mouseReleaseEvent(event)
        row = self._row_at(self.rowAt(event.position().toPoint().y()))
        is_plain = event.modifiers() == Qt.KeyboardModifier.NoModifier
        # A click that extends the selection is no preview.
        is_alone = isinstance(row, RunInfo) and [info.path for info in self.selected_runs()] == [row.path]
        is_folding = self._is_on_fold_icon(row, event.position().x())
        if event.button() == Qt.MouseButton.LeftButton and is_plain and is_alone and not is_folding:
            self.preview_requested.emit(row)

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        row = self._row_at(self.rowAt(event.position().toPoint().y()))
        if event.button() == Qt.MouseButton.LeftButton and isinstance(row, RunInfo):
            self.opened.emit(row)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        super().mouseMoveEvent(event)
        self._set_hovered_row(self.rowAt(event.position().toPoint().y()))

    def leaveEvent(self, event: Any) -> None:
        super().leaveEvent(event)
        self._set_hovered_row(-1)

    def _set_hovered_row(self, at: int) -> None:
        if at != self._cells.hovered_row:
            before, self._cells.hovered_row = self._cells.hovered_row, at
            for row in (before, at):
                self.viewport().update(QRect(0, self.rowViewportPosition(row), self.width(), ROW_HEIGHT))

    def currentChanged(self, current: QModelIndex | Any, previous: QModelIndex | Any) -> None:
        super().currentChanged(current, previous)
        self.viewport().update()

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.viewport().update()
        self.focus_changed.emit()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.viewport().update()
        self.focus_changed.emit()
