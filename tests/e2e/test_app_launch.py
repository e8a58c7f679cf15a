"""From a click to real training in a tab: the app, the engine's own processes, and nothing between them."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from rankdeck.run.run_state import read_run_state
from rankdeck.run_dir import RunDir, list_runs
from rankdeck_app.composition import App
from rankdeck_app.views.problems import ProblemsView
from rankdeck_app.views.starting import StartingPage
from rankdeck_app.views.welcome import WelcomePage
from tests.helpers.app_window import (
    close_app,
    num_event_lines,
    open_app,
    open_run,
    output_text,
    process_events,
    stop_all_runs,
    wait_for,
    wait_for_launch,
)

TIMEOUT_S = 60
FAST = """\
name = "Fast"
[model]
use = "mlp"
[data]
use = "digits"
[train]
steps = {steps}
evaluate_every = 0
verify = "off"
[strategy]
use = "{strategy}"
[devices]
use = "{devices}"
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


def configure(
    app: App, tmp_path: Path, steps: int = 40, strategy: str = "single", devices: str = "cpu:1"
) -> None:
    text = FAST.format(steps=steps, strategy=strategy, devices=devices)
    app.session.draft.replace(text, folder=tmp_path, stem="fast")


def test_one_click_launches_the_suggested_run(qtbot: QtBot, app: App) -> None:
    page = app.window.editor.active_page()
    assert isinstance(page, WelcomePage)
    qtbot.mouseClick(page.launch_button, Qt.MouseButton.LeftButton)
    app.session.io_thread.wait_for_done()
    assert isinstance(app.window.editor.active_page(), StartingPage)
    run = wait_for_launch(app)
    wait_for(lambda: len(run.state.losses) > 0, 120, "the first loss")
    assert run.strategy == "dp" and len(run.devices) == 4 and run.is_rehearsal
    wait_for(lambda: app.tabs.usages()[1], 10, "bytes on the device cards")
    state = app.window.status_bar.item("run")
    wait_for(lambda: state.text().startswith("Running · DP · step"), 10, "the step in the status bar")
    app.window.commands.run("run.stop")
    wait_for(lambda: run.outcome is not None and not run.is_live, TIMEOUT_S, "the end of the run")
    assert run.outcome == "stopped" and not app.window.commands.is_enabled("run.stop")


def test_a_launched_draft_completes_and_every_event_is_read(qtbot: QtBot, app: App, tmp_path: Path) -> None:
    configure(app, tmp_path, steps=30, strategy="ddp", devices="cpu:2")
    qtbot.keyClick(app.window, Qt.Key.Key_F5, Qt.KeyboardModifier.ControlModifier)
    run = wait_for_launch(app)
    wait_for(lambda: run.outcome == "completed", TIMEOUT_S, "the run's completion")
    assert (
        run.step == 30 and len(run.state.losses) == 30 and not run.problems and not run.state.counts.missing
    )
    assert run.state.num_events == num_event_lines(run.run_dir)
    wait_for(lambda: "completed, exit code 0" in output_text(app), 10, "the last line of output")
    assert "[rank 1] step 30" in output_text(app)
    assert app.session.workspace.folder.is_dir() and run.run_dir.path.parent == runs_folder()
    assert not list((app.window.services.state_folder / "launch").iterdir())


@pytest.mark.slow
def test_stop_ends_only_the_run_of_the_active_tab(app: App, tmp_path: Path) -> None:
    configure(app, tmp_path, steps=1_000_000)
    app.launcher.launch_draft()
    first = wait_for_launch(app)
    app.launcher.launch_draft()
    second = wait_for_launch(app)
    assert first.run_dir.path != second.run_dir.path
    wait_for(lambda: (first.step or 0) > 0 and (second.step or 0) > 0, TIMEOUT_S, "steps of both runs")
    steps = first.step, second.step
    wait_for(
        lambda: (first.step or 0) > (steps[0] or 0) and (second.step or 0) > (steps[1] or 0),
        20,
        "further steps of both runs",
    )
    app.window.commands.run("run.stop")
    wait_for(lambda: second.outcome == "stopped", 30, "the end of the active tab's run")
    assert first.is_live and first.run_dir.is_alive()
    open_run(app, first.run_dir.path)
    wait_for(lambda: app.window.commands.run("run.stopNow"), 5, "the first run's tab in front")
    wait_for(
        lambda: first.outcome == "stopped" and not first.run_dir.is_alive(), 30, "the end of the first run"
    )


def test_runs_outlive_the_window_and_are_listed_at_the_next_start(
    qtbot: QtBot, app: App, tmp_path: Path
) -> None:
    configure(app, tmp_path, steps=1_000_000)
    app.launcher.launch_draft()
    path = wait_for_launch(app).run_dir.path
    app.window.settings.set("window.restore_tabs", False)
    close_app(app)
    assert RunDir(path).is_alive()
    again = open_app(tmp_path / "workspace")
    try:
        wait_for(
            lambda: any("still running: Fast" in notice.text for notice in again.window.toasts.history),
            10,
            "the toast",
        )
        open_run(again, path)
        run = again.tabs.active()
        assert run is not None
        wait_for(lambda: run.is_live and (run.step or 0) > 0, 30, "the living run in a tab")
    finally:
        close_app(again)


