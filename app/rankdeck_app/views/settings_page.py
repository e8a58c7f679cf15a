"""Shows a row per setting of settings.py, and the trusted folders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QFrame, QLabel, QLineEdit, QVBoxLayout, QWidget
from shiboken6 import isValid

from rankdeck.base.phrases import tr_noop
from rankdeck_app.language import tr
from rankdeck_app.settings import Setting, Settings, Value
from rankdeck_app.shell.page import Page
from rankdeck_app.shell.palette import PREVIEW_DELAY_MS
from rankdeck_app.state.trust import Trust
from rankdeck_app.theme import Theme, set_style_properties
from rankdeck_app.widgets.controls import CheckBox, ComboBox
from rankdeck_app.widgets.form import parse_value
from rankdeck_app.widgets.layouts import (
    build_incrementally,
    clear_layout,
    column,
    make_reading_column,
    push_button,
    row,
    text_label,
)

PAGE_ID = "settings:"
MAX_WIDTH = 760
_GROUP_TITLES = {
    "theme": tr_noop("Theme"),
    "window": tr_noop("Window"),
    "editor": tr_noop("Editor"),
    "runs": tr_noop("Runs"),
    "engine": tr_noop("Engine"),
    "plan": tr_noop("Plan"),
    "notifications": tr_noop("Notifications"),
}
"""Group headings by the first part of the settings' keys."""
_TRUSTED_TITLE = tr_noop("Trusted folders")
_NO_TRUSTED_FOLDERS = tr_noop("None. Rankdeck asks before it runs a folder's Python code for the first time.")
Preview = Callable[[str], object]
"""Function that applies a setting's value without saving it."""


