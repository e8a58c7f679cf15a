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


def listed(window: MainWindow) -> list[str]:
    return [row.item.label for row in window.switcher.model.rows]


def let_go(window: MainWindow) -> None:
    release = QKeyEvent(QKeyEvent.Type.KeyRelease, Qt.Key.Key_Control, NONE)
    QApplication.sendEvent(QApplication.focusWidget() or window, release)


def in_front(window: MainWindow) -> str:
    return str(window.context.get("activePageId"))


@pytest.fixture
def pages(window: MainWindow) -> MainWindow:
    for name in "abc":
        window.editor.open(f"note:{name}", NotePage)
    return window


def test_ctrl_tab_and_back_goes_between_two(qtbot: QtBot, pages: MainWindow) -> None:
    for wanted in ("note:b", "note:c", "note:b"):
        qtbot.keyClick(pages, Qt.Key.Key_Tab, CTRL)
        assert pages.switcher.isVisible()
        let_go(pages)
        assert not pages.switcher.isVisible() and in_front(pages) == wanted
        page = pages.editor.active_page()
        assert page is not None and page.isAncestorOf(QApplication.focusWidget())


def test_held_it_walks_and_shift_walks_back(qtbot: QtBot, pages: MainWindow) -> None:
    pages.editor.open("note:a", NotePage)
    qtbot.keyClick(pages, Qt.Key.Key_Tab, CTRL)
    assert listed(pages) == ["A", "C", "B"]
    box = pages.switcher
    qtbot.keyPress(box, Qt.Key.Key_Tab, CTRL)
    assert box.list.currentIndex().data() == "B" and in_front(pages) == "note:a"
    qtbot.keyPress(box, Qt.Key.Key_Backtab, CTRL | SHIFT)
    assert box.list.currentIndex().data() == "C"
    for _ in range(2):
        qtbot.keyPress(box, Qt.Key.Key_Tab, CTRL)
    assert box.list.currentIndex().data() == "A"
    qtbot.keyPress(box, Qt.Key.Key_Down, CTRL)
    let_go(pages)
    assert in_front(pages) == "note:c"


def test_ctrl_shift_tab_begins_with_the_oldest(qtbot: QtBot, pages: MainWindow) -> None:
    qtbot.keyClick(pages, Qt.Key.Key_Tab, CTRL | SHIFT)
    assert pages.switcher.list.currentIndex().data() == "A"
    qtbot.keyClick(pages.switcher, Qt.Key.Key_Escape)
    assert in_front(pages) == "note:c" and not pages.switcher.isVisible()


def test_without_a_held_key_it_waits_for_enter(qtbot: QtBot, pages: MainWindow) -> None:
    pages.commands.run("editor.openRecent")
    assert pages.switcher.isVisible()
    qtbot.keyClick(pages.switcher, Qt.Key.Key_Return)
    assert in_front(pages) == "note:b"


def test_a_click_elsewhere_leaves_and_one_tab_has_no_list(qtbot: QtBot, pages: MainWindow) -> None:
    pages.commands.run("editor.openRecent")
    pages.title_bar.center.setFocus()
    assert not pages.switcher.isVisible() and in_front(pages) == "note:c"
    pages.editor.close_page("note:a")
    pages.editor.close_page("note:b")
    assert not pages.commands.run("editor.openRecent")


def test_what_was_closed_is_not_listed_and_the_unseen_come_last(qtbot: QtBot, pages: MainWindow) -> None:
    pages.editor.close_page("note:b")
    group = pages.editor.active_group
    unseen = type(group.tabs[0])("note:later", NotePage, title="later")
    group.insert(unseen, 0, show=False)
    qtbot.keyClick(pages, Qt.Key.Key_Tab, CTRL)
    assert listed(pages) == ["C", "A", "later"] and unseen.page is None
    qtbot.keyPress(pages.switcher, Qt.Key.Key_Tab, CTRL)
    let_go(pages)
    assert in_front(pages) == "note:later"
