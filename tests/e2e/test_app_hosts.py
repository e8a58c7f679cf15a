"""The app and a run of several hosts: begun with a click, seen through a copy, silent and back, resumed."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from rankdeck.base.home import copies_dir
from rankdeck.run_dir import list_folder
from rankdeck_app.composition import App
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.views.dashboard.page import RunPage
from tests.helpers.app_window import (
    close_app,
    open_app,
    process_events,
    stop_all_runs,
    wait_for,
    wait_for_launch,
)
from tests.helpers.fake_ssh_hosts import FakeSshHosts
from tests.helpers.processes import command_line

JOB = """\
[model]
use = "mlp"
[data]
use = "digits"
[train]
steps = 1_000_000
evaluate_every = 0
verify = "off"
[strategy]
use = "ddp"
[devices]
use = "cpu:1"
[rehearsal]
pace = "simulated"
[hosts]
use = ["box1", "box2"]
"""
START_TIMEOUT_S, UPDATE_TIMEOUT_S = 120, 30


@pytest.fixture
def near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSshHosts:
    return FakeSshHosts(tmp_path / "hosts", monkeypatch)


@pytest.fixture
def app(qtbot: QtBot, tmp_path: Path, near: FakeSshHosts) -> Iterator[App]:
    app = open_app(tmp_path / "workspace")
    yield app
    close_app(app)
    for host in ("box1", "box2"):
        stop_all_runs(near.runs(host))
    gc.collect()
    process_events()


def copy_process(run: LiveRun) -> psutil.Process:
    """What brings the copy here."""
    assert run.copier is not None
    wait_for(lambda: run.copier and run.copier.pid, UPDATE_TIMEOUT_S, "what copies")
    return psutil.Process(run.copier.pid)


def server_processes(run: LiveRun) -> list[psutil.Process]:
    children = copy_process(run).children(recursive=True)
    return [child for child in children if "serve" in " ".join(command_line(child))]


def wait_for_progress(run: LiveRun) -> None:
    step = run.step or 0
    wait_for(lambda: (run.step or 0) > step, START_TIMEOUT_S, "further steps")


def start_run(qtbot: QtBot, app: App, folder: Path) -> LiveRun:
    app.session.draft.replace(JOB, folder=folder, stem="over")
    qtbot.keyClick(app.window, Qt.Key.Key_F5, Qt.KeyboardModifier.ControlModifier)
    run = wait_for_launch(app)
    wait_for(lambda: run.step, START_TIMEOUT_S, "a first step")
    return run


def test_a_multi_host_run_is_started_watched_and_stopped(
    qtbot: QtBot, app: App, near: FakeSshHosts, tmp_path: Path
) -> None:
    run = start_run(qtbot, app, tmp_path)
    assert run.run_dir.path.is_relative_to(copies_dir())
    (there,) = list_folder(near.runs("box1"))
    assert there.name == run.run_dir.name and not list_folder(Path(os.environ["RANKDECK_RUNS"]))
    wait_for(
        lambda: [device.host for device in run.devices] == ["box1", "box2"],
        UPDATE_TIMEOUT_S,
        "devices of both hosts",
    )

    wait_for(lambda: server_processes(run), UPDATE_TIMEOUT_S, "the far end of the pipe")
    (far_end,) = server_processes(run)
    far_end.send_signal(signal.SIGSTOP)
    page = app.window.editor.active_page()
    assert isinstance(page, RunPage)
    wait_for(
        lambda: "box1 has not reported for" in page._banner.text, UPDATE_TIMEOUT_S, "words of its silence"
    )
    far_end.send_signal(signal.SIGCONT)
    wait_for(lambda: not run.silent_hosts, UPDATE_TIMEOUT_S, "an answer")
    copy_process(run).kill()
    wait_for_progress(run)

    app.window.commands.run("run.stop")
    wait_for(lambda: run.outcome == "stopped", UPDATE_TIMEOUT_S, "the end")
    assert there.outcome() == "stopped" and not run.state.counts.missing and not run.problems


@pytest.mark.slow
def test_a_multi_host_run_is_resumed_on_its_hosts(
    qtbot: QtBot, app: App, near: FakeSshHosts, tmp_path: Path
) -> None:
    run = start_run(qtbot, app, tmp_path)
    (there,) = list_folder(near.runs("box1"))
    for _ in range(2):
        app.window.commands.run("run.stop")
        wait_for(lambda: run.outcome == "stopped" and not there.is_alive(), UPDATE_TIMEOUT_S, "the end")
        app.window.commands.run("run.resume")
        wait_for(lambda: run.is_live, START_TIMEOUT_S, "the next attempt")
        wait_for_progress(run)
    assert run.run_dir.path.is_relative_to(copies_dir()) and there.next_attempt() == 3