class SettingRow(QWidget):
    """Name, description and editor of one setting. If a value is refused, the reason is shown below the
    editor and the value is not saved."""

    def __init__(
        self, theme: Theme, settings: Settings, option: Setting, preview: Preview | None = None
    ) -> None:
        super().__init__()
        self._settings = settings
        self._preview = preview
        self.setting = option
        self.error_label = text_label(tone="error")
        self.error_label.hide()
        back = _reset_tooltip(option)
        self.reset_button = push_button(
            tr("Reset"), back, lambda: self._set_value(option.default), kind="link"
        )
        self.editor = self._make_editor(theme)
        self.editor.setAccessibleName(option.key)
        self.editor.setAccessibleDescription(tr(option.text))
        header = row(text_label(option.key, "mono", wrap=False), self.reset_button, None)
        widgets = (header, text_label(option.description, "dim"), self.editor, self.error_label)
        column(*widgets, on=self, margins=(0, 6, 0, 6), spacing=4)
        settings.changed.connect(self._on_setting_changed)
        self.refresh()

    def _make_editor(self, theme: Theme) -> QWidget:
        option = self.setting
        if option.kind is bool:
            return self._make_check_box(theme)
        return self._make_combo(theme) if option.choices else self._make_line()

    def _make_check_box(self, theme: Theme) -> CheckBox:
        box = CheckBox(theme)
        box.clicked.connect(self._set_value)

        def show(value: Value) -> None:
            box.setChecked(bool(value))
            box.setText(tr("On") if value else tr("Off"))

        self._show_value: Callable[[Value], object] = show
        return box

    def _make_combo(self, theme: Theme) -> ComboBox:
        combo = ComboBox(theme)
        combo.addItems([tr(choice) for choice in self.setting.choices])
        combo.setMaximumWidth(320)
        combo.activated.connect(lambda _index: self._set_value(self._parse_choice(combo.currentText())))
        self._show_value = lambda value: combo.setCurrentText(_value_text(self.setting, str(value)))
        line = None
        if self.setting.suffixes:
            combo.setEditable(True)
            # A typed path must not become a choice.
            combo.setInsertPolicy(ComboBox.InsertPolicy.NoInsert)
            line = combo.lineEdit()
        if line is not None:
            line.setAccessibleName(self.setting.key)
            line.editingFinished.connect(lambda: self._on_text_edited(line.text()))
        if self._preview is not None:
            self._connect_preview(combo, self._preview)
        return combo

    def _connect_preview(self, combo: ComboBox, preview: Preview) -> None:
        """Preview the highlighted choice after a short delay, and restore the setting when the list
        closes."""
        # Applying a theme takes hundreds of milliseconds, so a choice that the pointer only passes is not
        # applied.
        soon, at = QTimer(self, singleShot=True, interval=PREVIEW_DELAY_MS), [""]
        soon.timeout.connect(lambda: preview(at[0]))

        def show_preview(text: str) -> None:
            at[0] = self._parse_choice(text)
            soon.start()

        def back() -> None:
            soon.stop()
            preview(str(self._settings.value(self.setting.key)))

        combo.textHighlighted.connect(show_preview)
        combo.popup_closed.connect(back)

    def _make_line(self) -> QLineEdit:
        option = self.setting
        line = QLineEdit()
        line.setMaximumWidth(320 if option.kind is not str else MAX_WIDTH)
        line.editingFinished.connect(lambda: self._on_text_edited(line.text()))
        self._show_value = lambda value: line.setText(
            f"{value:g}" if isinstance(value, float) else str(value)
        )
        return line

    def _parse_choice(self, text: str) -> str:
        """Return the value of the choice whose label is `text`, or `text` if no choice has this label."""
        return next((choice for choice in self.setting.choices if tr(choice) == text), text)

    def _on_text_edited(self, text: str) -> None:
        text = self._parse_choice(text)
        # A return to the saved value also clears the error of a refused value.
        if text == str(self._settings.value(self.setting.key)):
            return self._show_error(None)
        kind = self.setting.kind
        value = text.strip() if kind is str else parse_value(text, kind.__name__)
        return self._set_value("" if value is None else value)

    def _set_value(self, value: Value) -> None:
        try:
            self._settings.set(self.setting.key, value)
        except ValueError as error:
            self._show_error(str(error))
        else:
            self._show_error(None)

    def _show_error(self, error: str | None) -> None:
        self.error_label.setText(error or "")
        self.error_label.setVisible(error is not None)
        set_style_properties(self.editor, invalid="true" if error else "false")
        if error is None:
            self.refresh()

    def _on_setting_changed(self, key: str) -> None:
        if key == self.setting.key:
            self.refresh()

    def refresh(self) -> None:
        value = self._settings.value(self.setting.key)
        self._show_value(value)
        self.reset_button.setVisible(value != self.setting.default)


def _value_text(option: Setting, value: str) -> str:
    """Return a value's display text; choices are translated."""
    return tr(value) if value in option.choices else value


def _reset_tooltip(option: Setting) -> str:
    if option.kind is bool:
        return tr("Reset to the default: on") if option.default else tr("Reset to the default: off")
    if option.default == "":
        return tr("Reset to the default: empty")
    return tr("Reset to the default: {value}", value=_value_text(option, str(option.default)))


def _group_of(key: str) -> str:
    return key.split(".", 1)[0]


def _contains_all(words: Iterable[str], texts: Iterable[str]) -> bool:
    joined = " ".join(texts).lower()
    return all(word in joined for word in words)


def _group_settings(settings: Settings) -> dict[str, list[Setting]]:
    """Group the settings by the first part of their keys, in the order of their definitions."""
    groups: dict[str, list[Setting]] = {}
    for option in settings.definitions.values():
        groups.setdefault(_group_of(option.key), []).append(option)
    return groups


