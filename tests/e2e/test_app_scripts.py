"""A person's own script from the app: launched after the trust question, again, as an entry, and refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from rankdeck_app.composition import App
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.views.dashboard.page import RunPage
from rankdeck_app.views.launch.side_bar import LaunchView
from tests.helpers.app_window import (
    app_that_trains,
    output_text,
    wait_for,
    wait_for_launch,
)
from tests.helpers.own_scripts import project

END_TIMEOUT_S = 60
SCRIPT = """\
import os, sys
print("hello from", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], sys.argv[1:], os.environ.get("A"))
sys.exit(int(sys.argv[1]) if os.environ["RANK"] == "1" else 0)
"""


@pytest.fixture
def app(qtbot: QtBot, tmp_path: Path) -> Iterator[App]:
    folder = project(tmp_path / "workspace")
    (folder / "train.py").write_text(SCRIPT)
    with app_that_trains(folder) as app:
        app.session.scripts.choose(Path(sys.executable))
        app.session.script.set_chosen(True)
        yield app


def wait_for_end(run: LiveRun) -> LiveRun:
    wait_for(lambda: run.outcome not in (None, "running"), END_TIMEOUT_S, "the end of the run")
    return run


def test_a_script_runs_after_the_trust_question_and_as_an_entry(qtbot: QtBot, app: App) -> None:
    app.session.script.set_fields(
        run="train.py", arguments="3 'two words'", environment="A=x", devices="cpu:2"
    )
    qtbot.keyClick(app.window, Qt.Key.Key_F5, Qt.KeyboardModifier.ControlModifier)
    app.session.io_thread.wait_for_done()
    question = app.launcher.trust_dialog
    assert question is not None and question.folders == [app.session.workspace.folder.resolve()]
    assert not app.launcher.num_pending, "nothing of the folder has run"
    question.accept_button.click()
    run = wait_for_end(wait_for_launch(app))
    assert app.window.panel.current_id == "problems", "why it failed comes first"
    page = app.window.editor.active_page()
    assert isinstance(page, RunPage) and page.title == "train"
    assert run.outcome == "failed" and run.state.script.script_status == 3
    line = "hello from 1 of 2 ['3', 'two words'] x"
    wait_for(lambda: f"[rank 1] {line}" in output_text(app), 10, "rank 1's words")
    wait_for(lambda: page._banner.buttons, 5, "the button of a run that is over")
    assert not app.window.commands.is_enabled("run.resume")
    page._banner.buttons[0].click()
    again = wait_for_end(wait_for_launch(app))
    assert again.run_dir.path != run.run_dir.path and again.script == run.script

    app.session.script.load_entry("small", app.session.scripts.facts.file.entries["small"])
    app.session.script.set_fields(arguments="0")
    app.scripts.save_entry("quiet")
    wait_for(lambda: app.window.commands.is_enabled("run.entry.quiet"), 10, "the entry's command")
    app.window.commands.run("run.entry.quiet")
    entry = wait_for_end(wait_for_launch(app))
    assert entry.outcome == "completed" and entry.script is not None
    assert app.window.panel.current_id == "output", "what it prints is there to be read"
    assert entry.script.script.args == ["0"] and entry.script.script.ranks == 2


def test_errors_of_the_engine_are_shown_at_their_field(app: App, tmp_path: Path) -> None:
    app.session.trust.add(tmp_path)
    app.session.script.set_fields(run="train.py", python="./no-such-env", arguments="0")
    app.actions.launch()
    app.session.io_thread.wait_for_done()
    problem = app.session.script.find_problem("python")
    assert problem is not None and "no-such-env" in problem.message and not app.launcher.num_pending
    view = app.window.show_activity("launch")
    assert isinstance(view, LaunchView)
    assert view.script.python_line.problem_label.text() == problem.message
    app.session.script.set_fields(python="")
    (app.session.workspace.folder / "train.py").unlink()
    app.actions.launch()
    app.session.io_thread.wait_for_done()
    assert app.launcher.num_pending == 1
    wait_for(lambda: not app.launcher.num_pending, END_TIMEOUT_S, "the engine's answer")
    assert "train.py" in view.script.file_line.problem_label.text()
