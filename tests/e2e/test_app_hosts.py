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
from rankdeck.rundir import list_folder
from rankdeck_app.composition import App
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.views.dashboard.page import RunPage
from tests.helpers.app_window import close_app, end_all_runs, launched, open_app, settle, wait_for
from tests.helpers.near_hosts import NearHosts

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
BEGIN_S, TELL_S = 120, 30


@pytest.fixture
def near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NearHosts:
    return NearHosts(tmp_path / "hosts", monkeypatch)


@pytest.fixture
def app(qtbot: QtBot, tmp_path: Path, near: NearHosts) -> Iterator[App]:
    app = open_app(tmp_path / "workspace")
    yield app
    close_app(app)
    for host in ("box1", "box2"):
        end_all_runs(near.runs(host))
    gc.collect()
    settle()


def copier(run: LiveRun) -> psutil.Process:
    """What brings the copy here."""
    assert run.copying is not None
    wait_for(lambda: run.copying and run.copying.pid, TELL_S, "what copies")
    return psutil.Process(run.copying.pid)


def far_ends(run: LiveRun) -> list[psutil.Process]:
    children = copier(run).children(recursive=True)
    return [one for one in children if "serve" in " ".join(one.cmdline())]


def goes_on(run: LiveRun) -> None:
    seen = run.step or 0
    wait_for(lambda: (run.step or 0) > seen, BEGIN_S, "further steps")


def begun(qtbot: QtBot, app: App, folder: Path) -> LiveRun:
    app.session.draft.replace(JOB, folder=folder, stem="over")
    qtbot.keyClick(app.window, Qt.Key.Key_F5, Qt.KeyboardModifier.ControlModifier)
    run = launched(app)
    wait_for(lambda: run.step, BEGIN_S, "a first step")
    return run


def test_a_run_that_other_hosts_have_is_begun_watched_and_stopped(
    qtbot: QtBot, app: App, near: NearHosts, tmp_path: Path
) -> None:
    run = begun(qtbot, app, tmp_path)
    assert run.run.path.is_relative_to(copies_dir())
    (there,) = list_folder(near.runs("box1"))
    assert there.name == run.run.name and not list_folder(Path(os.environ["RANKDECK_RUNS"]))
    wait_for(lambda: [one.host for one in run.devices] == ["box1", "box2"], TELL_S, "devices of both hosts")

    wait_for(lambda: far_ends(run), TELL_S, "the far end of the pipe")
    (far_end,) = far_ends(run)
    far_end.send_signal(signal.SIGSTOP)
    page = app.window.editor.active_page()
    assert isinstance(page, RunPage)
    wait_for(lambda: "box1 has told nothing for" in page._banner.text, TELL_S, "words of its silence")
    far_end.send_signal(signal.SIGCONT)
    wait_for(lambda: not run.silent_hosts, TELL_S, "an answer")
    copier(run).kill()
    goes_on(run)

    app.window.commands.run("run.stop")
    wait_for(lambda: run.outcome == "stopped", TELL_S, "the end")
    assert there.outcome() == "stopped" and not run.fold.counts.missing and not run.problems


@pytest.mark.slow
def test_it_is_resumed_where_it_was_and_seen_again(
    qtbot: QtBot, app: App, near: NearHosts, tmp_path: Path
) -> None:
    run = begun(qtbot, app, tmp_path)
    (there,) = list_folder(near.runs("box1"))
    for _ in range(2):
        app.window.commands.run("run.stop")
        wait_for(lambda: run.outcome == "stopped" and not there.is_alive(), TELL_S, "the end")
        app.window.commands.run("run.resume")
        wait_for(lambda: run.is_live, BEGIN_S, "the next attempt")
        goes_on(run)
    assert run.run.path.is_relative_to(copies_dir()) and there.next_attempt() == 3
