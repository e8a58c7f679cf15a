"""The Runs page: every run in a table, with a search field, groups and a context menu.

The page emits signals, and controllers/run_lists.py acts on them. The table's layout is a JSON value that is
saved and restored after a restart.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from PySide6.QtCore import QEvent, QObject, QSignalBlocker, Qt, Signal
from PySide6.QtGui import QKeyEvent, QKeySequence, QShortcut, QShowEvent
from PySide6.QtWidgets import QAbstractItemView, QDialog, QLineEdit, QPlainTextEdit, QWidget

from rankdeck.base.phrases import tr_noop
from rankdeck.base.units import format_count
from rankdeck.run.row import RunInfo
from rankdeck_app.language import tr
from rankdeck_app.shell.page import Page
from rankdeck_app.state.runs import Runs
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.controls import CheckBox, ComboBox
from rankdeck_app.widgets.layouts import column, push_button, row, text_label
from rankdeck_app.widgets.run_columns import COLUMNS, COLUMNS_BY_KEY
from rankdeck_app.widgets.run_table import RunTable
from rankdeck_app.widgets.run_table_model import RunArrangement, RunTableModel

SEARCH_HINT = tr_noop("Search: words, {tag}, {state}, {strategy}, {note}, or {without} to exclude a word")
_SEARCH_EXAMPLES = {
    "tag": "tag:x", "state": "state:failed", "strategy": "strategy:ddp", "note": "note:x", "without": "-x",
}  # fmt: skip
"""Examples of the search syntax, which is the same in every language."""
_GROUP_LABELS = {
    "name": tr_noop("By name"),
    "state": tr_noop("By state"),
    "strategy": tr_noop("By strategy"),
    "devices": tr_noop("By devices"),
    "step": tr_noop("By step"),
    "loss": tr_noop("By loss"),
    "held_out": tr_noop("By held-out loss"),
    "peak": tr_noop("By peak"),
    "imbalance": tr_noop("By imbalance"),
    "samples_per_s": tr_noop("By samples/s"),
    "bubble": tr_noop("By bubble"),
    "began": tr_noop("By start time"),
    "lasted": tr_noop("By duration"),
    "tags": tr_noop("By tags"),
    "note": tr_noop("By note"),
    "folder": tr_noop("By folder"),
}
"""Labels of the choices for grouping runs, by the key of the column to group by."""


class RunsPage(Page):
    """The run table. `opened` and `preview_requested` carry a RunInfo, `renamed` a path and a name,
    `menu_requested` a screen position.

    `selection_changed` is emitted when the selection changes, `layout_changed` when the table's layout does.
    """

    can_rename_inline = True

    opened = Signal(object)
    preview_requested = Signal(object)
    renamed = Signal(object, str)
    menu_requested = Signal(object)
    selection_changed = Signal()
    focus_changed = Signal()
    layout_changed = Signal()

    def __init__(self, page_id: str, theme: Theme, runs: Runs) -> None:
        super().__init__(page_id, title=tr("Runs"), icon="table")
        self._runs = runs
        self.model = RunTableModel(self)
        self.table = RunTable(theme, self.model)
        hint = tr(SEARCH_HINT, **_SEARCH_EXAMPLES)
        self.search = QLineEdit(placeholderText=hint, clearButtonEnabled=True)
        self.search.setAccessibleName(tr("Search runs"))
        self.search.textChanged.connect(self._set_search)
        self.search.installEventFilter(self)
        self.group_box = ComboBox(theme)
        self.group_box.setAccessibleName(tr("Group by"))
        self.group_box.addItem(tr("No groups"), "")
        for run_column in COLUMNS:
            self.group_box.addItem(tr(_GROUP_LABELS[run_column.key]), run_column.key)
        self.group_box.activated.connect(lambda at: self.table.group_by(self.group_box.itemData(at)))
        self.archived_box, self.preview_box = CheckBox(theme, tr("Archived")), CheckBox(theme, tr("Preview"))
        self.archived_box.setToolTip(tr("Also show archived runs"))
        self.preview_box.setToolTip(tr("Click a run to show its dashboard beside the table"))
        self.preview_box.setChecked(True)
        self.archived_box.toggled.connect(self._show_archived)
        self.preview_box.toggled.connect(lambda _on: self.layout_changed.emit())
        self.count_label, self.empty_label = text_label(tone="small", wrap=False), text_label(tone="dim")
        self.empty_label.setContentsMargins(8, 12, 16, 12)
        options = row(self.group_box, self.archived_box, self.preview_box, None, self.count_label, spacing=14)
        top = column(self.search, options, margins=(16, 10, 16, 8), spacing=8)
        rows = column(self.table, margins=(8, 0, 0, 0))  # aligns the names with the search field
        column(top, (rows, 1), on=self, spacing=0)
        column(self.empty_label, None, on=self.table.viewport())  # below the column titles
        self.setFocusProxy(self.table)
        self._connect()
        self._update_labels()

    def _connect(self) -> None:
        self.table.opened.connect(self.opened)
        self.table.preview_requested.connect(self._preview)
        self.table.menu_requested.connect(self.menu_requested)
        self.table.selection_changed.connect(self._update_labels)
        self.table.selection_changed.connect(self.selection_changed)
        self.table.focus_changed.connect(self.focus_changed)
        self.table.layout_changed.connect(self._on_layout_changed)
        # Queued: refresh skips a table that is still in its editing state.
        self.table.itemDelegate().closeEditor.connect(self.refresh, Qt.ConnectionType.QueuedConnection)
        self.model.rename_requested.connect(self.renamed)
        self.model.rows_changed.connect(self._update_labels)
        self._runs.changed.connect(self.refresh)
        self._runs.ages_changed.connect(self._refresh_ages)

    def selected_runs(self) -> list[RunInfo]:
        """Return the selected runs from top to bottom."""
        return self.table.selected_runs()

    def refresh(self) -> None:
        """Show the current runs if the page is visible and no name is being edited."""
        if self.isVisible() and self.table.state() != QAbstractItemView.State.EditingState:
            self.model.set_infos(self._runs.infos)
            self._update_labels()

    def _refresh_ages(self) -> None:
        if self.isVisible():
            self.model.update_ages()

    def rename(self, path: Path) -> None:
        self.table.select_run(path)
        self.table.rename()

    def _set_search(self, text: str) -> None:
        self.model.set_search(text)
        self._update_labels()

    def _show_archived(self, is_shown: bool) -> None:
        self.model.arrange(replace(self.model.arrangement, shows_archived=is_shown))
        self._on_layout_changed()
        self._update_labels()

    def _preview(self, info: RunInfo) -> None:
        if self.preview_box.isChecked():
            self.preview_requested.emit(info)

    def _on_layout_changed(self) -> None:
        self.group_box.setCurrentIndex(max(0, self.group_box.findData(self.model.arrangement.group)))
        self.layout_changed.emit()

    def _update_labels(self) -> None:
        """Show the number of runs, or the reason why the table is empty."""
        model, unread = self.model, self._runs.num_unread
        archived, more = format_count(model.num_archived), format_count(unread)
        texts = [
            _count_text(len(self.selected_runs()), model.num_found),
            tr("{count} archived", count=archived) if model.num_archived else "",
            tr("reading {count} more…", count=more) if unread else "",
        ]
        self.count_label.setText(" · ".join(filter(None, texts)))
        text = ""
        if not model.num_found:
            text = tr("No runs yet. Start a run from the Launch view.")
            if not self._runs.is_known or unread:
                text = tr("Looking for runs…")
            elif model.num_archived:
                text = tr('All matching runs are archived. Select "Archived" to show them.')
            elif self._runs.infos:
                text = tr("No matching runs.")
        self.empty_label.setText(text)
        self.empty_label.setVisible(bool(text))

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()

    # Keys

    def focus_search(self) -> None:
        """Focus the search field."""
        self.search.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self.search.selectAll()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Handle keys in the search field: Down and Enter move to the table, Escape clears the text."""
        if event.type() == QEvent.Type.KeyPress and isinstance(event, QKeyEvent):
            key = Qt.Key(event.key())
            if key in (Qt.Key.Key_Down, Qt.Key.Key_Return, Qt.Key.Key_Enter):
                self.table.setFocus(Qt.FocusReason.OtherFocusReason)
                if not self.table.currentIndex().isValid() and self.model.rows:
                    self.table.setCurrentIndex(self.model.index(0, 0))
                return True
            if key == Qt.Key.Key_Escape and self.search.text():
                self.search.clear()
                return True
        return False

    # Saved layout

    def table_state(self) -> dict[str, Any]:
        """Return the table's layout as JSON values."""
        now = self.model.arrangement
        return {
            "columns": self.table.header.columns_state(),
            "sort": now.sort,
            "descending": now.is_descending,
            "group": now.group,
            "closed": sorted(now.collapsed),
            "archived": now.shows_archived,
            "previews": self.preview_box.isChecked(),
        }

    def restore_table(self, state: dict[str, Any]) -> None:
        """Restore a layout that `table_state` returned; invalid values are replaced by defaults."""
        default = RunArrangement()
        closed = state.get("closed")
        sort, group = state.get("sort"), state.get("group")
        arrangement = RunArrangement(
            sort=sort if sort in COLUMNS_BY_KEY else default.sort,
            is_descending=state.get("descending", default.is_descending) is True,
            group=group if group in COLUMNS_BY_KEY else "",
            collapsed=frozenset(name for name in closed if isinstance(name, str))
            if isinstance(closed, list)
            else default.collapsed,
            shows_archived=state.get("archived") is True,
        )
        self.table.header.restore(state.get("columns"))
        for box, is_on in (
            (self.archived_box, arrangement.shows_archived),
            (self.preview_box, state.get("previews") is not False),
        ):
            # The boxes' signals would save the layout that is just being restored.
            with QSignalBlocker(box):
                box.setChecked(is_on)
        self.model.arrange(arrangement)
        self.table.update_sort()
        self.group_box.setCurrentIndex(max(0, self.group_box.findData(arrangement.group)))
        self._update_labels()

    def save_state(self) -> dict[str, Any]:
        return {"search": self.search.text()}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.search.setText(str(state.get("search", "")))


