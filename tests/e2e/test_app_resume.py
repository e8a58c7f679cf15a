"""A run that is saved, stopped and resumed from the app, by the buttons of its tab."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from rankdeck.checkpoint_files import list_checkpoints
from rankdeck_app.composition import App
from rankdeck_app.views.dashboard.page import RunPage
from rankdeck_app.views.runs import RunsView
from tests.helpers.app_window import (
    close_app,
    end_all_runs,
    launched,
    open_app,
    output_text,
    settle,
    wait_for,
)

WITHIN_S = 60
SLOW = """\
name = "Slow"
model = { use = "mine.py:model" }
data = { use = "digits" }
train = { steps = 1000000, evaluate_every = 0 }
strategy = { use = "single" }
devices = { use = "cpu:1" }
"""
MINE = """\
import time

from torch import nn


class Sleeping(nn.Sequential):
    def forward(self, x):
        time.sleep(0.02)  # a run that is only watched leaves the cores to those who watch
        return super().forward(x)


def model():
    return Sleeping(nn.Flatten(), nn.Linear(64, 10))
"""


def runs_folder() -> Path:
    return Path(os.environ["RANKDECK_RUNS"])


@pytest.fixture
def app(qtbot: QtBot, tmp_path: Path) -> Iterator[App]:
    app = open_app(tmp_path / "workspace")
    yield app
    close_app(app)
    end_all_runs(runs_folder())
    gc.collect()
    settle()


def buttons(app: App) -> list[str]:
    page = app.window.editor.active_page()
    assert isinstance(page, RunPage)
    return [action.command for action in page.tab_actions()]


def said(app: App, words: str) -> bool:
    return any(words in notice.text for notice in app.window.toasts.history)


def test_a_run_is_saved_stopped_and_resumed_by_the_buttons_of_its_tab(app: App, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    app.session.trust.add(tmp_path)
    app.session.draft.replace(SLOW, folder=tmp_path, stem="slow")
    app.launching.launch_draft()
    run = launched(app)
    wait_for(lambda: (run.step or 0) > 0, WITHIN_S, "the first step")
    wait_for(lambda: buttons(app) == ["run.checkpoint", "run.stop"], 5, "the buttons of a running run")
    assert app.window.commands.enabled("run.checkpoint") and not app.window.commands.enabled("run.resume")

    app.window.commands.run("run.checkpoint")
    wait_for(lambda: list_checkpoints(run.run.checkpoints_folder), WITHIN_S, "a checkpoint")
    saved = list_checkpoints(run.run.checkpoints_folder)[0].step
    wait_for(lambda: f"checkpoint at step {saved} (request)" in output_text(app), 10, "it in the output")
    wait_for(lambda: said(app, f"Checkpoint of step {saved}"), 10, "the toast")

    app.window.commands.run("run.stop")
    page = app.window.editor.active_page()
    assert isinstance(page, RunPage) and run.ending == "stopping", "it is said before the engine answers"
    assert app.window.status.item("run").text().startswith("Stopping")
    page._frame()
    assert page._banner.text == "Stopping, saving a checkpoint…"
    assert [button.text() for button in page._banner.buttons] == ["Stop Now"]
    wait_for(lambda: run.outcome == "stopped", WITHIN_S, "the stop")
    assert run.fold.ending == "stopping" and run.ending is None
    wait_for(
        lambda: buttons(app) == ["run.resume", "run.again", "run.compare"],
        5,
        "the buttons of a run that is over",
    )
    assert [button.text() for button in page._banner.buttons] == ["Resume", "Run Again", "Compare"]
    stopped_at = list_checkpoints(run.run.checkpoints_folder)[0].step
    assert stopped_at > saved

    app.session.trust.remove(tmp_path.resolve())
    app.window.commands.run("run.resume")
    app.session.disk.settle()
    question = app.launching.question
    assert question is not None and question.folders == [tmp_path.resolve()]
    question.yes.click()
    wait_for(lambda: run.outcome == "running", WITHIN_S, "the run to be alive again")
    wait_for(lambda: (run.step or 0) > stopped_at, WITHIN_S, "steps of the second attempt")
    assert run.fold.num_attempts == 2 and len(run.fold.losses) == run.step
    wait_for(lambda: app.session.runs.alive, 10, "it among the living runs")


@pytest.mark.slow
def test_a_run_without_a_checkpoint_is_offered_no_resume_and_refused_in_words(
    app: App, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    app.session.trust.add(tmp_path)
    app.session.draft.replace(SLOW, folder=tmp_path, stem="slow")
    app.launching.launch_draft()
    run = launched(app)
    wait_for(lambda: (run.step or 0) > 0, WITHIN_S, "the first step")
    app.tabs.stop(run.run.path, now=True)
    wait_for(lambda: run.outcome == "stopped", WITHIN_S, "the stop")
    wait_for(lambda: app.session.runs.info_of(run.run.path) and not app.session.runs.alive, 10, "the list")
    view = app.window.show_activity("runs") or app.window.side_bar.findChild(RunsView)
    assert isinstance(view, RunsView)
    info = app.session.runs.info_of(run.run.path)
    assert info is not None
    menu = view.build_menu(info)
    offered = [action.text() for action in menu.actions()]
    menu.deleteLater()
    assert "Run Again" in offered and "Resume" not in offered
    app.launching.resume(run.run.path)  # as asked by who knew a checkpoint that is gone
    wait_for(lambda: not app.launching.num_pending, WITHIN_S, "the engine's answer")
    wait_for(lambda: said(app, "has no checkpoint"), 10, "the refusal")
