from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from rankdeck_app.shell.keys_page import KeysPage
from rankdeck_app.shell.window import MainWindow
from tests.app.shell.pages import add_frame_pages

CTRL = Qt.KeyboardModifier.ControlModifier


@pytest.fixture
def page(window: MainWindow) -> KeysPage:
    add_frame_pages(window)
    page = window.editor.open("keys:")
    assert isinstance(page, KeysPage)
    return page


def select(page: KeysPage, command_id: str) -> None:
    items = (page.table.topLevelItem(row) for row in range(page.table.topLevelItemCount()))
    page.table.setCurrentItem(next(item for item in items if item and item.toolTip(0) == command_id))


def record(qtbot: QtBot, page: KeysPage, key: Qt.Key, modifier: Qt.KeyboardModifier) -> None:
    page.record()
    qtbot.keyClick(page.recorder, key, modifier)
    qtbot.waitUntil(lambda: not page._recording)


def test_recorded_keys_work_at_once(qtbot: QtBot, window: MainWindow, page: KeysPage) -> None:
    select(page, "view.zenMode")
    record(qtbot, page, Qt.Key.Key_F9, Qt.KeyboardModifier.NoModifier)
    assert window.keymap.keys_for("view.zenMode") == ("F9",)
    assert page.selected() == "view.zenMode"
    qtbot.keyClick(window, Qt.Key.Key_F9)
    assert window.context.get("zenMode") is True


def test_keys_of_other_commands_are_recorded_not_run_and_the_clash_is_said(
    qtbot: QtBot, window: MainWindow, page: KeysPage
) -> None:
    select(page, "view.fullScreen")
    record(qtbot, page, Qt.Key.Key_W, CTRL)
    assert window.editor.page("keys:") is page
    assert window.keymap.keys_for("view.fullScreen") == ("Ctrl+W",)
    assert page._message.text() == "These keys also belong to: View: Close Tab."


def test_enter_confirms_what_was_pressed(qtbot: QtBot, window: MainWindow, page: KeysPage) -> None:
    select(page, "view.fullScreen")
    for key in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
        page.record()
        qtbot.keyClick(page.recorder, Qt.Key.Key_L, CTRL | Qt.KeyboardModifier.AltModifier)
        qtbot.keyClick(page.recorder, key)
        assert not page._recording, "at once"
        assert window.keymap.keys_for("view.fullScreen") == ("Ctrl+Alt+L",)
    page.record()
    qtbot.keyClick(page.recorder, Qt.Key.Key_Return)
    assert not page._recording and window.keymap.keys_for("view.fullScreen") == ("Ctrl+Alt+L",)


def test_the_search_leads_to_its_rows_by_keys(qtbot: QtBot, window: MainWindow, page: KeysPage) -> None:
    page._filter.setFocus()
    page._filter.setText("zoom")
    first = page.selected()
    qtbot.keyClick(page._filter, Qt.Key.Key_Down)
    assert page.table.hasFocus() and page.selected() not in ("", first)
    page._filter.setFocus()
    qtbot.keyClick(page._filter, Qt.Key.Key_Return)
    assert page._recording == page.selected() and page.recorder.hasFocus()
    qtbot.keyClick(page.recorder, Qt.Key.Key_Escape)


def test_escape_leaves_the_keys_as_they_are(qtbot: QtBot, window: MainWindow, page: KeysPage) -> None:
    select(page, "view.fullScreen")
    page.record()
    qtbot.keyClick(page.recorder, Qt.Key.Key_Escape)
    assert not page._box.isVisible() and window.keymap.keys_for("view.fullScreen") == ("F11",)
    qtbot.keyClick(window, Qt.Key.Key_P, CTRL | Qt.KeyboardModifier.ShiftModifier)
    assert window.palette_box.isVisible()
    window.palette_box.dismiss()


def test_keys_are_removed_and_reset(qtbot: QtBot, window: MainWindow, page: KeysPage) -> None:
    select(page, "view.fullScreen")
    qtbot.mouseClick(page._remove, Qt.MouseButton.LeftButton)
    assert window.keymap.keys_for("view.fullScreen") == ()
    assert not page._remove.isEnabled()
    qtbot.mouseClick(page._reset, Qt.MouseButton.LeftButton)
    assert window.keymap.keys_for("view.fullScreen") == ("F11",)


def test_the_search_finds_by_title_and_by_keys(qtbot: QtBot, page: KeysPage) -> None:
    def found() -> list[str]:
        rows = range(page.table.topLevelItemCount())
        return [item.text(0) for row in rows if (item := page.table.topLevelItem(row)) is not None]

    qtbot.keyClicks(page._filter, "zen")
    assert found() == ["View: Leave Zen Mode", "View: Toggle Zen Mode"]
    page._filter.setText("ctrl+k ctrl+t")
    assert found() == ["Preferences: Colour Theme"]


def test_leaving_the_page_while_recording_gives_the_shortcuts_back(
    qtbot: QtBot, window: MainWindow, page: KeysPage
) -> None:
    select(page, "view.fullScreen")
    page.record()
    window.editor.close_page("keys:")
    QApplication.processEvents()
    qtbot.keyClick(window, Qt.Key.Key_P, CTRL | Qt.KeyboardModifier.ShiftModifier)
    assert window.palette_box.isVisible()
    window.palette_box.dismiss()
