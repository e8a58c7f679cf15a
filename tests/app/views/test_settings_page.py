"""Each setting has a field of its sort: it is changed, refused, looked at before it is kept, and reset."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLineEdit, QPushButton
from pytestqt.qtbot import QtBot

from rankdeck_app.composition import App
from rankdeck_app.language import pseudolocalize
from rankdeck_app.settings import SETTINGS
from rankdeck_app.views.settings_page import SettingsPage
from rankdeck_app.widgets.controls import CheckBox, ComboBox
from tests.helpers.app_window import process_events, wait_for


def open_settings_page(app: App) -> SettingsPage:
    app.window.commands.run("preferences.settings")
    page = app.window.editor.active_page()
    assert isinstance(page, SettingsPage)
    wait_for(lambda: page.trusted_frame.isVisible(), 10, "all rows")
    return page


def test_settings_are_changed_refused_and_reset(qtbot: QtBot, app: App) -> None:
    page = open_settings_page(app)
    assert set(page.rows) == set(app.window.settings.definitions)
    row = page.rows["window.frame_rate"]
    row.editor.setText("99")  # type: ignore[attr-defined]
    row.editor.editingFinished.emit()  # type: ignore[attr-defined]
    assert row.error_label.isVisible() and app.window.settings.get("window.frame_rate", int) == 30
    row.editor.setText("20")  # type: ignore[attr-defined]
    row.editor.editingFinished.emit()  # type: ignore[attr-defined]
    assert not row.error_label.isVisible() and app.window.settings.get("window.frame_rate", int) == 20
    row.reset_button.click()
    assert app.window.settings.get("window.frame_rate", int) == 30
    page.filter.setText("engine")
    assert page.rows["engine.python"].isVisible() and not row.isVisible()
    assert page.headings["engine"].isVisible() and not page.headings["window"].isVisible()
    page.filter.setText("seconds NOTIFICATION")
    assert [key for key, setting_row in page.rows.items() if setting_row.isVisible()] == [
        "notifications.seconds"
    ]
    page.filter.setText("no such thing")
    assert page.empty_label.isVisible() and not page.trusted_frame.isVisible()
    page.filter.setText("trusted FOLDERS")
    assert page.trusted_frame.isVisible() and not page.empty_label.isVisible()
    page.filter.clear()
    assert not page.empty_label.isVisible() and all(
        setting_row.isVisible() for setting_row in page.rows.values()
    )
    assert page.trusted_frame.isVisible()


def test_a_filter_applies_to_rows_created_later(app: App) -> None:
    app.window.commands.run("preferences.settings")
    page = app.window.editor.active_page()
    assert isinstance(page, SettingsPage) and not page.rows
    page.filter.setText("trusted")
    assert not page.trusted_frame.isVisible()
    page.filter.setText("seconds notification")
    wait_for(lambda: set(page.rows) == set(app.window.settings.definitions), 10, "all rows")
    process_events()
    assert [key for key, setting_row in page.rows.items() if setting_row.isVisible()] == [
        "notifications.seconds"
    ]


def test_a_trusted_folder_can_be_removed(qtbot: QtBot, app: App, tmp_path: Path) -> None:
    app.session.trust.add(tmp_path)
    page = open_settings_page(app)
    qtbot.waitUntil(lambda: any(b.isVisible() for b in page.trusted_frame.findChildren(QPushButton)))
    (button,) = [b for b in page.trusted_frame.findChildren(QPushButton) if b.isVisible()]
    button.click()
    app.session.io_thread.wait_for_done()
    assert not app.session.trust.is_trusted(tmp_path)


def test_each_type_of_setting_has_its_editor_and_description(app: App) -> None:
    page = open_settings_page(app)
    for option in SETTINGS:
        row = page.rows[option.key]
        editor_type = ComboBox if option.choices else CheckBox if option.kind is bool else QLineEdit
        assert type(row.editor) is editor_type, option.key
        assert not row.reset_button.isVisible() or option.key == "plan.automatic"
        if isinstance(row.editor, CheckBox):
            for expected in (not row.editor.isChecked(), row.editor.isChecked()):
                row.editor.click()
                assert row.editor.isChecked() is expected and row.editor.text() == ("Off", "On")[expected]
        if isinstance(row.editor, ComboBox):
            texts = [row.editor.itemText(at) for at in range(row.editor.count())]
            assert texts == list(option.choices)
        if option.minimum is not None:
            assert f"{option.minimum:g} to {option.maximum:g}." in option.description


def test_themes_are_previewed_in_the_list_and_reset(qtbot: QtBot, app: App) -> None:
    page, theme = open_settings_page(app), app.window.theme
    combo = page.rows["theme.name"].editor
    assert isinstance(combo, ComboBox)
    combo.showPopup()
    qtbot.keyClick(combo.view(), Qt.Key.Key_Down)
    qtbot.waitUntil(lambda: theme.name == "Light Modern", timeout=3000)
    assert app.window.settings.get("theme.name", str) == "Dark Modern"
    combo.hidePopup()
    assert theme.name == "Dark Modern"
    combo.setCurrentText("Light Modern")
    combo.activated.emit(1)
    assert theme.name == app.window.settings.get("theme.name", str) == "Light Modern"
    page.rows["theme.name"].reset_button.click()
    assert theme.name == combo.currentText() == "Dark Modern"


def test_choices_are_translated_and_saved_in_english(made_up: None, app: App) -> None:
    page, settings = open_settings_page(app), app.window.settings
    combo, theme = page.rows["window.density"].editor, page.rows["theme.name"].editor
    assert isinstance(combo, ComboBox) and isinstance(theme, ComboBox)
    combo.setCurrentText(pseudolocalize("compact"))
    combo.activated.emit(1)
    assert settings.get("window.density", str) == "compact" and combo.currentText() == pseudolocalize(
        "compact"
    )
    line = theme.lineEdit()
    assert line is not None and line.text() == pseudolocalize("Dark Modern")
    for typed in (pseudolocalize("Light Modern"), "Light High Contrast"):
        line.setText(typed)
        line.editingFinished.emit()
        saved = settings.get("theme.name", str)
        assert line.text() == pseudolocalize(saved) and typed in (saved, pseudolocalize(saved))
    settings.set("theme.name", "Dark Modern")
    settings.set("window.density", "comfortable")


def test_a_theme_path_can_be_typed_and_an_invalid_one_is_reported(app: App, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text('{"name": "Mine", "type": "light"}')
    page, theme = open_settings_page(app), app.window.theme
    row = page.rows["theme.name"]
    assert isinstance(row.editor, ComboBox)
    line = row.editor.lineEdit()
    assert line is not None
    line.setText("Solarised")
    line.editingFinished.emit()
    assert "not 'Solarised'" in row.error_label.text() and theme.name == "Dark Modern"
    line.setText(str(tmp_path / "mine.json"))
    line.editingFinished.emit()
    assert not row.error_label.isVisible() and theme.name == "Mine"
    assert app.window.settings.get("theme.name", str) == str(tmp_path / "mine.json")
    row.reset_button.click()
