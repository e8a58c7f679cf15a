"""The app on simulated GPUs: its sampler, cards, tab and status bar, through what a driver can do.

The library is the simulated one of tests/helpers/nvmlsim.c; real pynvml reads it in a process of its own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pytestqt.qtbot import QtBot

from rankdeck_app.composition import App
from rankdeck_app.state import device_feed
from rankdeck_app.state.engine_process import EngineStream
from rankdeck_app.views.devices.page import DevicesPage
from rankdeck_app.views.launch.side_bar import LaunchView
from tests.helpers.app_window import app_that_trains, close_app, wait_for, wait_for_launch
from tests.helpers.nvmlsim import CRASH, GIB, GPU_IS_LOST, NOT_SUPPORTED, SimulatedGpus, build

DEADLINE_S = 40
FAST = """\
name = "Fast"
[model]
use = "mlp"
[data]
use = "digits"
[train]
steps = 2000
evaluate_every = 0
verify = "off"
[strategy]
use = "dp"
[devices]
use = "cpu:8"
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def gpus(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedGpus:
    """Eight of them, in the environment of the app."""
    gpus = SimulatedGpus(tmp_path / "gpus", 8, library)
    for name, value in gpus.simulated_environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(device_feed, "MIN_PAUSE_S", 0.1)
    gpus.simulate_load(1.0)
    return gpus


@pytest.fixture
def app(qtbot: QtBot, tmp_path: Path, gpus: SimulatedGpus) -> Iterator[App]:
    with app_that_trains(tmp_path / "workspace", samples=True) as app:
        yield app


def card_descriptions(app: App) -> list[str]:
    view = app.window.show_activity("launch")
    assert isinstance(view, LaunchView)
    return [card.accessibleDescription() for card in view.devices.local_devices.grid.cards]


def wait_for_readings(app: App, count: int = 8) -> None:
    wait_for(lambda: len(app.session.gpus.devices) == count, DEADLINE_S, f"{count} GPUs")
    app.session.draft.set_value(("devices", "use"), "gpu:all")
    wait_for(
        lambda: all("°C" in text for text in card_descriptions(app)), DEADLINE_S, "readings on every card"
    )


def problem_codes(app: App) -> set[str]:
    return {entry.problem.code for entry in app.session.problems.entries}


def open_devices_page(app: App) -> DevicesPage:
    app.window.commands.run("devices.show")
    page = app.window.editor.active_page()
    assert isinstance(page, DevicesPage)
    return page


def test_cards_and_tab_show_gpus_during_a_rehearsal(app: App, gpus: SimulatedGpus) -> None:
    wait_for_readings(app)
    gpus.device(2).used = 40 * GIB
    wait_for(lambda: "40.0 GiB in use" in card_descriptions(app)[2], DEADLINE_S, "40 GiB on GPU 2")
    text = app.window.status_bar.item("gpus").text()
    assert text.startswith("8 simulated GPUs · ") and text.endswith(" of 637 GiB")
    blocker = app.launcher.blocker()
    assert blocker is not None and "simulated" in blocker.message
    app.session.draft.set_text(FAST)
    app.launcher.launch_draft()
    run = wait_for_launch(app)
    wait_for(lambda: (run.step or 0) > 3, 60, "steps")
    page = open_devices_page(app)
    wait_for(lambda: len(page.table.data.rows) == 8, DEADLINE_S, "eight rows")
    wait_for(lambda: app.session.gpus.reading(gpus.uuid(0), "fan").state == "unsupported", DEADLINE_S, "fan")
    assert {device.info.kind for device in run.devices} == {"virtual"}, "ranks know nothing of simulated GPUs"
    assert page.breadcrumbs()[-1] == "simulated devices"


def test_driver_errors_are_reported_and_the_app_continues(app: App, gpus: SimulatedGpus) -> None:
    wait_for_readings(app)
    gpus.fail(4, "POWER", NOT_SUPPORTED)
    wait_for(lambda: " W" not in card_descriptions(app)[4], DEADLINE_S, "power of GPU 4 to be unsupported")
    gpus.xid(3, 63)
    gpus.fail(5, "ANY", GPU_IS_LOST)
    wait_for(lambda: card_descriptions(app)[5].startswith("lost "), DEADLINE_S, "GPU 5 lost")
    wait_for(lambda: {"lost", "xid"} <= problem_codes(app), DEADLINE_S, "both problems")
    gpus.fail(1, "MEMORY", CRASH)
    wait_for(
        lambda: card_descriptions(app)[1].startswith("lost "), DEADLINE_S, "the GPU that crashes the library"
    )
    gpus.device(0).used = 50 * GIB
    wait_for(lambda: "50.0 GiB in use" in card_descriptions(app)[0], DEADLINE_S, "GPU 0 after the crash")
    assert "restarted" in problem_codes(app)


def sampler_pids(app: App) -> list[int]:
    """Their processes that are being read."""
    return [stream.pid for stream in app.session.engine.findChildren(EngineStream) if stream.pid]


def test_a_killed_sampler_restarts_and_ends_with_the_app(app: App, gpus: SimulatedGpus) -> None:
    wait_for_readings(app)
    (first,) = sampler_pids(app)
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: sampler_pids(app) not in ([], [first]), DEADLINE_S, "another sampler")
    gpus.device(6).used = 33 * GIB
    wait_for(
        lambda: "33.0 GiB in use" in card_descriptions(app)[6], DEADLINE_S, "readings of the other sampler"
    )
    (pid,) = sampler_pids(app)
    tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    close_app(app)
    ended, alive = psutil.wait_procs(tree, timeout=5)
    assert len(ended) >= 2 and not alive


def test_a_slow_driver_does_not_block_the_window(app: App, gpus: SimulatedGpus) -> None:
    import time

    wait_for_readings(app)
    gpus.delay("MEMORY", 2.0)
    longest_s, before_s = 0.0, time.monotonic()

    def stale() -> bool:
        nonlocal longest_s, before_s
        now_s = time.monotonic()
        longest_s, before_s = max(longest_s, now_s - before_s), now_s
        return any(
            "old readings" in card.accessibleDescription() for card in view.devices.local_devices.grid.cards
        )

    view = app.window.show_activity("launch")
    assert isinstance(view, LaunchView)
    wait_for(stale, DEADLINE_S, "old readings")
    assert longest_s < 1.5, "a call of 2 s in the window's own process would show"
