from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from rankdeck_app.commands.table import Command
from rankdeck_app.language import pseudolocalize
from rankdeck_app.shell.floating_list import QuickPickItem
from rankdeck_app.shell.palette import CommandPalette
from rankdeck_app.shell.window import MainWindow
from tests.app.shell.pages import NotePage

CTRL = Qt.KeyboardModifier.ControlModifier
SHIFT = Qt.KeyboardModifier.ShiftModifier


def labels(box: CommandPalette) -> list[str]:
    """What is listed now."""
    return [row.item.label for row in box.model.rows]


def test_the_palette_runs_the_typed_command(qtbot: QtBot, window: MainWindow) -> None:
    ran: list[str] = []
    window.commands.register(
        Command("run.stop", "Run: Stop", lambda: ran.append("stop"), keys=("Shift+F5",)),
        Command("run.never", "Run: Stop Never", lambda: ran.append("never"), when="no"),
    )
    qtbot.keyClick(window, Qt.Key.Key_P, CTRL | SHIFT)
    box = window.command_palette
    assert box.isVisible() and QApplication.focusWidget() is box.input
    assert "Run: Stop Never" not in labels(box)
    qtbot.keyClicks(box.input, "run st")
    assert labels(box)[0] == "Run: Stop"
    qtbot.keyClick(box.input, Qt.Key.Key_Return)
    assert ran == ["stop"] and not box.isVisible()


def test_recently_used_commands_come_first(window: MainWindow) -> None:
    window.commands.run("view.toggleStatusBar")
    window.commands.run("view.toggleStatusBar")
    window.command_palette.show_commands()
    assert labels(window.command_palette)[0] == "View: Toggle Status Bar"


@pytest.mark.usefixtures("made_up")
def test_a_command_is_found_by_translated_and_english_title(window: MainWindow) -> None:
    box, title = window.command_palette, pseudolocalize("View: Toggle Status Bar")
    for typed in (title, "toggle status"):
        box.show_commands()
        box.input.setText(f">{typed}")
        assert labels(box)[0] == title
        assert bool(box.model.rows[0].highlights) is (typed == title), "no letter of it is seen"


def test_escape_restores_the_focus(qtbot: QtBot, window: MainWindow) -> None:
    page = window.editor.open("note:a", NotePage)
    assert isinstance(page, NotePage) and QApplication.focusWidget() is page.text_field
    window.command_palette.show_commands()
    qtbot.keyClick(window.command_palette.input, Qt.Key.Key_Escape)
    assert not window.command_palette.isVisible()
    assert QApplication.focusWidget() is page.text_field


def test_a_click_elsewhere_closes_it(qtbot: QtBot, window: MainWindow) -> None:
    page = window.editor.open("note:a", NotePage)
    window.command_palette.show_commands()
    assert isinstance(page, NotePage)
    page.text_field.setFocus()
    assert not window.command_palette.isVisible()


def test_quick_open_is_enabled_by_its_first_provider(qtbot: QtBot, window: MainWindow) -> None:
    assert not window.commands.is_enabled("palette.quickOpen")
    opened: list[str] = []
    requests: list[str] = []

    def runs() -> list[QuickPickItem]:
        requests.append("runs")
        return [
            QuickPickItem(name, "a run", lambda name=name: opened.append(name))
            for name in ("gpt-dp", "digits")
        ]

    window.command_palette.add_provider(runs)
    window.command_palette.add_provider(lambda: [QuickPickItem("rank 3")])
    qtbot.keyClick(window, Qt.Key.Key_P, CTRL)
    box = window.command_palette
    assert labels(box) == ["gpt-dp", "digits", "rank 3"]
    qtbot.keyClicks(box.input, "dig")
    assert labels(box) == ["digits"]
    qtbot.keyClick(box.input, Qt.Key.Key_Return)
    assert opened == ["digits"] and requests == ["runs"]
    box.show_quick_open("ran")
    assert labels(box) == ["rank 3"]
    box.input.setText(">Zen")
    assert labels(box)[0] == "View: Toggle Zen Mode"