def test_a_pending_launch_starts_although_the_window_closes(app: App, tmp_path: Path) -> None:
    configure(app, tmp_path, steps=1_000_000)
    app.session.io_thread.wait_for_done()
    app.session.io_thread.submit(partial(time.sleep, 0.5))
    app.launcher.launch_draft()
    assert not app.launcher.num_pending
    close_app(app)
    (run,) = list_runs(runs_folder())
    assert run.is_alive()


@pytest.mark.slow
def test_a_run_outlives_a_killed_app_and_reopens_with_every_event(
    qtbot: QtBot, app: App, tmp_path: Path
) -> None:
    draft = tmp_path / "fast.toml"
    draft.write_text(FAST.format(steps=1_000_000, strategy="single", devices="cpu:1"))
    command = [sys.executable, "-m", "tests.helpers.app_window", str(tmp_path / "other"), str(draft)]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    try:
        assert other.stdout is not None
        path = Path(other.stdout.readline().strip())
        assert RunDir(path).is_alive()
    finally:
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        assert other.stdout is not None
        other.stdout.close()
    step = read_run_state(RunDir(path)).step or 0
    open_run(app, path)
    run = app.tabs.active()
    assert run is not None
    wait_for(
        lambda: run.is_live and (run.step or 0) > step + 200, TIMEOUT_S, "steps after the app was killed"
    )
    app.window.commands.run("run.stop")
    wait_for(lambda: run.outcome == "stopped" and not run.is_live, TIMEOUT_S, "the end of its run")
    assert run.state.num_events == num_event_lines(run.run_dir) and not run.state.counts.missing
    assert len(run.state.losses) == run.step > step + 200


OWN_MODEL = """\
from pathlib import Path
from torch import nn

Path(__file__).with_name("ran").touch()


def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


def test_code_of_a_folder_runs_only_after_it_is_trusted(qtbot: QtBot, app: App, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "net.py").write_text(OWN_MODEL)
    configure(app, folder)
    app.session.draft.choose(("model",), "net.py:build")
    assert app.session.draft.config is not None
    app.launcher.launch_draft()
    app.session.io_thread.wait_for_done()
    question = app.launcher.trust_dialog
    assert question is not None and question.folders == [folder.resolve()]
    question.reject_button.click()
    process_events()
    assert not app.launcher.num_pending and not list_runs(runs_folder()) and not (folder / "ran").exists()

    app.launcher.launch_draft()
    app.session.io_thread.wait_for_done()
    question = app.launcher.trust_dialog
    assert question is not None
    question.accept_button.click()
    run = wait_for_launch(app)
    wait_for(lambda: run.outcome == "completed", TIMEOUT_S, "the completion of the trusted run")
    assert (folder / "ran").exists()
    app.launcher.launch_draft()
    app.session.io_thread.wait_for_done()
    assert app.launcher.trust_dialog is None, "a trusted folder is asked about once"
    wait_for_launch(app)


def test_a_refused_launch_is_explained_in_panel_and_toast(app: App, tmp_path: Path) -> None:
    configure(app, tmp_path)
    app.session.draft.set_values(
        {("data", "use"): "text", ("data", "args", "path"): str(tmp_path / "missing")}
    )
    app.session.draft.choose(("model",), "gpt")
    app.launcher.launch_draft()
    app.session.io_thread.wait_for_done()
    wait_for(lambda: not app.launcher.num_pending, TIMEOUT_S, "the engine's answer")
    view = app.window.panel._bodies["problems"]
    run = app.tabs.active()
    if run is None:
        assert "did not start" in app.window.toasts.history[-1].text
    else:
        wait_for(lambda: run.outcome == "failed" and run.problems, TIMEOUT_S, "the problem of the run")
    assert isinstance(view, ProblemsView)
    wait_for(lambda: view.rows, 5, "the problem in the panel")
    assert str(tmp_path / "missing") in view.rows[0].accessibleName() and view.rows[0].buttons


def test_an_exception_of_a_rank_is_a_problem_with_its_output(app: App, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        textwrap.dedent("""\
            from torch import nn
            class Bad(nn.Linear):
                def forward(self, x):
                    raise RuntimeError("the well is dry")
            def build():
                return Bad(64, 10)
            """)
    )
    app.session.trust.add(tmp_path)
    configure(app, tmp_path)
    app.session.draft.choose(("model",), "bad.py:build")
    app.launcher.launch_draft()
    run = wait_for_launch(app)
    wait_for(lambda: run.outcome == "failed" and run.problems, TIMEOUT_S, "the failure")
    wait_for(lambda: app.session.problems.num_errors, 5, "the entry")
    (entry, *_) = app.session.problems.entries
    assert "the well is dry" in entry.problem.message + " ".join(entry.problem.last_lines)
    assert app.window.status_bar.item("errors").text() != "0"
    labels = [label for label, _ in app.fixes.actions_of(entry)]
    assert labels == ["Show Output", "Show in File Manager"]
    app.fixes.actions_of(entry)[0][1]()
    wait_for(lambda: "the well is dry" in output_text(app), 10, "the rank's own words")
