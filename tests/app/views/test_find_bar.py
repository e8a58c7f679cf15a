"""Ctrl+F looks through code and output: how often, where, by case and pattern, and leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from rankdeck_app.composition import App
from rankdeck_app.state.output import OutputLine
from rankdeck_app.theme import Theme
from rankdeck_app.views.output import OutputView
from rankdeck_app.widgets.find_bar import EditorSearch, FindBar
from rankdeck_app.widgets.toml_editor import TomlEditor

TEXT = '[train]\nsteps = 5\nname = "🚀 Steps"\nsteps_more = 7\n'


@pytest.fixture
def bar(qtbot: QtBot) -> Iterator[FindBar]:
    page = QWidget()
    qtbot.addWidget(page)
    editor = TomlEditor(Theme())
    editor.setPlainText(TEXT)
    editor.moveCursor(editor.textCursor().MoveOperation.Start)
    found = FindBar(Theme(), EditorSearch(editor))
    column = QVBoxLayout(page)
    column.addWidget(found)
    column.addWidget(editor)
    with qtbot.waitActive(page):
        page.show()
    yield found
    page.close()


def chosen(bar: FindBar) -> tuple[int, str]:
    cursor = bar.search._editor.textCursor()  # type: ignore[attr-defined]
    return cursor.blockNumber() + 1, cursor.selectedText()


def test_matches_are_counted_and_walked_around_the_end(qtbot: QtBot, bar: FindBar) -> None:
    bar.open()
    qtbot.keyClicks(bar.input, "steps")
    assert bar.count.text() == "1 of 3" and chosen(bar) == (2, "steps")
    qtbot.keyClick(bar.input, Qt.Key.Key_Return)
    assert bar.count.text() == "2 of 3" and chosen(bar) == (3, "Steps")
    qtbot.keyClick(bar.input, Qt.Key.Key_Return)
    qtbot.keyClick(bar.input, Qt.Key.Key_Return)
    assert bar.count.text() == "1 of 3"
    qtbot.keyClick(bar.input, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    assert bar.count.text() == "3 of 3" and chosen(bar)[0] == 4


@pytest.mark.parametrize(
    ("text", "case", "regex", "words"),
    [
        ("steps", True, False, "1 of 2"),
        ("ste.s", False, False, "No results"),
        ("^ste.s", False, True, "1 of 2"),
        ("(", False, True, "No pattern"),
        ("(", False, False, "No results"),
        ("x*", False, True, "No results"),
        ("(s|s)*([a-z]+)+$", False, True, None),
        ("", False, False, ""),
    ],
)
def test_case_and_patterns(
    qtbot: QtBot, bar: FindBar, text: str, case: bool, regex: bool, words: str | None
) -> None:
    bar.open()
    bar.case.setChecked(case)
    bar.regex.setChecked(regex)
    bar.input.setText(text)
    assert words is None or bar.count.text() == words
    assert (bar.input.property("invalid") == "true") == (words == "No pattern")


def test_escape_closes_and_the_text_is_as_before(qtbot: QtBot, bar: FindBar) -> None:
    editor = bar.search._editor  # type: ignore[attr-defined]
    bar.open()
    qtbot.keyClicks(bar.input, "steps")
    assert len(editor.extraSelections()) == 4
    qtbot.keyClick(bar.input, Qt.Key.Key_Escape)
    assert bar.isHidden() and editor.hasFocus()
    assert len(editor.extraSelections()) == 1 and editor.toPlainText() == TEXT


def test_new_colours_do_not_lose_the_place(qtbot: QtBot, bar: FindBar) -> None:
    bar.open()
    qtbot.keyClicks(bar.input, "steps")
    bar.next.click()
    bar.search._editor._colors.rehighlight()  # type: ignore[attr-defined]
    assert bar.count.text() == "2 of 3"


def test_what_is_typed_meanwhile_is_found_too(qtbot: QtBot, bar: FindBar) -> None:
    bar.open()
    qtbot.keyClicks(bar.input, "seed")
    assert bar.count.text() == "No results" and not bar.next.isEnabled()
    bar.search._editor.appendPlainText("seed = 1")  # type: ignore[attr-defined]
    assert bar.count.text() == "? of 1" and bar.next.isEnabled()


def test_ctrl_f_in_the_output_finds_lines_also_those_that_come_later(qtbot: QtBot, app: App) -> None:
    view = app.window.show_panel("output")
    assert isinstance(view, OutputView)
    view.model.append(OutputLine(None, 0, f"step {index}") for index in range(300))
    view.list.setFocus()
    qtbot.keyClick(app.window, Qt.Key.Key_F, Qt.KeyboardModifier.ControlModifier)
    bar = view.find_bar
    assert bar.isVisible() and bar.input.hasFocus()
    qtbot.keyClicks(bar.input, "step 19")
    assert bar.count.text() == "1 of 11"  # 19 and 190 to 199
    assert view.list.currentIndex().row() == 19 and not view.follows
    view.model.append([OutputLine(None, 0, "step 19 again")])
    assert bar.count.text() == "1 of 12"
    qtbot.keyClick(app.window, Qt.Key.Key_F3, Qt.KeyboardModifier.ShiftModifier)
    assert view.list.currentIndex().row() == 300
    view.model.set_filter(None, "again")
    assert bar.count.text() == "? of 1"
    qtbot.keyClick(bar.input, Qt.Key.Key_Escape)
    assert bar.isHidden() and view.list.hasFocus()


def test_ctrl_f_is_offered_where_there_is_something_to_look_through(qtbot: QtBot, app: App) -> None:
    app.window.show_panel("problems")
    assert not app.window.commands.enabled("edit.find")
    app.actions.show_config()
    assert app.window.commands.enabled("edit.find")
    assert app.window.commands.run("edit.find")
    page = app.window.editor.active_page()
    assert page is not None and page.find_bar.isVisible()  # type: ignore[attr-defined]
