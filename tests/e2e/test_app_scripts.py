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
    launched,
    output_text,
    wait_for,
)
from tests.helpers.own_scripts import project

ENDS_S = 60
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
        app.session.script.choose(True)
        yield app


def ended(run: LiveRun) -> LiveRun:
    wait_for(lambda: run.outcome not in (None, "running"), ENDS_S, "the end of the run")
    return run


def test_a_script_runs_after_the_trust_question_again_from_its_banner_and_as_an_entry(
    qtbot: QtBot, app: App
) -> None:
    app.session.script.set(run="train.py", arguments="3 'two words'", environment="A=x", devices="cpu:2")
    qtbot.keyClick(app.window, Qt.Key.Key_F5, Qt.KeyboardModifier.ControlModifier)
    app.session.disk.settle()
    question = app.launching.question
    assert question is not None and question.folders == [app.session.workspace.folder.resolve()]
    assert not app.launching.num_pending, "nothing of the folder has run"
    question.yes.click()
    run = ended(launched(app))
    assert app.window.panel.shown == "problems", "why it failed comes first"
    page = app.window.editor.active_page()
    assert isinstance(page, RunPage) and page.title == "train"
    assert run.outcome == "failed" and run.fold.script.script_status == 3
    said = "hello from 1 of 2 ['3', 'two words'] x"
    wait_for(lambda: f"[rank 1] {said}" in output_text(app), 10, "rank 1's words")
    wait_for(lambda: page._banner.buttons, 5, "the button of a run that is over")
    assert not app.window.commands.enabled("run.resume")
    page._banner.buttons[0].click()
    again = ended(launched(app))
    assert again.run.path != run.run.path and again.script == run.script

    app.session.script.fill("small", app.session.scripts.facts.file.entries["small"])
    app.session.script.set(arguments="0")
    app.scripts.save_entry("quiet")
    wait_for(lambda: app.window.commands.enabled("run.entry.quiet"), 10, "the entry's command")
    app.window.commands.run("run.entry.quiet")
    entry = ended(launched(app))
    assert entry.outcome == "completed" and entry.script is not None
    assert app.window.panel.shown == "output", "what it prints is there to be read"
    assert entry.script.script.args == ["0"] and entry.script.script.ranks == 2


def test_what_the_engine_refuses_stands_by_its_field(app: App, tmp_path: Path) -> None:
    app.session.trust.add(tmp_path)
    app.session.script.set(run="train.py", python="./no-such-env", arguments="0")
    app.actions.launch()
    app.session.disk.settle()
    problem = app.session.script.problem_at("python")
    assert problem is not None and "no-such-env" in problem.message and not app.launching.num_pending
    view = app.window.show_activity("launch")
    assert isinstance(view, LaunchView)
    assert view.script.python_line.problem_label.text() == problem.message
    app.session.script.set(python="")
    (app.session.workspace.folder / "train.py").unlink()
    app.actions.launch()
    app.session.disk.settle()
    assert app.launching.num_pending == 1
    wait_for(lambda: not app.launching.num_pending, ENDS_S, "the engine's answer")
    assert "train.py" in view.script.file_line.problem_label.text()
