"""A fix is taken from the app: a run is saved, stopped, resumed under it, and its attempts are compared."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from rankdeck.compare.naming import RunAt
from rankdeck_app.composition import App
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.views.compare.page import ComparePage
from tests.helpers.app_window import app_that_trains, launched, wait_for

WITHIN_S = 60
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


def said(app: App, words: str) -> bool:
    return any(words in notice.text for notice in app.window.toasts.history)


def started(app: App, tmp_path: Path) -> LiveRun:
    app.session.draft.replace(CONFIG, folder=tmp_path, stem="even")
    app.launching.launch_draft()
    run = launched(app)
    wait_for(lambda: (run.step or 0) > 3, WITHIN_S, "the first steps")
    return run


@pytest.mark.slow
def test_a_live_run_is_switched_and_what_cannot_be_done_stops_nothing(app: App, tmp_path: Path) -> None:
    run = started(app, tmp_path)
    path = run.run.path
    app.fixes.take(path, {"train.global_batch": 3})
    assert said(app, "It stays as it is: train.global_batch = 3")
    # No checkpoint can be saved: something else lies where they would.
    shutil.rmtree(run.run.checkpoints_folder, ignore_errors=True)
    run.run.checkpoints_folder.write_text("in the way")
    app.fixes.take(path, DDP)
    wait_for(lambda: said(app, "no checkpoint could be saved") or run.is_over, 150, "the refusal")
    at = run.step or 0
    wait_for(lambda: (run.step or 0) > at, WITHIN_S, "it to train on")
    run.run.checkpoints_folder.unlink()

    app.fixes.take(path, DDP)
    wait_for(lambda: run.fold.num_attempts == 2 and run.strategy == "ddp", 2 * WITHIN_S, "the next attempt")
    wait_for(lambda: isinstance(app.window.editor.active_page(), ComparePage), WITHIN_S, "the comparison")
    page = app.window.editor.active_page()
    assert isinstance(page, ComparePage)
    assert page.comparing.ats == [RunAt(path, 0), RunAt(path, 1)]
    assert run.fold.attempts[0].saved_step is not None and not app.fixes._stopping
    # What is fixed next is the attempt that runs now.
    wait_for(lambda: run.config and run.config.strategy.use == "ddp", WITHIN_S, "the configuration")
