"""Ctrl+Tab goes to the tab of before; held, it walks through those that were looked at, the last first."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from rankdeck_app.shell.window import MainWindow
from tests.app.shell.pages import NotePage

CTRL, SHIFT = Qt.KeyboardModifier.ControlModifier, Qt.KeyboardModifier.ShiftModifier
NONE = Qt.KeyboardModifier.NoModifier


def listed_titles(window: MainWindow) -> list[str]:
    return [row.item.label for row in window.tab_switcher.model.rows]


def release_ctrl(window: MainWindow) -> None:
    release = QKeyEvent(QKeyEvent.Type.KeyRelease, Qt.Key.Key_Control, NONE)
    QApplication.sendEvent(QApplication.focusWidget() or window, release)


def active_page_id(window: MainWindow) -> str:
    return str(window.context.get("activePageId"))


@pytest.fixture
def pages(window: MainWindow) -> MainWindow:
    for name in "abc":
        window.editor.open(f"note:{name}", NotePage)
    return window


def test_ctrl_tab_switches_between_two_tabs(qtbot: QtBot, pages: MainWindow) -> None:
    for expected in ("note:b", "note:c", "note:b"):
        qtbot.keyClick(pages, Qt.Key.Key_Tab, CTRL)
        assert pages.tab_switcher.isVisible()
        release_ctrl(pages)
        assert not pages.tab_switcher.isVisible() and active_page_id(pages) == expected
        page = pages.editor.active_page()
        assert page is not None and page.isAncestorOf(QApplication.focusWidget())


def test_holding_ctrl_steps_through_the_tabs(qtbot: QtBot, pages: MainWindow) -> None:
    pages.editor.open("note:a", NotePage)
    qtbot.keyClick(pages, Qt.Key.Key_Tab, CTRL)
    assert listed_titles(pages) == ["A", "C", "B"]
    box = pages.tab_switcher
    qtbot.keyPress(box, Qt.Key.Key_Tab, CTRL)
    assert box.list.currentIndex().data() == "B" and active_page_id(pages) == "note:a"
    qtbot.keyPress(box, Qt.Key.Key_Backtab, CTRL | SHIFT)
    assert box.list.currentIndex().data() == "C"
    for _ in range(2):
        qtbot.keyPress(box, Qt.Key.Key_Tab, CTRL)
    assert box.list.currentIndex().data() == "A"
    qtbot.keyPress(box, Qt.Key.Key_Down, CTRL)
    release_ctrl(pages)
    assert active_page_id(pages) == "note:c"


def test_ctrl_shift_tab_starts_with_the_oldest(qtbot: QtBot, pages: MainWindow) -> None:
    qtbot.keyClick(pages, Qt.Key.Key_Tab, CTRL | SHIFT)
    assert pages.tab_switcher.list.currentIndex().data() == "A"
    qtbot.keyClick(pages.tab_switcher, Qt.Key.Key_Escape)
    assert active_page_id(pages) == "note:c" and not pages.tab_switcher.isVisible()


def test_without_ctrl_the_switcher_waits_for_enter(qtbot: QtBot, pages: MainWindow) -> None:
    pages.commands.run("editor.openRecent")
    assert pages.tab_switcher.isVisible()
    qtbot.keyClick(pages.tab_switcher, Qt.Key.Key_Return)
    assert active_page_id(pages) == "note:b"


def test_a_click_elsewhere_closes_the_switcher(qtbot: QtBot, pages: MainWindow) -> None:
    pages.commands.run("editor.openRecent")
    pages.title_bar.command_center.setFocus()
    assert not pages.tab_switcher.isVisible() and active_page_id(pages) == "note:c"
    pages.editor.close_page("note:a")
    pages.editor.close_page("note:b")
    assert not pages.commands.run("editor.openRecent")


def test_unvisited_tabs_are_listed_last(qtbot: QtBot, pages: MainWindow) -> None:
    pages.editor.close_page("note:b")
    group = pages.editor.active_group
    unseen = type(group.tabs[0])("note:later", NotePage, title="later")
    group.insert(unseen, 0, show=False)
    qtbot.keyClick(pages, Qt.Key.Key_Tab, CTRL)
    assert listed_titles(pages) == ["C", "A", "later"] and unseen.page is None
    qtbot.keyPress(pages.tab_switcher, Qt.Key.Key_Tab, CTRL)
    release_ctrl(pages)
    assert active_page_id(pages) == "note:later"
