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
    open_app,
    output_text,
    process_events,
    stop_all_runs,
    wait_for,
    wait_for_launch,
)

TIMEOUT_S = 60
SLOW = """\
name = "Slow"
model = { use = "mine.py:model" }
data = { use = "digits" }
train = { steps = 1000000, evaluate_every = 0 }
strategy = { use = "single" }
devices = { use = "cpu:1" }
"""
USER_CODE = """\
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
    stop_all_runs(runs_folder())
    gc.collect()
    process_events()


def tab_commands(app: App) -> list[str]:
    page = app.window.editor.active_page()
    assert isinstance(page, RunPage)
    return [action.command for action in page.tab_actions()]


def has_toast(app: App, text: str) -> bool:
    return any(text in notice.text for notice in app.window.toasts.history)


def test_tab_buttons_save_stop_and_resume_a_run(app: App, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(USER_CODE)
    app.session.trust.add(tmp_path)
    app.session.draft.replace(SLOW, folder=tmp_path, stem="slow")
    app.launcher.launch_draft()
    run = wait_for_launch(app)
    wait_for(lambda: (run.step or 0) > 0, TIMEOUT_S, "the first step")
    wait_for(lambda: tab_commands(app) == ["run.checkpoint", "run.stop"], 5, "the buttons of a running run")
    assert app.window.commands.is_enabled("run.checkpoint") and not app.window.commands.is_enabled(
        "run.resume"
    )

    app.window.commands.run("run.checkpoint")
    wait_for(lambda: list_checkpoints(run.run_dir.checkpoints_folder), TIMEOUT_S, "a checkpoint")
    saved = list_checkpoints(run.run_dir.checkpoints_folder)[0].step
    wait_for(lambda: f"checkpoint at step {saved} (request)" in output_text(app), 10, "it in the output")
    wait_for(lambda: has_toast(app, f"Saved the checkpoint of step {saved}"), 10, "the toast")

    app.window.commands.run("run.stop")
    page = app.window.editor.active_page()
    assert isinstance(page, RunPage) and run.ending == "stopping", "it is said before the engine answers"
    assert app.window.status_bar.item("run").text().startswith("Stopping")
    page._on_frame()
    assert page._banner.text == "Stopping, saving a checkpoint…"
    assert [button.text() for button in page._banner.buttons] == ["Stop Now"]
    wait_for(lambda: run.outcome == "stopped", TIMEOUT_S, "the stop")
    assert run.state.ending == "stopping" and run.ending is None
    wait_for(
        lambda: tab_commands(app) == ["run.resume", "run.again", "run.compare"],
        5,
        "the buttons of a run that is over",
    )
    assert [button.text() for button in page._banner.buttons] == ["Resume", "Run Again", "Compare"]
    stopped_at = list_checkpoints(run.run_dir.checkpoints_folder)[0].step
    assert stopped_at > saved

    app.session.trust.remove(tmp_path.resolve())
    app.window.commands.run("run.resume")
    app.session.io_thread.wait_for_done()
    question = app.launcher.trust_dialog
    assert question is not None and question.folders == [tmp_path.resolve()]
    question.accept_button.click()
    wait_for(lambda: run.outcome == "running", TIMEOUT_S, "the run to be alive again")
    wait_for(lambda: (run.step or 0) > stopped_at, TIMEOUT_S, "steps of the second attempt")
    assert run.state.num_attempts == 2 and len(run.state.losses) == run.step
    wait_for(lambda: app.session.runs.alive_runs, 10, "it among the living runs")


@pytest.mark.slow
def test_a_run_without_a_checkpoint_cannot_be_resumed(app: App, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(USER_CODE)
    app.session.trust.add(tmp_path)
    app.session.draft.replace(SLOW, folder=tmp_path, stem="slow")
    app.launcher.launch_draft()
    run = wait_for_launch(app)
    wait_for(lambda: (run.step or 0) > 0, TIMEOUT_S, "the first step")
    app.tabs.stop(run.run_dir.path, now=True)
    wait_for(lambda: run.outcome == "stopped", TIMEOUT_S, "the stop")
    wait_for(
        lambda: app.session.runs.find_info(run.run_dir.path) and not app.session.runs.alive_runs,
        10,
        "the list",
    )
    view = app.window.show_activity("runs") or app.window.side_bar.findChild(RunsView)
    assert isinstance(view, RunsView)
    info = app.session.runs.find_info(run.run_dir.path)
    assert info is not None
    menu = view.build_menu(info)
    offered = [action.text() for action in menu.actions()]
    menu.deleteLater()
    assert "Run Again" in offered and "Resume" not in offered
    app.launcher.resume(run.run_dir.path)  # as asked by who knew a checkpoint that is gone
    wait_for(lambda: not app.launcher.num_pending, TIMEOUT_S, "the engine's answer")
    wait_for(lambda: has_toast(app, "has no checkpoint"), 10, "the refusal")
