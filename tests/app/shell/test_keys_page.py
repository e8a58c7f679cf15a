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


def select_command(page: KeysPage, command_id: str) -> None:
    items = (page.table.topLevelItem(row) for row in range(page.table.topLevelItemCount()))
    page.table.setCurrentItem(next(item for item in items if item and item.toolTip(0) == command_id))


def record_keys(qtbot: QtBot, page: KeysPage, key: Qt.Key, modifier: Qt.KeyboardModifier) -> None:
    page.record()
    qtbot.keyClick(page.recorder, key, modifier)
    qtbot.waitUntil(lambda: not page._recording_id)


def test_recorded_keys_work_at_once(qtbot: QtBot, window: MainWindow, page: KeysPage) -> None:
    select_command(page, "view.zenMode")
    record_keys(qtbot, page, Qt.Key.Key_F9, Qt.KeyboardModifier.NoModifier)
    assert window.keymap.keys_for("view.zenMode") == ("F9",)
    assert page.selected_command() == "view.zenMode"
    qtbot.keyClick(window, Qt.Key.Key_F9)
    assert window.context.get("zenMode") is True


def test_recording_reports_conflicts_and_runs_no_command(
    qtbot: QtBot, window: MainWindow, page: KeysPage
) -> None:
    select_command(page, "view.fullScreen")
    record_keys(qtbot, page, Qt.Key.Key_W, CTRL)
    assert window.editor.page("keys:") is page
    assert window.keymap.keys_for("view.fullScreen") == ("Ctrl+W",)
    assert page._message.text() == "These keys are also assigned to: View: Close Tab."


def test_enter_confirms_the_recorded_keys(qtbot: QtBot, window: MainWindow, page: KeysPage) -> None:
    select_command(page, "view.fullScreen")
    for key in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
        page.record()
        qtbot.keyClick(page.recorder, Qt.Key.Key_L, CTRL | Qt.KeyboardModifier.AltModifier)
        qtbot.keyClick(page.recorder, key)
        assert not page._recording_id, "at once"
        assert window.keymap.keys_for("view.fullScreen") == ("Ctrl+Alt+L",)
    page.record()
    qtbot.keyClick(page.recorder, Qt.Key.Key_Return)
    assert not page._recording_id and window.keymap.keys_for("view.fullScreen") == ("Ctrl+Alt+L",)


def test_arrow_keys_move_from_the_search_to_the_table(
    qtbot: QtBot, window: MainWindow, page: KeysPage
) -> None:
    page._filter.setFocus()
    page._filter.setText("zoom")
    first = page.selected_command()
    qtbot.keyClick(page._filter, Qt.Key.Key_Down)
    assert page.table.hasFocus() and page.selected_command() not in ("", first)
    page._filter.setFocus()
    qtbot.keyClick(page._filter, Qt.Key.Key_Return)
    assert page._recording_id == page.selected_command() and page.recorder.hasFocus()
    qtbot.keyClick(page.recorder, Qt.Key.Key_Escape)


def test_escape_cancels_recording(qtbot: QtBot, window: MainWindow, page: KeysPage) -> None:
    select_command(page, "view.fullScreen")
    page.record()
    qtbot.keyClick(page.recorder, Qt.Key.Key_Escape)
    assert not page._recorder_box.isVisible() and window.keymap.keys_for("view.fullScreen") == ("F11",)
    qtbot.keyClick(window, Qt.Key.Key_P, CTRL | Qt.KeyboardModifier.ShiftModifier)
    assert window.command_palette.isVisible()
    window.command_palette.dismiss()


def test_keys_are_removed_and_reset(qtbot: QtBot, window: MainWindow, page: KeysPage) -> None:
    select_command(page, "view.fullScreen")
    qtbot.mouseClick(page._remove_button, Qt.MouseButton.LeftButton)
    assert window.keymap.keys_for("view.fullScreen") == ()
    assert not page._remove_button.isEnabled()
    qtbot.mouseClick(page._reset_button, Qt.MouseButton.LeftButton)
    assert window.keymap.keys_for("view.fullScreen") == ("F11",)


def test_the_search_finds_by_title_and_by_keys(qtbot: QtBot, page: KeysPage) -> None:
    def row_titles() -> list[str]:
        rows = range(page.table.topLevelItemCount())
        return [item.text(0) for row in rows if (item := page.table.topLevelItem(row)) is not None]

    qtbot.keyClicks(page._filter, "zen")
    assert row_titles() == ["View: Exit Zen Mode", "View: Toggle Zen Mode"]
    page._filter.setText("ctrl+k ctrl+t")
    assert row_titles() == ["Preferences: Colour Theme"]


def test_closing_the_page_resumes_the_shortcuts(qtbot: QtBot, window: MainWindow, page: KeysPage) -> None:
    select_command(page, "view.fullScreen")
    page.record()
    window.editor.close_page("keys:")
    QApplication.processEvents()
    qtbot.keyClick(window, Qt.Key.Key_P, CTRL | Qt.KeyboardModifier.ShiftModifier)
    assert window.command_palette.isVisible()
    window.command_palette.dismiss()
