"""Settings: a row per option of the table in settings.py, and the folders whose code is trusted."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QPushButton,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from rankdeck_app.settings import Setting, Settings, Value
from rankdeck_app.shell.page import Page
from rankdeck_app.state.trust import Trust
from rankdeck_app.theme import Theme, set_look
from rankdeck_app.widgets.controls import CheckBox, ComboBox

PAGE_ID = "settings:"
MAX_WIDTH = 760


class OptionRow(QWidget):
    """Name, sentence and editor of one option. A refused value is explained below and not kept."""

    def __init__(self, theme: Theme, settings: Settings, option: Setting) -> None:
        super().__init__()
        self._settings = settings
        self.option = option
        self.error = QLabel()
        self.error.setProperty("tone", "error")
        self.error.hide()
        self.reset = QPushButton("Reset")
        self.reset.setProperty("kind", "link")
        self.reset.setToolTip(f"Back to the default: {option.default or 'empty'}")
        self.reset.clicked.connect(lambda: self._set(option.default))
        name = QLabel(option.key)
        name.setProperty("tone", "mono")
        head = QHBoxLayout()
        head.addWidget(name)
        head.addWidget(self.reset)
        head.addStretch(1)
        text = QLabel(option.text)
        text.setProperty("tone", "dim")
        text.setWordWrap(True)
        self.editor = self._make_editor(theme)
        self.editor.setAccessibleName(option.key)
        self.editor.setAccessibleDescription(option.text)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 6, 0, 6)
        column.setSpacing(4)
        column.addLayout(head)
        column.addWidget(text)
        column.addWidget(self.editor)
        column.addWidget(self.error)
        settings.changed.connect(self._follow)
        self.refresh()

    def _make_editor(self, theme: Theme) -> QWidget:
        option = self.option
        if option.kind is bool:
            box = CheckBox(theme, "On")
            box.clicked.connect(self._set)
            self._show: Callable[[Value], object] = lambda value: box.setChecked(bool(value))
            return box
        if option.choices:
            combo = ComboBox(theme)
            combo.addItems(option.choices)
            combo.setMaximumWidth(320)
            combo.activated.connect(lambda _index: self._set(combo.currentText()))
            self._show = lambda value: combo.setCurrentText(str(value))
            return combo
        line = QLineEdit()
        line.setMaximumWidth(320 if option.kind is not str else MAX_WIDTH)
        line.editingFinished.connect(lambda: self._typed(line.text()))
        self._show = lambda value: line.setText(f"{value:g}" if isinstance(value, float) else str(value))
        return line

    def _typed(self, text: str) -> None:
        if text == str(self._settings.value(self.option.key)):
            return self._say(None)
        if self.option.kind is str:
            return self._set(text.strip())
        try:
            number = float(text) if self.option.kind is float else int(text)
        except ValueError:
            return self._say(f"{self.option.key} must be a number, not {text!r}.")
        return self._set(number)

    def _set(self, value: Value) -> None:
        try:
            self._settings.set(self.option.key, value)
        except (ValueError, OSError) as error:
            self._say(str(error))
        else:
            self._say(None)

    def _say(self, error: str | None) -> None:
        self.error.setText(error or "")
        self.error.setVisible(error is not None)
        set_look(self.editor, invalid="true" if error else "false")
        if error is None:
            self.refresh()

    def _follow(self, key: str) -> None:
        if key == self.option.key:
            self.refresh()

    def refresh(self) -> None:
        value = self._settings.value(self.option.key)
        self._show(value)
        self.reset.setVisible(value != self.option.default)


class SettingsPage(Page):
    can_split = False

    def __init__(self, theme: Theme, settings: Settings, trust: Trust) -> None:
        super().__init__(PAGE_ID, title="Settings", icon="settings-gear")
        self._trust = trust
        self.rows: dict[str, OptionRow] = {}
        self.filter = QLineEdit(placeholderText="Search settings", clearButtonEnabled=True)
        self.filter.setAccessibleName("Search settings")
        self.filter.textChanged.connect(self._filter)
        inside = QWidget()
        inside.setMaximumWidth(MAX_WIDTH)
        column = QVBoxLayout(inside)
        column.setContentsMargins(32, 16, 32, 24)
        column.setSpacing(6)
        column.addWidget(self.filter)
        for option in settings.options.values():
            self.rows[option.key] = OptionRow(theme, settings, option)
            column.addWidget(self.rows[option.key])
        self.trusted = QFrame()
        self.trusted.setProperty("kind", "card")
        self._trusted_column = QVBoxLayout(self.trusted)
        self._trusted_column.setContentsMargins(16, 12, 16, 12)
        column.addWidget(self.trusted)
        where = QLabel(f"Kept in {settings.path}")
        where.setProperty("tone", "small")
        where.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        column.addWidget(where)
        column.addStretch(1)
        scroll = QScrollArea()
        scroll.setWidgetResizable(True)
        scroll.setWidget(inside)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(scroll)
        self.setFocusProxy(self.filter)
        self._list_trusted()

    def showEvent(self, event: object) -> None:
        super().showEvent(event)  # type: ignore[arg-type]
        self._list_trusted()  # another window, or a launch, may have added one

    def _filter(self, text: str) -> None:
        for key, row in self.rows.items():
            row.setVisible(text.lower() in f"{key} {row.option.text}".lower())

    def _list_trusted(self) -> None:
        while (item := self._trusted_column.takeAt(0)) is not None:
            widget = item.widget()
            if widget is not None:
                widget.hide()
                widget.deleteLater()
        title = QLabel("TRUSTED FOLDERS")
        title.setProperty("tone", "section")
        self._trusted_column.addWidget(title)
        folders = self._trust.folders()
        if not folders:
            none = QLabel("None. You are asked before a folder's own Python code runs for the first time.")
            none.setProperty("tone", "dim")
            none.setWordWrap(True)
            self._trusted_column.addWidget(none)
        for folder in folders:
            forget = QPushButton(f"Forget {folder}")
            forget.setProperty("kind", "link")
            forget.setToolTip("Ask again before code of this folder runs")
            forget.clicked.connect(lambda _checked=False, folder=folder: self._forget(folder))
            self._trusted_column.addWidget(forget)

    def _forget(self, folder: object) -> None:
        from pathlib import Path

        assert isinstance(folder, Path)
        self._trust.remove(folder)
        self._list_trusted()
