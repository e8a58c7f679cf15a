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
    find_bar = FindBar(Theme(), EditorSearch(editor))
    column = QVBoxLayout(page)
    column.addWidget(find_bar)
    column.addWidget(editor)
    with qtbot.waitActive(page):
        page.show()
    yield find_bar
    page.close()


def selected_text(bar: FindBar) -> tuple[int, str]:
    cursor = bar.search._editor.textCursor()  # type: ignore[attr-defined]
    return cursor.blockNumber() + 1, cursor.selectedText()


def test_matches_are_counted_and_wrap_around(qtbot: QtBot, bar: FindBar) -> None:
    bar.open()
    qtbot.keyClicks(bar.input, "steps")
    assert bar.count_label.text() == "1 of 3" and selected_text(bar) == (2, "steps")
    qtbot.keyClick(bar.input, Qt.Key.Key_Return)
    assert bar.count_label.text() == "2 of 3" and selected_text(bar) == (3, "Steps")
    qtbot.keyClick(bar.input, Qt.Key.Key_Return)
    qtbot.keyClick(bar.input, Qt.Key.Key_Return)
    assert bar.count_label.text() == "1 of 3"
    qtbot.keyClick(bar.input, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    assert bar.count_label.text() == "3 of 3" and selected_text(bar)[0] == 4


@pytest.mark.parametrize(
    ("text", "case", "regex", "label"),
    [
        ("steps", True, False, "1 of 2"),
        ("ste.s", False, False, "No results"),
        ("^ste.s", False, True, "1 of 2"),
        ("(", False, True, "Invalid pattern"),
        ("(", False, False, "No results"),
        ("x*", False, True, "No results"),
        ("(s|s)*([a-z]+)+$", False, True, None),
        ("", False, False, ""),
    ],
)
def test_search_options_are_applied(
    qtbot: QtBot, bar: FindBar, text: str, case: bool, regex: bool, label: str | None
) -> None:
    bar.open()
    bar.case_button.setChecked(case)
    bar.regex_button.setChecked(regex)
    bar.input.setText(text)
    assert label is None or bar.count_label.text() == label
    assert (bar.input.property("invalid") == "true") == (label == "Invalid pattern")


def test_escape_closes_the_bar_and_clears_the_marks(qtbot: QtBot, bar: FindBar) -> None:
    editor = bar.search._editor  # type: ignore[attr-defined]
    bar.open()
    qtbot.keyClicks(bar.input, "steps")
    assert len(editor.extraSelections()) == 4
    qtbot.keyClick(bar.input, Qt.Key.Key_Escape)
    assert bar.isHidden() and editor.hasFocus()
    assert len(editor.extraSelections()) == 1 and editor.toPlainText() == TEXT


def test_a_theme_change_keeps_the_current_match(qtbot: QtBot, bar: FindBar) -> None:
    bar.open()
    qtbot.keyClicks(bar.input, "steps")
    bar.next_button.click()
    bar.search._editor._highlighter.rehighlight()  # type: ignore[attr-defined]
    assert bar.count_label.text() == "2 of 3"


def test_text_typed_during_a_search_is_found(qtbot: QtBot, bar: FindBar) -> None:
    bar.open()
    qtbot.keyClicks(bar.input, "seed")
    assert bar.count_label.text() == "No results" and not bar.next_button.isEnabled()
    bar.search._editor.appendPlainText("seed = 1")  # type: ignore[attr-defined]
    assert bar.count_label.text() == "? of 1" and bar.next_button.isEnabled()


def test_ctrl_f_in_the_output_also_finds_later_lines(qtbot: QtBot, app: App) -> None:
    view = app.window.show_panel("output")
    assert isinstance(view, OutputView)
    view.model.append(OutputLine(None, 0, f"step {index}") for index in range(300))
    view.list.setFocus()
    qtbot.keyClick(app.window, Qt.Key.Key_F, Qt.KeyboardModifier.ControlModifier)
    bar = view.find_bar
    assert bar.isVisible() and bar.input.hasFocus()
    qtbot.keyClicks(bar.input, "step 19")
    assert bar.count_label.text() == "1 of 11"  # 19 and 190 to 199
    assert view.list.currentIndex().row() == 19 and not view.follows_end
    view.model.append([OutputLine(None, 0, "step 19 again")])
    assert bar.count_label.text() == "1 of 12"
    qtbot.keyClick(app.window, Qt.Key.Key_F3, Qt.KeyboardModifier.ShiftModifier)
    assert view.list.currentIndex().row() == 300
    view.model.set_filter(None, "again")
    assert bar.count_label.text() == "? of 1"
    qtbot.keyClick(bar.input, Qt.Key.Key_Escape)
    assert bar.isHidden() and view.list.hasFocus()


def test_find_is_enabled_where_there_is_searchable_text(qtbot: QtBot, app: App) -> None:
    app.window.show_panel("problems")
    assert not app.window.commands.is_enabled("edit.find")
    app.actions.show_config()
    assert app.window.commands.is_enabled("edit.find")
    assert app.window.commands.run("edit.find")
    page = app.window.editor.active_page()
    assert page is not None and page.find_bar.isVisible()  # type: ignore[attr-defined]
