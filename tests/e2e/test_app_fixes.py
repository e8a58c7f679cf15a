"""A fix is taken from the app: a run is saved, stopped, resumed under it, and its attempts are compared."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from rankdeck.compare.run_ref import RunRef
from rankdeck_app.composition import App
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.views.compare.page import ComparePage
from tests.helpers.app_window import app_that_trains, wait_for, wait_for_launch

TIMEOUT_S = 60
CONFIG = """\
model = { use = "mlp" }
data = { use = "digits" }
train = { steps = 1000000, evaluate_every = 0 }
strategy = { use = "dp" }
devices = { use = "cpu:2" }
"""
DDP = {"strategy.use": "ddp"}


@pytest.fixture
def app(qtbot: QtBot, tmp_path: Path) -> Iterator[App]:
    with app_that_trains(tmp_path / "workspace") as app:
        yield app


def has_toast(app: App, text: str) -> bool:
    return any(text in notice.text for notice in app.window.toasts.history)


def start_run(app: App, tmp_path: Path) -> LiveRun:
    app.session.draft.replace(CONFIG, folder=tmp_path, stem="even")
    app.launcher.launch_draft()
    run = wait_for_launch(app)
    wait_for(lambda: (run.step or 0) > 3, TIMEOUT_S, "the first steps")
    return run


@pytest.mark.slow
def test_a_fix_switches_a_live_run_and_a_failed_one_stops_nothing(app: App, tmp_path: Path) -> None:
    run = start_run(app, tmp_path)
    path = run.run_dir.path
    app.fixes.apply(path, {"train.global_batch": 3})
    assert has_toast(app, "The run was not changed: train.global_batch = 3")
    # No checkpoint can be saved: something else lies where they would.
    shutil.rmtree(run.run_dir.checkpoints_folder, ignore_errors=True)
    run.run_dir.checkpoints_folder.write_text("in the way")
    app.fixes.apply(path, DDP)
    wait_for(lambda: has_toast(app, "no checkpoint could be saved") or run.is_over, 150, "the refusal")
    at = run.step or 0
    wait_for(lambda: (run.step or 0) > at, TIMEOUT_S, "it to train on")
    run.run_dir.checkpoints_folder.unlink()

    app.fixes.apply(path, DDP)
    wait_for(lambda: run.state.num_attempts == 2 and run.strategy == "ddp", 2 * TIMEOUT_S, "the next attempt")
    wait_for(lambda: isinstance(app.window.editor.active_page(), ComparePage), TIMEOUT_S, "the comparison")
    page = app.window.editor.active_page()
    assert isinstance(page, ComparePage)
    assert page.comparing.refs == [RunRef(path, 0), RunRef(path, 1)]
    assert run.state.attempts[0].saved_step is not None and not app.fixes._stopping
    # What is fixed next is the attempt that runs now.
    wait_for(lambda: run.config and run.config.strategy.use == "ddp", TIMEOUT_S, "the configuration")
