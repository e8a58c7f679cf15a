"""A problem begins with the person's own line: a link that opens the file there; F8 walks through all."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPushButton
from pytestqt.qtbot import QtBot

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck_app.composition import App
from rankdeck_app.shell.tab import UnavailablePage
from rankdeck_app.state.problem_list import DRAFT_OWNER, LAUNCH_OWNER, ListedProblem, ProblemList
from rankdeck_app.theme import Theme
from rankdeck_app.views.code_page import CodePage
from rankdeck_app.views.config_page import ConfigPage
from rankdeck_app.views.problems import ProblemsView, message_text, owner_text, user_code_lines
from tests.helpers.app_window import open_run, wait_for
from tests.helpers.written_run import WrittenRun, device_infos

_TORCH = "/env/lib/python3.12/site-packages/torch/nn"
CODE = 'import torch\n\n"""Long\ntext."""\ndef forward(x):\n    return inner(x)\n'


def make_problem(file: Path | str, line: int = 6, *, with_place: bool = True) -> Problem:
    return Problem(
        "rank-exception",
        f"RuntimeError: mat1 and mat2 cannot be multiplied ({file}, line {line})",
        path=str(file) if with_place else None,
        line=line if with_place else None,
        rank=1,
        last_lines=(
            "Traceback (most recent call last):",
            '  File "/p/train.py", line 9, in <module>',
            "    main()",
            f'  File "{_TORCH}/module.py", line 17, in call',
            "    return forward(x)",
            f'  File "{file}", line {line}, in forward',
            "    return inner(x)",
            f'  File "{_TORCH}/linear.py", line 134, in forward',
            "RuntimeError: mat1 and mat2 cannot be multiplied",
        ),
    )


def show_problems(app: App) -> ProblemsView:
    view = app.window.show_panel("problems")
    assert isinstance(view, ProblemsView)
    return view


def find_code_page(app: App) -> CodePage:
    page = app.window.editor.active_page()
    assert isinstance(page, CodePage)
    wait_for(lambda: page.editor.toPlainText() or page.error_label.text(), 5, "the file")
    return page


@pytest.mark.parametrize("with_place", [True, False], ids=["as data", "in words, as before"])
def test_the_line_of_user_code_comes_first(with_place: bool) -> None:
    problem = make_problem("/p/bad_model.py", with_place=with_place)
    assert [(line.file, line.line) for line in user_code_lines(problem)] == [
        ("/p/bad_model.py", 6),
        ("/p/train.py", 9),
    ]
    assert user_code_lines(problem)[0].text == "return inner(x)"
    assert message_text(problem) == "RuntimeError: mat1 and mat2 cannot be multiplied"


def test_a_location_in_the_configuration_is_not_a_file_link() -> None:
    wrong = Problem("config", "train.steps must be a whole number.", path="train.steps", line=3)
    assert user_code_lines(wrong) == [] and message_text(wrong) == wrong.message
    foreign = Problem("rank-exception", f"ValueError: no ({_TORCH}/module.py, line 17)")
    assert user_code_lines(foreign) == [] and message_text(foreign) == foreign.message


def test_a_link_opens_the_file_at_its_line(qtbot: QtBot, app: App, tmp_path: Path) -> None:
    file = tmp_path / "bad_model.py"
    file.write_text(CODE)
    view = show_problems(app)
    app.session.problems.set(LAUNCH_OWNER, "mine", [make_problem(file)])
    row = view.rows[0]
    assert [link.text() for link in row.links] == ["bad_model.py, line 6", "train.py, line 9"]
    assert row.traceback_block is not None and row.traceback_block.isHidden()
    qtbot.mouseClick(row.traceback_button, Qt.MouseButton.LeftButton)
    assert (
        not row.traceback_block.isHidden() and "  ... 1 frame of torch" in row.traceback_block.toPlainText()
    )
    app.session.problems.set(DRAFT_OWNER, "draft", [Problem("config", "another")])
    assert view.rows[1] is row and not row.traceback_block.isHidden()  # it stays as it was left
    row.links[0].setFocus()
    qtbot.keyClick(row.links[0], Qt.Key.Key_Space)
    page = find_code_page(app)
    assert page.title == "bad_model.py" and page.editor.isReadOnly()
    assert page.editor.textCursor().blockNumber() + 1 == 6 and set(page.editor.line_problems) == {6}
    assert page.message_label.text() == "RuntimeError: mat1 and mat2 cannot be multiplied"
    assert page.breadcrumbs()[-1] == "bad_model.py"


def test_changed_and_missing_files_are_reported(app: App, tmp_path: Path) -> None:
    file = tmp_path / "bad_model.py"
    file.write_text("x = 1\n")
    app.problem_navigator.open_location(file, 9, "ValueError: no")
    page = find_code_page(app)
    assert "line 9 no longer exists" in page.message_label.text()
    file.unlink()
    page.go_to(1)
    wait_for(lambda: "does not exist" in page.error_label.text(), 5, "the refusal")
    assert page.editor.isHidden() and page.error_label.isVisible()


def test_only_visible_lines_are_highlighted(app: App, tmp_path: Path) -> None:
    file = tmp_path / "long.py"
    file.write_text('x = 1\n"""Long\n' + "text\n" * 500 + '"""\ndef f():\n    return 1\n' * 200)
    app.problem_navigator.open_location(file, 3)
    page = find_code_page(app)

    def is_colored(line: int) -> bool:
        block = page.editor.document().findBlockByNumber(line - 1)
        return bool(block.layout().formats())

    wait_for(lambda: is_colored(3), 5, "the colours")
    assert not is_colored(510)
    page.go_to(510)
    wait_for(lambda: is_colored(506) and is_colored(505), 5, "the colours of what is seen now")
    file.write_text("x = 1\n" * 30_000)
    page.go_to(9)
    wait_for(lambda: page.editor.blockCount() == 30_001, 5, "the other text")
    assert not is_colored(9)


def test_buttons_stay_inside_the_panel_at_any_width(qtbot: QtBot, app: App) -> None:
    view = show_problems(app)
    long = "/a/very/long/path/without/any/space/" * 8
    app.session.problems.set(LAUNCH_OWNER, "mine", [make_problem(f"{long}model.py")])
    app.session.problems.set(DRAFT_OWNER, "draft", [Problem("no-gpu", f"No GPU under {long}.", line=3)])
    for width in (1440, 1000, 800):
        app.window.resize(width, 700)
        room = view.rows[0].parentWidget()
        wait_for(lambda room=room: view.rows[0].width() == room.width() <= view.width(), 5, "the layout")
        for row in view.rows:
            assert row.width() == room.width()
            for button in row.findChildren(QPushButton):
                edge = button.mapTo(view, button.rect().topRight()).x()
                assert edge <= view.width(), (width, button.text())


def test_f8_goes_through_all_problems(qtbot: QtBot, app: App, tmp_path: Path) -> None:
    assert not app.window.commands.is_enabled("problems.next")
    file = tmp_path / "bad_model.py"
    file.write_text(CODE)
    app.session.draft.set_text('[train]\nsteps = "x"\n')
    app.session.problems.set(LAUNCH_OWNER, "mine", [make_problem(file)])
    entries = app.session.problems.entries
    assert [entry.owner for entry in entries] == [LAUNCH_OWNER, DRAFT_OWNER]
    qtbot.keyClick(app.window, Qt.Key.Key_F8)
    assert find_code_page(app).path == file
    view = app.window.panel.body
    assert isinstance(view, ProblemsView)
    assert [row.property("chosen") for row in view.rows] == ["true", "false"]
    qtbot.keyClick(app.window, Qt.Key.Key_F8)
    page = app.window.editor.active_page()
    assert isinstance(page, ConfigPage) and page.editor.textCursor().blockNumber() + 1 == 2
    qtbot.keyClick(app.window, Qt.Key.Key_F8)
    assert find_code_page(app).path == file
    qtbot.keyClick(app.window, Qt.Key.Key_F8, Qt.KeyboardModifier.ShiftModifier)
    assert app.window.editor.active_page() is page


def test_the_user_editor_gets_file_and_line(qtbot: QtBot, app: App, tmp_path: Path) -> None:
    output_file, file = tmp_path / "told", tmp_path / "my model.py"
    editor = tmp_path / "my editor"
    editor.write_text(
        f'#!/bin/sh\nprintf "%s|" "$@" > "{output_file}.new" && mv "{output_file}.new" "{output_file}"\n'
    )
    editor.chmod(0o700)
    app.window.settings.set("editor.command", f"'{editor}' -g {{file}}:{{line}}")
    before = app.window.editor.active_page()
    app.problem_navigator.open_location(file, 7)
    wait_for(output_file.exists, 10, "the editor")
    assert output_file.read_text() == f"-g|{file}:7|" and app.window.editor.active_page() is before
    for wrong in ("/no/such/editor {file}", "'", "vi {lin} {file}", "vi {line[0]}", "vi {file:s}"):
        app.window.settings.set("editor.command", wrong)
        app.problem_navigator.open_location(file, 7)
        assert "editor.command" in app.window.toasts.history[-1].text
        assert find_code_page(app).path == file  # and it is shown here instead


def test_a_code_page_is_restored_at_its_line(make_app: type, tmp_path: Path) -> None:
    file = tmp_path / "bad_model.py"
    file.write_text(CODE)
    first: App = make_app()
    first.problem_navigator.open_location(file, 6, "ValueError: no")
    find_code_page(first)
    first.window.close()
    second: App = make_app()
    page = find_code_page(second)
    assert not isinstance(page, UnavailablePage) and page.message_label.text() == "ValueError: no"
    assert page.editor.textCursor().blockNumber() + 1 == 6


@pytest.mark.parametrize("is_open", [True, False], ids=["the panel is open", "it is opened then"])
def test_rows_have_their_full_height_from_the_first_frame(app: App, is_open: bool) -> None:
    view = show_problems(app)
    if not is_open:
        app.window.toggle_part("panel")
    wrong = [Problem("config", f"train.steps is {n}. " * 20, advice="Use 1. " * 40) for n in range(4)]
    app.session.problems.set(DRAFT_OWNER, "draft", wrong)
    show_problems(app)  # nothing of the event loop has run since
    assert len(view.rows) == 4 and view.isVisible()
    for row in view.rows:
        assert row.isVisible() and row.height() >= row.heightForWidth(row.width()) > 100
    lowest = max(row.geometry().bottom() for row in view.rows)
    assert lowest < view.rows[0].parentWidget().height()


def test_errors_of_a_run_come_before_its_warnings() -> None:
    problems, run = ProblemList(), Path("/runs/mine")
    problems.set(DRAFT_OWNER, "draft", [Problem("b", "slow", severity="warning"), Problem("a", "wrong")])
    problems.set(str(run), "mine", [Problem("d", "late", severity="warning"), Problem("c", "failed")], run)
    problems.set(f"{run} memory", "mine", [Problem("e", "uneven", severity="warning")], run)
    assert [entry.problem.code for entry in problems.entries] == ["c", "e", "d", "a", "b"]


def test_problems_of_other_runs_are_listed_below_a_heading(qtbot: QtBot) -> None:
    problems, theme = ProblemList(), Theme()
    for name in ("mine", "other"):
        run = Path("/runs") / name
        problems.set(str(run), name, [Problem(name, "failed")], run)
    view = ProblemsView(theme, problems, lambda _entry: [])
    qtbot.addWidget(view)
    view.show()
    assert [row.entry.title for row in view.rows] == ["other", "mine"] and not view.others_heading.isVisible()
    problems.set_shown_run(Path("/runs/mine"))
    assert [row.entry.title for row in view.rows] == ["mine", "other"]
    assert view.others_heading.isVisible()
    qtbot.waitUntil(lambda: view.rows[0].y() < view.others_heading.y() < view.rows[1].y())


def test_focus_stays_in_the_list_when_a_row_is_removed(qtbot: QtBot) -> None:
    problems = ProblemList()
    problems.set(LAUNCH_OWNER, "launch", [Problem("b", "wrong")])
    problems.set(DRAFT_OWNER, "draft", [Problem("a", "wrong")])
    fix = ("Fix", lambda: problems.set(DRAFT_OWNER, "draft", []))
    view = ProblemsView(Theme(), problems, lambda _entry: [fix])
    qtbot.addWidget(view)
    with qtbot.waitActive(view):
        view.show()
        view.activateWindow()
    view.rows[0].buttons[0].setFocus()
    view.rows[0].buttons[0].click()
    assert [row.entry.title for row in view.rows] == ["launch"]
    assert view.rows[0].buttons[0].hasFocus()


def test_an_open_panel_shows_problems_when_the_current_run_fails(
    qtbot: QtBot, app: App, written: WrittenRun
) -> None:
    app.window.show_panel("output")
    written.start(1, device_infos(1))
    written.write_steps(0, 1, [1.0])
    open_run(app, written.path)
    qtbot.waitUntil(lambda: app.tabs.current is not None and app.tabs.current.is_live)
    assert app.window.panel.current_id == "output"
    written.end("failed", 1)
    qtbot.waitUntil(lambda: app.window.panel.current_id == "problems")


@pytest.mark.parametrize("is_launched_here", [True, False])
def test_a_quick_failure_shows_problems_if_launched_here(
    qtbot: QtBot, app: App, written: WrittenRun, is_launched_here: bool
) -> None:
    app.window.show_panel("output")
    written.start(1, device_infos(1))
    written.end("failed", 1)
    if is_launched_here:
        app.tabs.launched[written.path] = "quick"
    open_run(app, written.path)
    qtbot.waitUntil(lambda: app.tabs.current is not None and app.tabs.current.outcome == "failed")
    assert app.window.panel.current_id == ("problems" if is_launched_here else "output")


def test_a_folder_named_by_the_advice_is_not_repeated() -> None:
    lost = Problem("lost", "It failed.", path="/runs/mine", advice="See the files in /runs/mine/logs.")
    assert owner_text(ListedProblem(LAUNCH_OWNER, "mine", lost)) == "mine"
    other = Problem("lost", "It failed.", path="/runs/mine", advice="Run it again.")
    assert owner_text(ListedProblem(LAUNCH_OWNER, "mine", other)) == "mine · /runs/mine"


def test_the_fix_of_a_refused_run_is_a_command(
    qtbot: QtBot, app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = WrittenRun(tmp_path / "runs", "refused")
    run.start(1, device_infos(2))
    fix = {"strategy.use": "model"}
    refused = Problem("differs-from-one-device", "The model mixes samples.", cure=fix)
    run.writer("supervisor").write(events.ProblemRaised(problem=refused))
    taken = list[object]()
    monkeypatch.setattr(app.fixes, "apply", lambda *what: taken.append(what))
    open_run(app, run.path)
    commands = app.window.commands
    qtbot.waitUntil(lambda: bool(app.session.problems.entries))
    assert not commands.is_enabled("run.cure"), "it is not over"
    run.end("failed", 2)
    qtbot.waitUntil(lambda: commands.is_enabled("run.cure"))
    commands.run("run.cure")
    assert taken == [(run.path, fix)]
