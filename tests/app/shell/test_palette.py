from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from rankdeck_app.commands.table import Command
from rankdeck_app.shell.palette import Palette, QuickItem
from rankdeck_app.shell.window import MainWindow
from tests.app.shell.pages import NotePage

CTRL = Qt.KeyboardModifier.ControlModifier
SHIFT = Qt.KeyboardModifier.ShiftModifier


def labels(box: Palette) -> list[str]:
    """What is listed now."""
    return [row.item.label for row in box.model.rows]


def test_ctrl_shift_p_runs_the_command_that_is_typed(qtbot: QtBot, window: MainWindow) -> None:
    ran: list[str] = []
    window.commands.register(
        Command("run.stop", "Run: Stop", lambda: ran.append("stop"), keys=("Shift+F5",)),
        Command("run.never", "Run: Stop Never", lambda: ran.append("never"), when="no"),
    )
    qtbot.keyClick(window, Qt.Key.Key_P, CTRL | SHIFT)
    box = window.palette_box
    assert box.isVisible() and QApplication.focusWidget() is box.input
    assert "Run: Stop Never" not in labels(box)
    qtbot.keyClicks(box.input, "run st")
    assert labels(box)[0] == "Run: Stop"
    qtbot.keyClick(box.input, Qt.Key.Key_Return)
    assert ran == ["stop"] and not box.isVisible()


def test_what_was_used_last_comes_first(window: MainWindow) -> None:
    window.commands.run("view.toggleStatusBar")
    window.commands.run("view.toggleStatusBar")
    window.palette_box.show_commands()
    assert labels(window.palette_box)[0] == "View: Toggle Status Bar"


def test_escape_gives_the_keyboard_back(qtbot: QtBot, window: MainWindow) -> None:
    page = window.editor.open("note:a", NotePage)
    assert isinstance(page, NotePage) and QApplication.focusWidget() is page.field
    window.palette_box.show_commands()
    qtbot.keyClick(window.palette_box.input, Qt.Key.Key_Escape)
    assert not window.palette_box.isVisible()
    assert QApplication.focusWidget() is page.field


def test_a_click_elsewhere_closes_it(qtbot: QtBot, window: MainWindow) -> None:
    page = window.editor.open("note:a", NotePage)
    window.palette_box.show_commands()
    assert isinstance(page, NotePage)
    page.field.setFocus()
    assert not window.palette_box.isVisible()


def test_quick_open_asks_its_providers_and_appears_with_the_first(qtbot: QtBot, window: MainWindow) -> None:
    assert not window.commands.enabled("palette.quickOpen")
    opened: list[str] = []
    asked: list[str] = []

    def runs() -> list[QuickItem]:
        asked.append("runs")
        return [
            QuickItem(name, "a run", lambda name=name: opened.append(name)) for name in ("gpt-dp", "digits")
        ]

    window.palette_box.add_provider(runs)
    window.palette_box.add_provider(lambda: [QuickItem("rank 3")])
    qtbot.keyClick(window, Qt.Key.Key_P, CTRL)
    box = window.palette_box
    assert labels(box) == ["gpt-dp", "digits", "rank 3"]
    qtbot.keyClicks(box.input, "dig")
    assert labels(box) == ["digits"]
    qtbot.keyClick(box.input, Qt.Key.Key_Return)
    assert opened == ["digits"] and asked == ["runs"]
    box.show_quick_open("ran")
    assert labels(box) == ["rank 3"]
    box.input.setText(">Zen")
    assert labels(box)[0] == "View: Toggle Zen Mode"


def test_nothing_that_matches_is_said_and_enter_does_nothing(qtbot: QtBot, window: MainWindow) -> None:
    window.palette_box.show_commands()
    window.palette_box.input.setText(">qqqq")
    assert labels(window.palette_box) == ["Nothing matches"]
    qtbot.keyClick(window.palette_box.input, Qt.Key.Key_Return)
    assert window.palette_box.isVisible()
    window.palette_box.dismiss()


def test_arrows_walk_round_the_list(qtbot: QtBot, window: MainWindow) -> None:
    picked: list[str] = []
    items = [QuickItem(name, callback=lambda name=name: picked.append(name)) for name in "abc"]
    window.palette_box.pick(items, "Choose")
    qtbot.keyClick(window.palette_box.input, Qt.Key.Key_Up)
    qtbot.keyClick(window.palette_box.input, Qt.Key.Key_Return)
    window.palette_box.pick(items, "Choose")
    qtbot.keyClick(window.palette_box.input, Qt.Key.Key_Down)
    qtbot.keyClick(window.palette_box.input, Qt.Key.Key_Return)
    assert picked == ["c", "b"]


def test_a_question_gets_the_line_that_was_typed(qtbot: QtBot, window: MainWindow) -> None:
    answers: list[str] = []
    window.palette_box.ask("Name of the run", answers.append, "gpt")
    qtbot.keyClicks(window.palette_box.input, "gpt-2")
    qtbot.keyClick(window.palette_box.input, Qt.Key.Key_Return)
    assert answers == ["gpt-2"]


def test_the_box_stays_in_the_window_and_shows_keys(window: MainWindow) -> None:
    window.resize(820, 520)
    window.palette_box.show_commands()
    assert window.rect().contains(window.palette_box.geometry())
    model = window.palette_box.list.model()
    spoken = [model.data(model.index(row, 0), Qt.ItemDataRole.AccessibleTextRole) for row in range(3)]
    assert all("Ctrl" in text or text for text in spoken)
    window.palette_box.dismiss()
