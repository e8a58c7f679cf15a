from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from rankdeck_app.commands.table import Command
from rankdeck_app.language import pseudo
from rankdeck_app.shell.floating_list import QuickItem
from rankdeck_app.shell.palette import Palette
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


@pytest.mark.usefixtures("made_up")
def test_a_command_is_found_by_what_is_shown_and_by_its_english_title(window: MainWindow) -> None:
    box, wanted = window.palette_box, pseudo("View: Toggle Status Bar")
    for typed in (wanted, "toggle status"):
        box.show_commands()
        box.input.setText(f">{typed}")
        assert labels(box)[0] == wanted
        assert bool(box.model.rows[0].marks) is (typed == wanted), "no letter of it is seen"


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


def test_home_and_end_go_to_the_ends_of_the_list_and_of_a_question_s_text(
    qtbot: QtBot, window: MainWindow
) -> None:
    box = window.palette_box
    box.pick([QuickItem(name, callback=lambda: None) for name in "abc"], "Choose")
    for key, row in ((Qt.Key.Key_End, 2), (Qt.Key.Key_Home, 0)):
        qtbot.keyClick(box.input, key)
        assert box.list.currentIndex().row() == row
    box.ask("Name of the run", lambda _name: None, "gpt")
    qtbot.keyClick(box.input, Qt.Key.Key_Home)
    assert box.input.cursorPosition() == 0
    box.dismiss()


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


def test_the_letters_that_match_are_lit_in_the_chosen_row_too(qtbot: QtBot, window: MainWindow) -> None:
    box = window.palette_box
    box.pick([QuickItem("Split Right"), QuickItem("Split Down")], "Which?")

    def num_lit(row: int) -> int:
        image = box.list.viewport().grab(box.list.visualRect(box.model.index(row))).toImage()
        colors = (image.pixelColor(x, y) for x in range(image.width()) for y in range(image.height()))
        return sum(color.blue() - color.red() > 120 for color in colors)

    assert num_lit(0) == num_lit(1) == 0
    qtbot.keyClicks(box.input, "spl")
    assert box.list.currentIndex().row() == 0
    assert num_lit(0) > 10 and num_lit(1) > 10
    box.dismiss()


def test_a_theme_is_shown_while_one_looks_for_it_and_escape_brings_back_what_was_set(
    qtbot: QtBot, window: MainWindow
) -> None:
    box = window.palette_box
    window.commands.run("theme.choose")
    current = box.model.rows[box.list.currentIndex().row()].item
    assert (current.label, current.right) == ("Dark Modern", "current")
    qtbot.keyClicks(box.input, "light")
    qtbot.waitUntil(lambda: window.theme.name == "Light Modern", timeout=3000)
    assert window.settings.get("theme.name", str) == "Dark Modern"
    qtbot.keyClick(box.input, Qt.Key.Key_Escape)
    assert window.theme.name == "Dark Modern"
    window.commands.run("theme.choose")
    qtbot.keyClicks(box.input, "light")
    qtbot.keyClick(box.input, Qt.Key.Key_Return)
    assert window.theme.name == window.settings.get("theme.name", str) == "Light Modern"
    window.commands.run("theme.choose")
    assert box.list.currentIndex().data() == "Light Modern"
    qtbot.keyClick(box.input, Qt.Key.Key_Up)
    qtbot.waitUntil(lambda: window.theme.name == "Dark Modern", timeout=3000)
    qtbot.keyClicks(box.input, "vs code")  # a row that shows nothing by itself
    qtbot.waitUntil(lambda: window.theme.name == "Light Modern", timeout=3000)
    box.dismiss()
