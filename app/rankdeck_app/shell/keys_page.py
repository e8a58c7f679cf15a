"""Keyboard shortcuts page: every command with its keys; Enter on a row or in the search field records new
keys.

The recorder accepts one chord (up to two strokes, ended by Enter or a pause) and shows which other commands
use the same keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QKeyCombination, QObject, QSize, Qt
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QApplication,
    QFrame,
    QHBoxLayout,
    QHeaderView,
    QKeySequenceEdit,
    QLineEdit,
    QTreeWidget,
    QTreeWidgetItem,
)

from rankdeck_app.commands.keymap import to_keys, to_text
from rankdeck_app.language import tr
from rankdeck_app.shell.fuzzy import fuzzy_match
from rankdeck_app.shell.page import Page
from rankdeck_app.widgets.layouts import column, push_button, row, text_label

if TYPE_CHECKING:
    from rankdeck_app.shell.window import MainWindow

ROW_HEIGHT = 24
_ID_ROLE = Qt.ItemDataRole.UserRole


class KeysPage(Page):
    def __init__(self, page_id: str, window: MainWindow) -> None:
        super().__init__(page_id, title=tr("Keyboard Shortcuts"), icon="keyboard-tab")
        self._window = window
        self._keymap = window.keymap
        self._recording_id = ""
        hint = tr("Type to search by command or keys")
        self._filter = QLineEdit(placeholderText=hint, clearButtonEnabled=True)
        self._filter.setAccessibleName(tr("Search shortcuts"))
        self._filter.textChanged.connect(self.refresh)
        self._filter.returnPressed.connect(self.record)
        self._filter.installEventFilter(self)
        self.table = QTreeWidget()
        self.table.setAccessibleName(tr("Shortcuts"))
        self.table.setHeaderLabels([tr("Command"), tr("Keys"), tr("When"), tr("Source")])
        self.table.setRootIsDecorated(False)
        self.table.setUniformRowHeights(True)
        self.table.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.table.header().setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        for at, width in enumerate((320, 200, 220)):
            self.table.setColumnWidth(at, width)
        self.table.activated.connect(lambda _index: self.record())
        self.table.currentItemChanged.connect(lambda _now, _before: self._update_buttons())
        widgets = self._filter, (self.table, 1), self._make_recorder(), self._make_buttons()
        column(*widgets, on=self, margins=(16, 12, 16, 12), spacing=10)
        self.setFocusProxy(self._filter)
        self._keymap.changed.connect(self.refresh)
        self.refresh()

    def _make_recorder(self) -> QFrame:
        self.recorder = QKeySequenceEdit()
        self.recorder.setMaximumSequenceLength(2)
        enter = (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        self.recorder.setFinishingKeyCombinations([QKeyCombination(key) for key in enter])
        self.recorder.setAccessibleName(tr("Press the new keys"))
        self.recorder.editingFinished.connect(self._on_recorded)
        self.recorder.installEventFilter(self)
        self._prompt = text_label()
        self._recorder_box = QFrame()
        self._recorder_box.setProperty("kind", "card")
        row((self._prompt, 1), self.recorder, on=self._recorder_box, margins=(12, 8, 12, 8))
        self._recorder_box.hide()
        return self._recorder_box

    def _make_buttons(self) -> QHBoxLayout:
        self._change_button = push_button(tr("Change Keys"), "", self.record)
        self._remove_button = push_button(tr("Remove Keys"), "", lambda: self._assign_keys(()))
        self._reset_button = push_button(tr("Reset"), "", lambda: self._keymap.reset(self.selected_command()))
        self._message = text_label(tone="dim")
        return row(self._change_button, self._remove_button, self._reset_button, (self._message, 1))

    def refresh(self) -> None:
        """List the commands that match the search, and keep the selection."""
        selected = self.selected_command()
        query = self._filter.text()
        self.table.clear()
        for command in self._window.commands:
            keys_text = " · ".join(map(to_text, self._keymap.keys_for(command.id)))
            # Commands are also found by their English title.
            is_found = any(fuzzy_match(query, title) for title in (command.display_title, command.title))
            if query and not is_found and query.lower() not in keys_text.lower():
                continue
            source = tr("you") if self._keymap.is_user_defined(command.id) else tr("default")
            item = QTreeWidgetItem([command.display_title, keys_text, command.when, source])
            item.setData(0, _ID_ROLE, command.id)
            item.setToolTip(0, command.id)
            item.setSizeHint(0, QSize(0, ROW_HEIGHT))
            self.table.addTopLevelItem(item)
            if command.id == selected:
                self.table.setCurrentItem(item)
        self.table.sortItems(0, Qt.SortOrder.AscendingOrder)
        first = self.table.topLevelItem(0)
        if self.table.currentItem() is None and first is not None:
            self.table.setCurrentItem(first)
        self._update_buttons()

    def selected_command(self) -> str:
        """Return the id of the selected command, or ''."""
        item = self.table.currentItem()
        return str(item.data(0, _ID_ROLE)) if item is not None else ""

    def _update_buttons(self) -> None:
        command_id = self.selected_command()
        self._change_button.setEnabled(bool(command_id))
        self._remove_button.setEnabled(bool(command_id and self._keymap.keys_for(command_id)))
        self._reset_button.setEnabled(self._keymap.is_user_defined(command_id))

    def record(self) -> None:
        """Record new keys for the selected command; Escape cancels."""
        self._recording_id = self.selected_command()
        if not self._recording_id:
            return
        title = self._window.commands[self._recording_id].display_title
        self._prompt.setText(
            tr("{command}: press the new keys, then Enter to confirm or Escape to cancel.", command=title)
        )
        self._recorder_box.show()
        self.recorder.clear()
        # The recorded keys must not run their commands.
        self._window.shortcuts.set_suspended(True)
        self.recorder.setFocus()

    def _on_recorded(self) -> None:
        sequence = self.recorder.keySequence()
        if self._recording_id and not sequence.isEmpty():
            self._assign_keys((to_keys(sequence),), self._recording_id)
        self._stop_recording()

    def _stop_recording(self) -> None:
        if self._recording_id:
            self._recording_id = ""
            self._recorder_box.hide()
            self._window.shortcuts.set_suspended(False)
            self.table.setFocus()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Stop recording on Escape or when the recorder loses the focus; move the focus from the search field
        to the table on Up or Down."""
        key = event.key() if event.type() == QEvent.Type.KeyPress and isinstance(event, QKeyEvent) else None
        if watched is self._filter:
            if key not in (Qt.Key.Key_Down, Qt.Key.Key_Up):
                return False
            self.table.setFocus()
            # The key also moves the selection.
            QApplication.sendEvent(self.table, event)
            return True
        if event.type() == QEvent.Type.FocusOut:
            self._stop_recording()
        elif key == Qt.Key.Key_Escape and self.recorder.keySequence().isEmpty():
            self._stop_recording()
            return True
        return False

    def _assign_keys(self, keys: tuple[str, ...], command_id: str = "") -> None:
        command_id = command_id or self.selected_command()
        others = (
            [other for other in self._keymap.commands_with_keys(keys[0]) if other != command_id]
            if keys
            else []
        )
        self._keymap.set_keys(command_id, keys)
        titles = ", ".join(self._window.commands[other].display_title for other in others)
        self._message.setText(
            tr("These keys are also assigned to: {commands}.", commands=titles) if titles else ""
        )

    def hideEvent(self, event: QEvent) -> None:
        self._stop_recording()
