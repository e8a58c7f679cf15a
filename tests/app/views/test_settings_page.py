"""Each setting has a field of its sort: it is changed, refused, looked at before it is kept, and reset."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLineEdit, QPushButton
from pytestqt.qtbot import QtBot

from rankdeck_app.composition import App
from rankdeck_app.language import pseudo
from rankdeck_app.settings import OPTIONS
from rankdeck_app.views.settings_page import SettingsPage
from rankdeck_app.widgets.controls import CheckBox, ComboBox
from tests.helpers.app_window import settle, wait_for


def opened(app: App) -> SettingsPage:
    app.window.commands.run("preferences.settings")
    page = app.window.editor.active_page()
    assert isinstance(page, SettingsPage)
    wait_for(lambda: page.trusted.isVisible(), 10, "all rows")
    return page


def test_settings_are_changed_refused_and_reset(qtbot: QtBot, app: App) -> None:
    page = opened(app)
    assert set(page.rows) == set(app.window.settings.options)
    row = page.rows["window.frame_rate"]
    row.editor.setText("99")  # type: ignore[attr-defined]
    row.editor.editingFinished.emit()  # type: ignore[attr-defined]
    assert row.error.isVisible() and app.window.settings.get("window.frame_rate", int) == 30
    row.editor.setText("20")  # type: ignore[attr-defined]
    row.editor.editingFinished.emit()  # type: ignore[attr-defined]
    assert not row.error.isVisible() and app.window.settings.get("window.frame_rate", int) == 20
    row.reset.click()
    assert app.window.settings.get("window.frame_rate", int) == 30
    page.filter.setText("engine")
    assert page.rows["engine.python"].isVisible() and not row.isVisible()
    assert page.headings["engine"].isVisible() and not page.headings["window"].isVisible()
    page.filter.setText("seconds NOTIFICATION")
    assert [key for key, one in page.rows.items() if one.isVisible()] == ["notifications.seconds"]
    page.filter.setText("no such thing")
    assert page.nothing.isVisible() and not page.trusted.isVisible()
    page.filter.setText("trusted FOLDERS")
    assert page.trusted.isVisible() and not page.nothing.isVisible()
    page.filter.clear()
    assert not page.nothing.isVisible() and all(one.isVisible() for one in page.rows.values())
    assert page.trusted.isVisible()


def test_what_was_searched_for_before_all_rows_are_there_holds_for_them(app: App) -> None:
    app.window.commands.run("preferences.settings")
    page = app.window.editor.active_page()
    assert isinstance(page, SettingsPage) and not page.rows
    page.filter.setText("trusted")
    assert not page.trusted.isVisible()
    page.filter.setText("seconds notification")
    wait_for(lambda: set(page.rows) == set(app.window.settings.options), 10, "all rows")
    settle()
    assert [key for key, one in page.rows.items() if one.isVisible()] == ["notifications.seconds"]


def test_a_trusted_folder_can_be_forgotten(qtbot: QtBot, app: App, tmp_path: Path) -> None:
    app.session.trust.add(tmp_path)
    page = opened(app)
    qtbot.waitUntil(lambda: any(b.isVisible() for b in page.trusted.findChildren(QPushButton)))
    (button,) = [b for b in page.trusted.findChildren(QPushButton) if b.isVisible()]
    button.click()
    app.session.disk.settle()
    assert not app.session.trust.is_trusted(tmp_path)


def test_each_sort_of_setting_has_its_field_and_says_what_is_allowed(app: App) -> None:
    page = opened(app)
    for option in OPTIONS:
        row = page.rows[option.key]
        wanted = ComboBox if option.choices else CheckBox if option.kind is bool else QLineEdit
        assert type(row.editor) is wanted, option.key
        assert not row.reset.isVisible() or option.key == "plan.automatic"
        if isinstance(row.editor, CheckBox):
            for expected in (not row.editor.isChecked(), row.editor.isChecked()):
                row.editor.click()
                assert row.editor.isChecked() is expected and row.editor.text() == ("Off", "On")[expected]
        if isinstance(row.editor, ComboBox):
            shown = [row.editor.itemText(at) for at in range(row.editor.count())]
            assert shown == list(option.choices)
        if option.minimum is not None:
            assert f"{option.minimum:g} to {option.maximum:g}." in option.told


def test_a_theme_is_looked_at_in_the_list_and_comes_back(qtbot: QtBot, app: App) -> None:
    page, theme = opened(app), app.window.theme
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
    page.rows["theme.name"].reset.click()
    assert theme.name == combo.currentText() == "Dark Modern"


def test_choices_are_shown_in_the_windows_language_and_kept_in_english(made_up: None, app: App) -> None:
    page, settings = opened(app), app.window.settings
    combo, theme = page.rows["window.density"].editor, page.rows["theme.name"].editor
    assert isinstance(combo, ComboBox) and isinstance(theme, ComboBox)
    combo.setCurrentText(pseudo("compact"))
    combo.activated.emit(1)
    assert settings.get("window.density", str) == "compact" and combo.currentText() == pseudo("compact")
    line = theme.lineEdit()
    assert line is not None and line.text() == pseudo("Dark Modern")
    for typed in (pseudo("Light Modern"), "Light High Contrast"):
        line.setText(typed)
        line.editingFinished.emit()
        kept = settings.get("theme.name", str)
        assert line.text() == pseudo(kept) and typed in (kept, pseudo(kept))
    settings.set("theme.name", "Dark Modern")
    settings.set("window.density", "comfortable")


def test_a_theme_s_path_may_be_typed_and_a_wrong_one_is_told(app: App, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text('{"name": "Mine", "type": "light"}')
    page, theme = opened(app), app.window.theme
    row = page.rows["theme.name"]
    assert isinstance(row.editor, ComboBox)
    line = row.editor.lineEdit()
    assert line is not None
    line.setText("Solarised")
    line.editingFinished.emit()
    assert "not 'Solarised'" in row.error.text() and theme.name == "Dark Modern"
    line.setText(str(tmp_path / "mine.json"))
    line.editingFinished.emit()
    assert not row.error.isVisible() and theme.name == "Mine"
    assert app.window.settings.get("theme.name", str) == str(tmp_path / "mine.json")
    row.reset.click()
