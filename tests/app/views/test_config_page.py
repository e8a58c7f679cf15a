"""The configuration's tab: form and TOML follow each other, and the line of each error is marked."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QHelpEvent
from PySide6.QtWidgets import QApplication, QToolTip
from pytestqt.qtbot import QtBot

from rankdeck_app.composition import App
from rankdeck_app.views.config_page import ConfigPage

TEXT = '# mine\n[train]\nsteps = 5\n\n[strategy]\nuse = "dp"\n\n[devices]\nuse = "cpu:2"\n'


@pytest.fixture
def page(app: App, tmp_path: Path) -> ConfigPage:
    app.session.draft.replace(TEXT, folder=tmp_path, stem="mine", origin="mine.toml")
    app.actions.show_config()
    page = app.window.editor.active_page()
    assert isinstance(page, ConfigPage)
    return page


def type_at_end_of(page: ConfigPage, line: int, text: str, qtbot: QtBot) -> None:
    page.go_to_line(line)
    qtbot.keyClick(page.editor, Qt.Key.Key_End)
    qtbot.keyClicks(page.editor, text)


def test_typing_in_the_toml_changes_the_form(qtbot: QtBot, app: App, page: ConfigPage) -> None:
    type_at_end_of(page, 3, "0", qtbot)
    assert app.session.draft.value(("train", "steps")) == 50
    steps = page.forms["Training"].fields[("train", "steps")].editor
    assert steps.text() == "50"  # type: ignore[attr-defined]


def test_the_form_changes_the_toml_and_keeps_its_comments(qtbot: QtBot, app: App, page: ConfigPage) -> None:
    box = page.forms["Strategy"].fields[("strategy", "parallel_loss")].editor
    qtbot.mouseClick(box, Qt.MouseButton.LeftButton)
    assert page.editor.toPlainText() == TEXT.replace('use = "dp"\n', 'use = "dp"\nparallel_loss = true\n')


def test_undo_in_the_editor_takes_back_what_the_form_did(qtbot: QtBot, app: App, page: ConfigPage) -> None:
    app.session.draft.set_value(("train", "steps"), 7)
    page.editor.undo()
    assert page.editor.toPlainText() == TEXT and app.session.draft.value(("train", "steps")) == 5


def test_each_problem_marks_its_line_and_a_click_goes_there(qtbot: QtBot, app: App, page: ConfigPage) -> None:
    app.session.draft.set_text(TEXT.replace("steps = 5", 'steps = "x"').replace('use = "dp"', 'use = "ddpp"'))
    assert set(page.editor.marks) == {3, 6}
    assert "whole number" in page.editor.marks[3] and "Did you mean" in page.editor.marks[6]
    assert page.problem_list.count() == 2 and page.problem_list.isVisible()
    page.problem_list.itemClicked.emit(page.problem_list.item(1))
    assert page.editor.textCursor().blockNumber() + 1 == 6


def test_text_that_is_no_toml_locks_the_form_and_marks_the_line(
    qtbot: QtBot, app: App, page: ConfigPage
) -> None:
    type_at_end_of(page, 2, "[", qtbot)
    assert set(page.editor.marks) == {2} and not page.forms["Training"].isEnabled()
    qtbot.keyClick(page.editor, Qt.Key.Key_Backspace)
    assert not page.editor.marks and page.forms["Training"].isEnabled()


def test_saving_writes_the_text_and_the_title_tells_of_changes(
    app: App, page: ConfigPage, tmp_path: Path
) -> None:
    target = tmp_path / "mine.toml"
    app.actions.save_config(target)
    assert target.read_text() == TEXT and page.title == "mine.toml"
    app.session.draft.set_value(("train", "steps"), 9)
    assert page.title == "mine.toml ●"
    app.window.commands.run("config.save")
    assert "steps = 9" in target.read_text()
    page.refresh()
    assert page.title == "mine.toml"


def test_opening_a_file_replaces_the_draft(app: App, page: ConfigPage, tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text('name = "Other"\n')
    app.actions.open_config(tmp_path / "other.toml")
    assert page.editor.toPlainText() == 'name = "Other"\n' and app.session.draft.name == "Other"
    app.actions.open_config(tmp_path / "missing.toml")
    assert app.session.draft.name == "Other" and "cannot be read" in app.window.toasts.history[-1].text


def test_what_fits_is_listed_while_one_types_and_taken_with_enter(
    qtbot: QtBot, app: App, page: ConfigPage
) -> None:
    box = page.editor.box
    type_at_end_of(page, 3, "", qtbot)
    qtbot.keyClick(page.editor, Qt.Key.Key_Return)
    assert not box.isVisible(), "nothing is typed yet"
    qtbot.keyClicks(page.editor, "glob")
    assert box.isVisible() and box.texts == ["global_batch"] and "Samples" in box.help.text()
    qtbot.keyClick(page.editor, Qt.Key.Key_Return)
    assert not box.isVisible()
    qtbot.keyClicks(page.editor, " = 64")
    assert app.session.draft.value(("train", "global_batch")) == 64
    assert page.editor.hasFocus()


def test_ctrl_space_lists_all_and_escape_closes(qtbot: QtBot, app: App, page: ConfigPage) -> None:
    box = page.editor.box
    type_at_end_of(page, 6, "", qtbot)
    qtbot.keyClick(page.editor, Qt.Key.Key_Left)
    for _ in range(2):
        qtbot.keyClick(page.editor, Qt.Key.Key_Backspace)
    qtbot.keyClick(app.window, Qt.Key.Key_Space, Qt.KeyboardModifier.ControlModifier)
    assert box.isVisible() and {'"ddp"', '"fsdp"', '"single"'} <= set(box.texts)
    qtbot.keyClick(page.editor, Qt.Key.Key_Escape)
    assert not box.isVisible()
    qtbot.keyClicks(page.editor, "dd")
    assert box.texts[0] == '"ddp"'
    qtbot.keyClick(page.editor, Qt.Key.Key_Tab)
    assert page.editor.textCursor().block().text() == 'use = "ddp"'
    assert app.session.draft.value(("strategy", "use")) == "ddp"
    page.go_to_line(1)
    assert not box.isVisible()


def test_the_mouse_over_a_key_tells_what_it_takes(qtbot: QtBot, app: App, page: ConfigPage) -> None:
    cursor = page.editor.textCursor()
    cursor.setPosition(TEXT.index("steps") + 2)
    at = page.editor.cursorRect(cursor).center()
    event = QHelpEvent(QEvent.Type.ToolTip, at, page.editor.viewport().mapToGlobal(at))
    QApplication.sendEvent(page.editor.viewport(), event)
    assert QToolTip.text().startswith("train.steps: whole number, 1 or more")
    QToolTip.hideText()
