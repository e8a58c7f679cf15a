"""The configuration's tab: form and TOML follow each other, and the line of each error is marked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PySide6.QtCore import QEvent, QRect, Qt
from PySide6.QtGui import QHelpEvent, QTextCursor
from PySide6.QtWidgets import QApplication, QLineEdit, QToolTip, QWidget
from pytestqt.qtbot import QtBot

from rankdeck.config import from_text
from rankdeck.config.naming import title_of
from rankdeck_app.composition import App
from rankdeck_app.state.toml_schema import CompletionItem
from rankdeck_app.views.config_page import ConfigPage
from rankdeck_app.views.launch.side_bar import LaunchView
from rankdeck_app.widgets.option_rows import all_rows
from rankdeck_app.widgets.toml_editor import ROW_HEIGHT
from tests.helpers.app_window import process_events
from tests.helpers.written_run import WrittenRun

TEXT = '# mine\n[train]\nsteps = 5\n\n[strategy]\nuse = "dp"\n\n[devices]\nuse = "cpu:2"\n'


@pytest.fixture
def page(qtbot: QtBot, app: App, tmp_path: Path) -> ConfigPage:
    app.session.draft.replace(TEXT, folder=tmp_path, stem="mine", origin="mine.toml")
    app.actions.show_config()
    page = app.window.editor.active_page()
    assert isinstance(page, ConfigPage)
    qtbot.waitUntil(lambda: list(page.forms) == list(all_rows(app.session.draft)))
    return page


def type_at_line_end(page: ConfigPage, line: int, text: str, qtbot: QtBot) -> None:
    page.go_to_line(line)
    qtbot.keyClick(page.editor, Qt.Key.Key_End)
    qtbot.keyClicks(page.editor, text)


def test_line_numbers_do_not_overlap_the_scroll_bar(
    qtbot: QtBot, app: App, page: ConfigPage, tmp_path: Path
) -> None:
    app.session.draft.replace(f"# {'long ' * 200}\n" * 99, folder=tmp_path, stem="mine", origin="")
    editor = page.editor
    qtbot.waitUntil(lambda: editor.horizontalScrollBar().isVisible())
    (numbers,) = (
        child for child in editor.findChildren(QWidget) if type(child).__name__ == "_LineNumberArea"
    )
    assert numbers.geometry().bottom() == editor.viewport().geometry().bottom()


def test_typing_in_the_toml_changes_the_form(qtbot: QtBot, app: App, page: ConfigPage) -> None:
    type_at_line_end(page, 3, "0", qtbot)
    assert app.session.draft.value(("train", "steps")) == 50
    steps = page.forms["Training"].fields[("train", "steps")].editor
    assert steps.text() == "50"  # type: ignore[attr-defined]


def test_the_form_changes_the_toml_and_keeps_its_comments(qtbot: QtBot, app: App, page: ConfigPage) -> None:
    box = page.forms["Strategy"].fields[("strategy", "parallel_loss")].editor
    qtbot.mouseClick(box, Qt.MouseButton.LeftButton)
    assert page.editor.toPlainText() == TEXT.replace('use = "dp"\n', 'use = "dp"\nparallel_loss = true\n')


def test_undo_in_the_editor_reverts_changes_of_the_form(qtbot: QtBot, app: App, page: ConfigPage) -> None:
    app.session.draft.set_value(("train", "steps"), 7)
    page.editor.undo()
    assert page.editor.toPlainText() == TEXT and app.session.draft.value(("train", "steps")) == 5


def test_a_click_on_a_problem_goes_to_its_marked_line(qtbot: QtBot, app: App, page: ConfigPage) -> None:
    app.session.draft.set_text(TEXT.replace("steps = 5", 'steps = "x"').replace('use = "dp"', 'use = "ddpp"'))
    assert set(page.editor.line_problems) == {3, 6}
    assert "whole number" in page.editor.line_problems[3] and "Did you mean" in page.editor.line_problems[6]
    assert page.problem_list.count() == 2 and page.problem_list.isVisible()
    page.problem_list.itemClicked.emit(page.problem_list.item(1))
    assert page.editor.textCursor().blockNumber() + 1 == 6


def test_the_problem_list_is_as_high_as_its_lines(app: App, page: ConfigPage) -> None:
    def height_of(text: str) -> int:
        app.session.draft.set_text(text)
        process_events()
        problem_list = page.problem_list
        last = problem_list.visualItemRect(problem_list.item(problem_list.count() - 1))
        assert problem_list.height() < 110 or problem_list.verticalScrollBar().isVisible()
        assert problem_list.height() == 110 or problem_list.viewport().height() == last.bottom() + 1
        return problem_list.height()

    app.window.resize(1800, 900)
    wrong = TEXT.replace("steps = 5", 'steps = "x"')
    single_height, two = height_of(wrong), height_of(wrong.replace('use = "dp"', 'use = "ddpp"'))
    many = "".join(f"\n[nonsense_{at}]\n" for at in range(20))
    assert single_height < two < height_of(TEXT + many) == 110
    page.problem_list.parentWidget().setFixedWidth(200)
    assert height_of(wrong) > single_height


def test_a_reused_configuration_has_the_title_of_the_next_run(app: App, page: ConfigPage) -> None:
    path = WrittenRun(Path(os.environ["RANKDECK_RUNS"])).path
    app.alerts.use_strategy(path, "ddp")
    app.session.io_thread.wait_for_done()
    draft = app.session.draft
    draft.set_value(("devices", "use"), "cpu:4")
    assert draft.config is not None
    title = title_of(from_text(draft.config.to_toml(), folder=draft.folder))
    assert title == "MLP · DDP · 4" and (draft.title, draft.origin) == (title, "run gpt-dp")
    name = page.forms["Run"].fields[("name",)].editor
    assert isinstance(name, QLineEdit)
    for typed in ("mine", ""):
        name.setText(typed)
        name.textEdited.emit(typed)
        assert page.title == (typed or title)
    name = page.forms["Run"].fields[("name",)].editor
    assert isinstance(name, QLineEdit)
    assert name.placeholderText() == title and page.breadcrumbs()[-1] == title


def test_invalid_toml_is_marked_after_a_pause_and_keeps_the_form(
    qtbot: QtBot, app: App, page: ConfigPage
) -> None:
    form, view = page.forms["Training"], launch_view(app)
    before = {key: field.isEnabled() for key, field in form.fields.items()}
    changes: list[object] = []
    app.session.problems.changed.connect(lambda: changes.append(app.session.problems.entries))
    type_at_line_end(page, 2, "[", qtbot)
    assert not page.editor.line_problems and not page.problem_list.isVisible(), "somebody is typing"
    qtbot.keyClick(page.editor, Qt.Key.Key_Backspace)
    assert not app.session.draft.is_typing and not changes and not view.footer.blocker_banner.isVisible()
    qtbot.keyClicks(page.editor, "[")
    qtbot.waitUntil(lambda: set(page.editor.line_problems) == {2}, timeout=5000)
    assert view.footer.blocker_banner.location_button.text() == "Go to Line 2"
    assert {key: field.isEnabled() for key, field in form.fields.items()} == before
    assert form.isEnabled() and form.fields[("train", "steps")].editor.text() == "5"  # type: ignore[attr-defined]
    page.editor.moveCursor(QTextCursor.MoveOperation.End)
    qtbot.mouseClick(view.footer.blocker_banner.location_button, Qt.MouseButton.LeftButton)
    assert page.editor.textCursor().blockNumber() == 1


def test_a_form_change_replaces_invalid_toml_and_offers_undo(
    qtbot: QtBot, app: App, page: ConfigPage
) -> None:
    type_at_line_end(page, 2, "[", qtbot)
    typed = page.editor.toPlainText()
    app.session.draft.choose(("strategy",), "ddp")
    assert page.editor.toPlainText() == TEXT.replace('"dp"', '"ddp"') and app.session.draft.is_toml
    (toast,) = app.window.toasts.history
    ((label, bring_back),) = toast.actions
    assert label == "Undo"
    bring_back()
    assert app.session.draft.text == typed and page.editor.toPlainText() == typed


def launch_view(app: App) -> LaunchView:
    view = app.window.show_activity("launch")
    assert isinstance(view, LaunchView)
    return view


def test_saving_writes_the_text_and_clears_the_modified_mark(
    app: App, page: ConfigPage, tmp_path: Path
) -> None:
    target = tmp_path / "mine.toml"
    app.actions.save_config(target)
    app.session.io_thread.wait_for_done()
    assert target.read_text() == TEXT and page.title == "mine.toml"
    app.session.draft.set_value(("train", "steps"), 9)
    assert page.title == "mine.toml ●"
    app.window.commands.run("config.save")
    app.session.io_thread.wait_for_done()
    assert "steps = 9" in target.read_text()
    page.refresh()
    assert page.title == "mine.toml"


def test_opening_a_file_replaces_the_draft(app: App, page: ConfigPage, tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text('name = "Other"\n')
    app.actions.open_config(tmp_path / "other.toml")
    app.session.io_thread.wait_for_done()
    assert page.editor.toPlainText() == 'name = "Other"\n' and app.session.draft.run_title == "Other"
    app.actions.open_config(tmp_path / "missing.toml")
    app.session.io_thread.wait_for_done()
    assert app.session.draft.run_title == "Other" and "cannot be read" in app.window.toasts.history[-1].text


def test_completions_are_listed_while_typing_and_accepted_with_enter(
    qtbot: QtBot, app: App, page: ConfigPage
) -> None:
    box = page.editor.completion_box
    type_at_line_end(page, 3, "", qtbot)
    qtbot.keyClick(page.editor, Qt.Key.Key_Return)
    assert not box.isVisible(), "nothing is typed yet"
    qtbot.keyClicks(page.editor, "glob")
    assert box.isVisible() and box.texts == ["global_batch"] and "Samples" in box.help_label.text()
    qtbot.keyClick(page.editor, Qt.Key.Key_Return)
    assert not box.isVisible()
    qtbot.keyClicks(page.editor, " = 64")
    assert app.session.draft.value(("train", "global_batch")) == 64
    assert page.editor.hasFocus()


def test_ctrl_space_lists_all_completions_and_escape_closes(qtbot: QtBot, app: App, page: ConfigPage) -> None:
    box = page.editor.completion_box
    type_at_line_end(page, 6, "", qtbot)
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


def test_the_completion_list_is_visible_with_and_without_help(
    qtbot: QtBot, app: App, page: ConfigPage
) -> None:
    box, cursor_rect = page.editor.completion_box, QRect(10, 10, 1, 16)
    for help_text in ("", "More words."):
        box.hide()
        box.show_items(
            tuple(CompletionItem(word, "", help_text) for word in ("bf16", "fp32", "fp64")), cursor_rect
        )
        assert not box.visibleRegion().isEmpty() and box.list.height() == 3 * ROW_HEIGHT
        assert box.rect().contains(box.list.geometry()) and bool(help_text) == box.help_label.isVisible()


def test_hovering_a_key_shows_its_help(qtbot: QtBot, app: App, page: ConfigPage) -> None:
    cursor = page.editor.textCursor()
    cursor.setPosition(TEXT.index("steps") + 2)
    at = page.editor.cursorRect(cursor).center()
    event = QHelpEvent(QEvent.Type.ToolTip, at, page.editor.viewport().mapToGlobal(at))
    QApplication.sendEvent(page.editor.viewport(), event)
    assert QToolTip.text().startswith("train.steps: whole number, 1 or more")
    QToolTip.hideText()
