"""The dashboard of a run over several hosts: rows by host, of many the fullest of each, and silence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pytest
from pytestqt.qtbot import QtBot

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck_app.composition import App
from rankdeck_app.shell.frame_clock import FrameClock
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.theme import Theme
from rankdeck_app.views.dashboard import run_chart_data, run_status
from rankdeck_app.views.dashboard.page import RunPage
from tests.helpers.app_window import open_run
from tests.helpers.written_run import MIB, WrittenRun, device_infos


@pytest.fixture
def follow(qtbot: QtBot, written: WrittenRun) -> Iterator[Callable[[], LiveRun]]:
    lives: list[LiveRun] = []

    def followed() -> LiveRun:
        live = LiveRun(written.path)
        lives.append(live)
        live.start()
        qtbot.waitUntil(lambda: live.drain() is not None and bool(live.devices) and live.outcome is not None)
        return live

    yield followed
    for live in lives:
        live.close()


def device_infos_of_hosts(num_hosts: int, of_each: int) -> list[events.DeviceInfo]:
    infos = device_infos(num_hosts * of_each)
    return [msgspec.structs.replace(info, host=f"box{info.index // of_each}") for info in infos]


def write_sample(written: WrittenRun, host: int, devices: Sequence[int]) -> None:
    """A second of what the sampler of a host reads."""
    busy = [events.DeviceSample(device=index, utilisation=0.5) for index in devices]
    written.writer(f"sampler-box{host}").write(events.Sample(interval_s=1.0, devices=busy))


def test_every_row_names_its_host(written: WrittenRun, follow: Callable[[], LiveRun]) -> None:
    written.start(devices=device_infos_of_hosts(2, 2))
    written.write_memory(0, 1, {index: {"parameters": 3 * MIB} for index in range(4)})
    live = follow()
    hosts = ["box0", "box0", "box1", "box1"]
    assert [bar.host for bar in run_chart_data.bars(live).bars] == hosts
    assert list(run_chart_data.heat(live).hosts) == hosts
    assert [row.host for row in run_chart_data.anatomy(live).rows] == hosts
    assert run_chart_data.bars(live).bars[3].label == "box1 Virtual 3" and not live.is_grouped_by_host


def test_many_devices_are_shown_as_the_fullest_of_each_host(
    qtbot: QtBot, written: WrittenRun, follow: Callable[[], LiveRun]
) -> None:
    written.start(devices=device_infos_of_hosts(5, 8))
    memory = {index: {"parameters": (3 + (index % 8 == 5) * (1 + index)) * MIB} for index in range(40)}
    written.write_memory(0, 1, memory)
    live = follow()
    qtbot.waitUntil(lambda: live.drain() is not None and live.charted_devices[0].device == 5)
    assert [device.device for device in live.charted_devices] == [5, 13, 21, 29, 37] and len(
        live.devices
    ) == 40
    chart_data = run_chart_data.bars(live)
    assert [bar.label for bar in chart_data.bars][:2] == ["box0 Virtual 5", "box1 Virtual 13"]
    assert [bar.total_bytes for bar in chart_data.bars] == [
        (4 + index) * MIB for index in (5, 13, 21, 29, 37)
    ]
    assert chart_data.imbalance is not None and chart_data.imbalance.device == 4
    assert run_chart_data.bars_subtitle(live, chart_data)[0].startswith("fullest device of each host; ")
    assert len(run_chart_data.heat(live).labels) == len(run_chart_data.band(live).labels) == 5


def test_many_devices_of_one_host_all_have_rows(written: WrittenRun, follow: Callable[[], LiveRun]) -> None:
    written.start(devices=device_infos(40))
    assert len(follow().charted_devices) == 40


def test_a_silent_host_is_named_and_its_readings_are_stale(
    qtbot: QtBot, written: WrittenRun, follow: Callable[[], LiveRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    written.start(devices=device_infos_of_hosts(2, 1))
    written.write_memory(0, 1, {index: {"parameters": 3 * MIB} for index in range(2)})
    written.write_steps(0, 1, [2.0])
    for host in range(2):
        write_sample(written, host, [host])
    live = follow()
    qtbot.waitUntil(lambda: live.drain() is not None and all(device.observed_s for device in live.devices))
    assert not live.silent_hosts and run_status.headline(live) is None
    live._host_liveness._last_heard_s["box1"] -= 61.0
    live.drain()
    assert live.silent_hosts.keys() == {"box1"}
    assert run_status.headline(live) == (
        "info",
        "box1 has not reported for 1:01.",
        "The data shown for this host is out of date.",
    )
    assert [bar.is_stale for bar in run_chart_data.bars(live).bars] == [False, True]
    write_sample(written, 1, [1])
    qtbot.waitUntil(lambda: live.drain() is not None and not live.silent_hosts)
    live._host_liveness._last_heard_s["box1"] -= 60.0
    written.end()
    qtbot.waitUntil(lambda: live.drain() is not None and live.is_over)
    assert not live.silent_hosts, "of a run that is over nothing more is told"


@pytest.mark.parametrize(
    ("rank", "message", "expected"),
    [(1, "SIGKILL", "Rank 1 on box1: SIGKILL"), (None, "box1 is gone", "box1 is gone")],
)
def test_the_banner_names_host_and_rank(
    written: WrittenRun, follow: Callable[[], LiveRun], rank: int | None, message: str, expected: str
) -> None:
    written.start(world_size=2, devices=device_infos_of_hosts(2, 1))
    problem = Problem("rank-killed", message, rank=rank)
    written.writer("supervisor").write(events.ProblemRaised(problem=problem))
    written.end("failed", 1)
    headline = run_status.headline(follow())
    assert headline is not None and headline[:2] == ("error", expected)


def test_device_usage_is_reported_by_host_and_index(
    qtbot: QtBot, make_app: Callable[[], App], written: WrittenRun
) -> None:
    app = make_app()
    written.start(devices=device_infos_of_hosts(2, 2))
    written.write_memory(0, 1, {index: {"parameters": (1 + index) * MIB} for index in range(4)})
    open_run(app, written.path)
    qtbot.waitUntil(lambda: app.tabs.usages()[1].get("box1", {}).get(1, (None,))[0] == 4 * MIB, timeout=5000)
    kind, usages = app.tabs.usages()
    assert kind == "virtual" and {host: list(usage) for host, usage in usages.items()} == {
        "box0": [0, 1],
        "box1": [0, 1],
    }
    assert [leads for _, _, leads in usages["box1"].values()] == [False, True]


def test_a_slow_frame_postpones_drawing_by_one_frame(written: WrittenRun, qtbot: QtBot) -> None:
    live = LiveRun(written.path)
    page = RunPage(live, Theme(), FrameClock(60), run_command=lambda _command: None)
    qtbot.addWidget(page)
    long_ago_s = time.thread_time() - 1.0
    assert [page._should_postpone("cards", long_ago_s) for _ in range(4)] == [True, False, True, False]
    assert not page._should_postpone("plots", time.thread_time())
    live.close()