def test_no_match_is_shown_and_enter_does_nothing(qtbot: QtBot, window: MainWindow) -> None:
    window.command_palette.show_commands()
    window.command_palette.input.setText(">qqqq")
    assert labels(window.command_palette) == ["No matching results"]
    qtbot.keyClick(window.command_palette.input, Qt.Key.Key_Return)
    assert window.command_palette.isVisible()
    window.command_palette.dismiss()


def test_arrow_keys_wrap_around(qtbot: QtBot, window: MainWindow) -> None:
    picked: list[str] = []
    items = [QuickPickItem(name, callback=lambda name=name: picked.append(name)) for name in "abc"]
    window.command_palette.pick(items, "Choose")
    qtbot.keyClick(window.command_palette.input, Qt.Key.Key_Up)
    qtbot.keyClick(window.command_palette.input, Qt.Key.Key_Return)
    window.command_palette.pick(items, "Choose")
    qtbot.keyClick(window.command_palette.input, Qt.Key.Key_Down)
    qtbot.keyClick(window.command_palette.input, Qt.Key.Key_Return)
    assert picked == ["c", "b"]


def test_home_and_end_move_in_the_list_or_in_the_text(qtbot: QtBot, window: MainWindow) -> None:
    box = window.command_palette
    box.pick([QuickPickItem(name, callback=lambda: None) for name in "abc"], "Choose")
    for key, row in ((Qt.Key.Key_End, 2), (Qt.Key.Key_Home, 0)):
        qtbot.keyClick(box.input, key)
        assert box.list.currentIndex().row() == row
    box.prompt("Name of the run", lambda _name: None, "gpt")
    qtbot.keyClick(box.input, Qt.Key.Key_Home)
    assert box.input.cursorPosition() == 0
    box.dismiss()


def test_ask_returns_the_typed_text(qtbot: QtBot, window: MainWindow) -> None:
    answers: list[str] = []
    window.command_palette.prompt("Name of the run", answers.append, "gpt")
    qtbot.keyClicks(window.command_palette.input, "gpt-2")
    qtbot.keyClick(window.command_palette.input, Qt.Key.Key_Return)
    assert answers == ["gpt-2"]


def test_the_box_stays_in_the_window_and_shows_keys(window: MainWindow) -> None:
    window.resize(820, 520)
    window.command_palette.show_commands()
    assert window.rect().contains(window.command_palette.geometry())
    model = window.command_palette.list.model()
    spoken = [model.data(model.index(row, 0), Qt.ItemDataRole.AccessibleTextRole) for row in range(3)]
    assert all("Ctrl" in text or text for text in spoken)
    window.command_palette.dismiss()


def test_matched_letters_are_highlighted_in_the_selected_row(qtbot: QtBot, window: MainWindow) -> None:
    box = window.command_palette
    box.pick([QuickPickItem("Split Right"), QuickPickItem("Split Down")], "Which?")

    def num_lit(row: int) -> int:
        image = box.list.viewport().grab(box.list.visualRect(box.model.index(row))).toImage()
        colors = (image.pixelColor(x, y) for x in range(image.width()) for y in range(image.height()))
        return sum(color.blue() - color.red() > 120 for color in colors)

    assert num_lit(0) == num_lit(1) == 0
    qtbot.keyClicks(box.input, "spl")
    assert box.list.currentIndex().row() == 0
    assert num_lit(0) > 10 and num_lit(1) > 10
    box.dismiss()


def test_theme_previews_are_undone_by_escape(qtbot: QtBot, window: MainWindow) -> None:
    box = window.command_palette
    window.commands.run("theme.choose")
    current = box.model.rows[box.list.currentIndex().row()].item
    assert (current.label, current.right_text) == ("Dark Modern", "current")
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
