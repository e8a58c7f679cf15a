"""Settings: a row per option of the table in settings.py, and the folders whose code is trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QFrame, QLabel, QLineEdit, QVBoxLayout, QWidget
from shiboken6 import isValid

from rankdeck.base.phrases import marked
from rankdeck_app.language import tr
from rankdeck_app.settings import Setting, Settings, Value
from rankdeck_app.shell.page import Page
from rankdeck_app.shell.palette import PREVIEW_AFTER_MS
from rankdeck_app.state.trust import Trust
from rankdeck_app.theme import Theme, set_look
from rankdeck_app.widgets.controls import CheckBox, ComboBox
from rankdeck_app.widgets.form import read
from rankdeck_app.widgets.layouts import (
    clear,
    column,
    make_in_turns,
    push_button,
    reading_column,
    row,
    text_label,
)

PAGE_ID = "settings:"
MAX_WIDTH = 760
_GROUPS = {
    "theme": marked("Theme"),
    "window": marked("Window"),
    "editor": marked("Editor"),
    "runs": marked("Runs"),
    "engine": marked("Engine"),
    "plan": marked("Plan"),
    "notifications": marked("Notifications"),
}
"""Headings, by the first part of the keys of their settings."""
_TRUSTED = marked("Trusted folders")
_NONE_TRUSTED = marked("None. You are asked before a folder's own Python code runs for the first time.")
Preview = Callable[[str], object]
"""Shows a value without keeping it."""


class OptionRow(QWidget):
    """Name, sentence and editor of one option. A refused value is explained below and not kept."""

    def __init__(
        self, theme: Theme, settings: Settings, option: Setting, preview: Preview | None = None
    ) -> None:
        super().__init__()
        self._settings = settings
        self._preview = preview
        self.option = option
        self.error = text_label(tone="error")
        self.error.hide()
        back = _reset_in_words(option)
        self.reset = push_button(tr("Reset"), back, lambda: self._set(option.default), kind="link")
        self.editor = self._make_editor(theme)
        self.editor.setAccessibleName(option.key)
        self.editor.setAccessibleDescription(tr(option.text))
        head = row(text_label(option.key, "mono", wrap=False), self.reset, None)
        parts = (head, text_label(option.told, "dim"), self.editor, self.error)
        column(*parts, on=self, margins=(0, 6, 0, 6), spacing=4)
        settings.changed.connect(self._follow)
        self.refresh()

    def _make_editor(self, theme: Theme) -> QWidget:
        option = self.option
        if option.kind is bool:
            return self._make_box(theme)
        return self._make_combo(theme) if option.choices else self._make_line()

    def _make_box(self, theme: Theme) -> CheckBox:
        box = CheckBox(theme)
        box.clicked.connect(self._set)

        def show(value: Value) -> None:
            box.setChecked(bool(value))
            box.setText(tr("On") if value else tr("Off"))

        self._show: Callable[[Value], object] = show
        return box

    def _make_combo(self, theme: Theme) -> ComboBox:
        combo = ComboBox(theme)
        combo.addItems([tr(choice) for choice in self.option.choices])
        combo.setMaximumWidth(320)
        combo.activated.connect(lambda _index: self._set(self._meant_by(combo.currentText())))
        self._show = lambda value: combo.setCurrentText(_in_words(self.option, str(value)))
        line = None
        if self.option.files:
            combo.setEditable(True)
            combo.setInsertPolicy(ComboBox.InsertPolicy.NoInsert)
            line = combo.lineEdit()
        if line is not None:
            line.setAccessibleName(self.option.key)
            line.editingFinished.connect(lambda: self._typed(line.text()))
        if self._preview is not None:
            self._look_ahead(combo, self._preview)
        return combo

    def _look_ahead(self, combo: ComboBox, preview: Preview) -> None:
        """What one is on in the list is shown, not for rows that one hurries over; what is set comes back."""
        soon, at = QTimer(self, singleShot=True, interval=PREVIEW_AFTER_MS), [""]
        soon.timeout.connect(lambda: preview(at[0]))

        def look(text: str) -> None:
            at[0] = self._meant_by(text)
            soon.start()

        def back() -> None:
            soon.stop()
            preview(str(self._settings.value(self.option.key)))

        combo.textHighlighted.connect(look)
        combo.closed.connect(back)

    def _make_line(self) -> QLineEdit:
        option = self.option
        line = QLineEdit()
        line.setMaximumWidth(320 if option.kind is not str else MAX_WIDTH)
        line.editingFinished.connect(lambda: self._typed(line.text()))
        self._show = lambda value: line.setText(f"{value:g}" if isinstance(value, float) else str(value))
        return line

    def _meant_by(self, shown: str) -> str:
        """The choice that is shown so; anything else is what was typed."""
        return next((choice for choice in self.option.choices if tr(choice) == shown), shown)

    def _typed(self, text: str) -> None:
        text = self._meant_by(text)
        if text == str(self._settings.value(self.option.key)):
            return self._say(None)
        kind = self.option.kind
        value = text.strip() if kind is str else read(text, kind.__name__)
        return self._set("" if value is None else value)

    def _set(self, value: Value) -> None:
        try:
            self._settings.set(self.option.key, value)
        except ValueError as error:
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


def _in_words(option: Setting, value: str) -> str:
    """A value as it is shown: choices in the window's language."""
    return tr(value) if value in option.choices else value