class SettingsPage(Page):
    def __init__(
        self, theme: Theme, settings: Settings, trust: Trust, previews: Mapping[str, Preview] | None = None
    ) -> None:
        super().__init__(PAGE_ID, title=tr("Settings"), icon="settings-gear")
        self._settings, self._trust = settings, trust
        self.rows: dict[str, SettingRow] = {}
        self.filter = QLineEdit(placeholderText=tr("Search settings"), clearButtonEnabled=True)
        self.filter.setAccessibleName(tr("Search settings"))
        self.filter.textChanged.connect(self._apply_filter)
        inside = make_reading_column(self, MAX_WIDTH, (32, 16, 32, 24), 6)
        inside.addWidget(self.filter)
        self.empty_label = text_label(tr("No matching settings."), "dim")
        self.empty_label.hide()
        inside.addWidget(self.empty_label)
        self.headings: dict[str, QLabel] = {}
        self.trusted_frame = QFrame()
        self.trusted_frame.setProperty("kind", "card")
        self._trusted_column = column(on=self.trusted_frame, margins=(16, 12, 16, 12))
        self.setFocusProxy(self.filter)
        build_incrementally(self, self._make_rows(theme, previews or {}, inside))

    def _make_rows(
        self, theme: Theme, previews: Mapping[str, Preview], inside: QVBoxLayout
    ) -> Iterator[None]:
        for group, options in _group_settings(self._settings).items():
            self.headings[group] = text_label(tr(_GROUP_TITLES[group]).upper(), "section", wrap=False)
            self.headings[group].setContentsMargins(0, 14, 0, 2)
            inside.addWidget(self.headings[group])
            for option in options:
                self.rows[option.key] = SettingRow(theme, self._settings, option, previews.get(option.key))
                inside.addWidget(self.rows[option.key])
                yield
        inside.addWidget(self.trusted_frame)
        location = tr("Saved in {path}", path=self._settings.path)
        inside.addWidget(text_label(location, "small", wrap=False, selectable=True))
        inside.addStretch(1)
        self._load_trusted()
        self._apply_filter(self.filter.text())

    def showEvent(self, event: object) -> None:
        super().showEvent(event)  # type: ignore[arg-type]
        self._load_trusted()  # another window or a launch may have added a folder

    def _apply_filter(self, text: str) -> None:
        """Show the rows that contain every typed word in their name, description or choices."""
        words, groups = text.lower().split(), set[str]()
        for key, row_of in self.rows.items():
            texts = [key, tr(row_of.setting.text), *(tr(choice) for choice in row_of.setting.choices)]
            row_of.setVisible(_contains_all(words, texts))
            # Not isVisible, which is False for every row while the page itself is hidden.
            if not row_of.isHidden():
                groups.add(_group_of(key))
        for group, heading in self.headings.items():
            heading.setVisible(group in groups)
        if self.trusted_frame.parent() is not None:  # without a parent it would become a window
            self.trusted_frame.setVisible(_contains_all(words, [tr(_TRUSTED_TITLE), tr(_NO_TRUSTED_FOLDERS)]))
        self.empty_label.setVisible(not groups and self.trusted_frame.isHidden())

    def _load_trusted(self) -> None:
        self._settings.io_thread.submit(self._trust.folders, self._show_trusted, key=self)

    def _show_trusted(self, folders: list[Path]) -> None:
        # The page may be gone by the time the folders are read.
        if not isValid(self):
            return
        clear_layout(self._trusted_column)
        self._trusted_column.addWidget(text_label(tr(_TRUSTED_TITLE).upper(), "section", wrap=False))
        if not folders:
            self._trusted_column.addWidget(text_label(tr(_NO_TRUSTED_FOLDERS), "dim"))
        for folder in folders:
            tooltip = tr("Ask again before code from this folder runs")
            forget = partial(self._remove_trusted, folder)
            text = tr("Forget {folder}", folder=folder)
            self._trusted_column.addWidget(push_button(text, tooltip, forget, kind="link"))

    def _remove_trusted(self, folder: Path) -> None:
        # The io thread runs its jobs in order, so the list below is read after the removal.
        self._settings.io_thread.submit(
            partial(self._trust.remove, folder), on_error=self._settings.report_write_error
        )
        self._load_trusted()