def _count_text(num_chosen: int, num_found: int) -> str:
    count = format_count(num_found)
    if num_chosen < 2:
        return tr("{count} runs", "{count} run", num_found, count=count)
    return tr(
        "{chosen} of {count} runs chosen",
        "{chosen} of {count} run chosen",
        num_found,
        chosen=num_chosen,
        count=count,
    )


# The dialog for a run's note.


class NoteDialog(QDialog):
    """Dialog for a run's note. When the dialog is accepted, its caller saves `text`. Ctrl+Enter accepts the
    dialog, because Enter alone starts a new line."""

    def __init__(self, title: str, note: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle(tr("Note"))
        self.setModal(True)
        self.setMinimumSize(480, 300)
        heading = tr("Note for {run}", run=title)
        self.text_edit = QPlainTextEdit(note)
        self.text_edit.setProperty("kind", "field")
        self.text_edit.setAccessibleName(heading)
        self.text_edit.setTabChangesFocus(True)
        self.save_button = push_button(
            tr("Keep"), tr("Save the note (Ctrl+Enter)"), self.accept, kind="primary"
        )
        leave = push_button(tr("Cancel"), tr("Discard the changes (Escape)"), self.reject)
        # To Qt, the Enter key of the numeric keypad is another key than Return.
        for keys in ("Ctrl+Return", "Ctrl+Enter"):
            QShortcut(QKeySequence(keys), self, self.accept)
        widgets = (text_label(heading, "section"), (self.text_edit, 1), row(None, leave, self.save_button))
        column(*widgets, on=self, margins=(20, 16, 20, 16), spacing=10)
        self.text_edit.setFocus()

    @property
    def text(self) -> str:
        return self.text_edit.toPlainText()