def _reset_in_words(option: Setting) -> str:
    if option.kind is bool:
        return tr("Back to the default: on") if option.default else tr("Back to the default: off")
    if option.default == "":
        return tr("Back to the default: empty")
    return tr("Back to the default: {value}", value=_in_words(option, str(option.default)))


def _group_of(key: str) -> str:
    return key.split(".", 1)[0]


def _are_in(words: Iterable[str], said: Iterable[str]) -> bool:
    told = " ".join(said).lower()
    return all(word in told for word in words)


def _grouped(settings: Settings) -> dict[str, list[Setting]]:
    """By the first part of their keys, in the order of the table."""
    groups: dict[str, list[Setting]] = {}
    for option in settings.options.values():
        groups.setdefault(_group_of(option.key), []).append(option)
    return groups


class SettingsPage(Page):
    def __init__(
        self, theme: Theme, settings: Settings, trust: Trust, previews: Mapping[str, Preview] | None = None
    ) -> None:
        super().__init__(PAGE_ID, title=tr("Settings"), icon="settings-gear")
        self._settings, self._trust = settings, trust
        self.rows: dict[str, OptionRow] = {}
        self.filter = QLineEdit(placeholderText=tr("Search settings"), clearButtonEnabled=True)
        self.filter.setAccessibleName(tr("Search settings"))
        self.filter.textChanged.connect(self._filter)
        inside = reading_column(self, MAX_WIDTH, (32, 16, 32, 24), 6)
        inside.addWidget(self.filter)
        self.nothing = text_label(tr("No setting matches."), "dim")
        self.nothing.hide()
        inside.addWidget(self.nothing)
        self.headings: dict[str, QLabel] = {}
        self.trusted = QFrame()
        self.trusted.setProperty("kind", "card")
        self._trusted_column = column(on=self.trusted, margins=(16, 12, 16, 12))
        self.setFocusProxy(self.filter)
        make_in_turns(self, self._make_rows(theme, previews or {}, inside))

    def _make_rows(
        self, theme: Theme, previews: Mapping[str, Preview], inside: QVBoxLayout
    ) -> Iterator[None]:
        for group, options in _grouped(self._settings).items():
            self.headings[group] = text_label(tr(_GROUPS[group]).upper(), "section", wrap=False)
            self.headings[group].setContentsMargins(0, 14, 0, 2)
            inside.addWidget(self.headings[group])
            for option in options:
                self.rows[option.key] = OptionRow(theme, self._settings, option, previews.get(option.key))
                inside.addWidget(self.rows[option.key])
                yield
        inside.addWidget(self.trusted)
        kept = tr("Kept in {path}", path=self._settings.path)
        inside.addWidget(text_label(kept, "small", wrap=False, selectable=True))
        inside.addStretch(1)
        self._list_trusted()
        self._filter(self.filter.text())

    def showEvent(self, event: object) -> None:
        super().showEvent(event)  # type: ignore[arg-type]
        self._list_trusted()  # another window, or a launch, may have added one

    def _filter(self, text: str) -> None:
        """Every word that is typed must be in the name, the sentence or a choice."""
        words, groups = text.lower().split(), set[str]()
        for key, row_of in self.rows.items():
            said = [key, tr(row_of.option.text), *(tr(choice) for choice in row_of.option.choices)]
            row_of.setVisible(_are_in(words, said))
            if not row_of.isHidden():
                groups.add(_group_of(key))
        for group, heading in self.headings.items():
            heading.setVisible(group in groups)
        if self.trusted.parent() is not None:  # else it would be a window of its own
            self.trusted.setVisible(_are_in(words, [tr(_TRUSTED), tr(_NONE_TRUSTED)]))
        self.nothing.setVisible(not groups and self.trusted.isHidden())

    def _list_trusted(self) -> None:
        self._settings.disk.do(self._trust.folders, self._show_trusted, key=self)

    def _show_trusted(self, folders: list[Path]) -> None:
        if not isValid(self):
            return
        clear(self._trusted_column)
        self._trusted_column.addWidget(text_label(tr(_TRUSTED).upper(), "section", wrap=False))
        if not folders:
            self._trusted_column.addWidget(text_label(tr(_NONE_TRUSTED), "dim"))
        for folder in folders:
            tooltip = tr("Ask again before code of this folder runs")
            forget = partial(self._forget, folder)
            text = tr("Forget {folder}", folder=folder)
            self._trusted_column.addWidget(push_button(text, tooltip, forget, kind="link"))

    def _forget(self, folder: Path) -> None:
        self._settings.disk.do(partial(self._trust.remove, folder), failed=self._settings.tell)
        self._list_trusted()
