"""The page Runs: every run that can be found as a table, with a search, groups, and what to do with each.

It only shows and asks; what is asked for is done by whoever connects its signals (controllers/run_lists.py).
How the table stands is one JSON value, so that it is the same tomorrow.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from PySide6.QtCore import QEvent, QObject, QSignalBlocker, Qt, Signal
from PySide6.QtGui import QKeyEvent, QKeySequence, QShortcut, QShowEvent
from PySide6.QtWidgets import QAbstractItemView, QDialog, QLineEdit, QPlainTextEdit, QWidget

from rankdeck.base.phrases import marked
from rankdeck.base.units import format_count
from rankdeck.run.row import RunInfo
from rankdeck_app.language import tr
from rankdeck_app.shell.page import Page
from rankdeck_app.state.runs import Runs
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.controls import CheckBox, ComboBox
from rankdeck_app.widgets.layouts import column, push_button, row, text_label
from rankdeck_app.widgets.run_columns import BY_KEY, COLUMNS
from rankdeck_app.widgets.run_table import RunTable
from rankdeck_app.widgets.run_table_model import Arrangement, RunTableModel

SEARCH_HINT = marked("Search: words, {tag}, {state}, {strategy}, {note}, {without} for what it is not")
_EXAMPLES = {
    "tag": "tag:x", "state": "state:failed", "strategy": "strategy:ddp", "note": "note:x", "without": "-x",
}  # fmt: skip
"""What is searched by is written alike in every language."""
_BY = {
    "name": marked("By name"),
    "state": marked("By state"),
    "strategy": marked("By strategy"),
    "devices": marked("By devices"),
    "step": marked("By step"),
    "loss": marked("By loss"),
    "held_out": marked("By held-out"),
    "peak": marked("By peak"),
    "imbalance": marked("By imbalance"),
    "samples_per_s": marked("By samples/s"),
    "bubble": marked("By bubble"),
    "began": marked("By began"),
    "lasted": marked("By lasted"),
    "tags": marked("By tags"),
    "note": marked("By note"),
    "folder": marked("By folder"),
}
"""Of every column."""


class RunsPage(Page):
    """`opened` and `looked_at` carry a RunInfo, `renamed` a path and a name, `menu_asked` a place on the
    screen. `chosen_changed` comes when other runs are chosen, `layout_changed` when the table stands
    otherwise.
    """

    renames_in_place = True

    opened = Signal(object)
    looked_at = Signal(object)
    renamed = Signal(object, str)
    menu_asked = Signal(object)
    chosen_changed = Signal()
    focus_changed = Signal()
    layout_changed = Signal()

    def __init__(self, page_id: str, theme: Theme, runs: Runs) -> None:
        super().__init__(page_id, title=tr("Runs"), icon="table")
        self._runs = runs
        self.model = RunTableModel(self)
        self.table = RunTable(theme, self.model)
        hint = tr(SEARCH_HINT, **_EXAMPLES)
        self.search = QLineEdit(placeholderText=hint, clearButtonEnabled=True)
        self.search.setAccessibleName(tr("Search runs"))
        self.search.textChanged.connect(self._search)
        self.search.installEventFilter(self)
        self.groups = ComboBox(theme)
        self.groups.setAccessibleName(tr("Group by"))
        self.groups.addItem(tr("No groups"), "")
        for one in COLUMNS:
            self.groups.addItem(tr(_BY[one.key]), one.key)
        self.groups.activated.connect(lambda at: self.table.group_by(self.groups.itemData(at)))
        self.archived, self.previews = CheckBox(theme, tr("Archived")), CheckBox(theme, tr("Preview"))
        self.archived.setToolTip(tr("Show runs that were put away, too"))
        self.previews.setToolTip(tr("A click on a run shows its dashboard beside the table"))
        self.previews.setChecked(True)
        self.archived.toggled.connect(self._show_archived)
        self.previews.toggled.connect(lambda _on: self.layout_changed.emit())
        self.count, self.empty = text_label(tone="small", wrap=False), text_label(tone="dim")
        self.empty.setContentsMargins(8, 12, 16, 12)
        options = row(self.groups, self.archived, self.previews, None, self.count, spacing=14)
        top = column(self.search, options, margins=(16, 10, 16, 8), spacing=8)
        rows = column(self.table, margins=(8, 0, 0, 0))  # names stand below the search
        column(top, (rows, 1), on=self, spacing=0)
        column(self.empty, None, on=self.table.viewport())  # below the names of the columns
        self.setFocusProxy(self.table)
        self._connect()
        self._describe()

    def _connect(self) -> None:
        self.table.opened.connect(self.opened)
        self.table.looked_at.connect(self._look_at)
        self.table.menu_asked.connect(self.menu_asked)
        self.table.chosen_changed.connect(self._describe)
        self.table.chosen_changed.connect(self.chosen_changed)
        self.table.focus_changed.connect(self.focus_changed)
        self.table.layout_changed.connect(self._changed)
        self.table.itemDelegate().closeEditor.connect(self.refresh, Qt.ConnectionType.QueuedConnection)
        self.model.renamed.connect(self.renamed)
        self.model.arranged.connect(self._describe)
        self._runs.changed.connect(self.refresh)
        self._runs.aged.connect(self._age)

    def selected_runs(self) -> list[RunInfo]:
        """The runs that are chosen, from top to bottom."""
        return self.table.selected_runs()

    def refresh(self) -> None:
        """Show the runs as they are now, if anybody sees it; while a name is being written, nothing moves."""
        if self.isVisible() and self.table.state() != QAbstractItemView.State.EditingState:
            self.model.set_infos(self._runs.infos)
            self._describe()

    def _age(self) -> None:
        if self.isVisible():
            self.model.age()

    def rename(self, path: Path) -> None:
        self.table.choose(path)
        self.table.rename()

    def _search(self, text: str) -> None:
        self.model.set_search(text)
        self._describe()

    def _show_archived(self, shown: bool) -> None:
        self.model.arrange(replace(self.model.arrangement, shows_archived=shown))
        self._changed()
        self._describe()

    def _look_at(self, info: RunInfo) -> None:
        if self.previews.isChecked():
            self.looked_at.emit(info)

    def _changed(self) -> None:
        self.groups.setCurrentIndex(max(0, self.groups.findData(self.model.arrangement.group)))
        self.layout_changed.emit()

    def _describe(self) -> None:
        """How many there are, and why there are none."""
        model, unread = self.model, self._runs.num_unread
        archived, more = format_count(model.num_archived), format_count(unread)
        parts = [
            _counted(len(self.selected_runs()), model.num_found),
            tr("{count} archived", count=archived) if model.num_archived else "",
            tr("reading {count} more…", count=more) if unread else "",
        ]
        self.count.setText(" · ".join(filter(None, parts)))
        text = ""
        if not model.num_found:
            text = tr("No run yet. Launch one from the Launch view.")
            if not self._runs.known or unread:
                text = tr("Looking for runs…")
            elif model.num_archived:
                text = tr("Every run that matches is archived. Tick Archived to see them.")
            elif self._runs.infos:
                text = tr("No run matches.")
        self.empty.setText(text)
        self.empty.setVisible(bool(text))

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()

    # Keys

    def begin_search(self) -> None:
        """Put the keyboard into the search."""
        self.search.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self.search.selectAll()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """From the search, Down and Enter lead into the table; Escape takes back what was typed."""
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

    # What stays

    def table_state(self) -> dict[str, Any]:
        """How the table stands, as JSON values."""
        now = self.model.arrangement
        return {
            "columns": self.table.header.columns_state(),
            "sort": now.sort,
            "descending": now.is_descending,
            "group": now.group,
            "closed": sorted(now.closed),
            "archived": now.shows_archived,
            "previews": self.previews.isChecked(),
        }

    def restore_table(self, state: dict[str, Any]) -> None:
        """As `table_state` told; what makes no sense is as on the first day."""
        usual = Arrangement()
        closed = state.get("closed")
        sort, group = state.get("sort"), state.get("group")
        arrangement = Arrangement(
            sort=sort if sort in BY_KEY else usual.sort,
            is_descending=state.get("descending", usual.is_descending) is True,
            group=group if group in BY_KEY else "",
            closed=frozenset(one for one in closed if isinstance(one, str))
            if isinstance(closed, list)
            else usual.closed,
            shows_archived=state.get("archived") is True,
        )
        self.table.header.restore(state.get("columns"))
        for box, is_on in (
            (self.archived, arrangement.shows_archived),
            (self.previews, state.get("previews") is not False),
        ):
            with QSignalBlocker(box):
                box.setChecked(is_on)
        self.model.arrange(arrangement)
        self.table.show_sort()
        self.groups.setCurrentIndex(max(0, self.groups.findData(arrangement.group)))
        self._describe()

    def save_state(self) -> dict[str, Any]:
        return {"search": self.search.text()}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.search.setText(str(state.get("search", "")))


def _counted(num_chosen: int, num_found: int) -> str:
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


# The sheet on which a person writes what there is to say of a run.


class RunNote(QDialog):
    """`accepted`: `text` is to be kept. Ctrl+Enter keeps it too, since Enter begins a line."""

    def __init__(self, title: str, note: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle(tr("Note"))
        self.setModal(True)
        self.setMinimumSize(480, 300)
        heading = tr("Note of {run}", run=title)
        self.field = QPlainTextEdit(note)
        self.field.setProperty("kind", "field")
        self.field.setAccessibleName(heading)
        self.field.setTabChangesFocus(True)
        self.keep = push_button(tr("Keep"), tr("Keep the note (Ctrl+Enter)"), self.accept, kind="primary")
        leave = push_button(tr("Cancel"), tr("Leave it as it was (Escape)"), self.reject)
        for keys in ("Ctrl+Return", "Ctrl+Enter"):
            QShortcut(QKeySequence(keys), self, self.accept)
        parts = (text_label(heading, "section"), (self.field, 1), row(None, leave, self.keep))
        column(*parts, on=self, margins=(20, 16, 20, 16), spacing=10)
        self.field.setFocus()

    @property
    def text(self) -> str:
        return self.field.toPlainText()
