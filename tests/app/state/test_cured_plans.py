"""A cure that somebody looks at is planned once, on the run's own devices, and shown until nobody does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from rankdeck.run.plan_lines import CANNOT
from rankdeck_app.state.cured_plans import CuredPlans
from rankdeck_app.state.live_run import LiveRun
from tests.helpers.told_plan import PlanWorld, line
from tests.helpers.written_run import MIB, WrittenRun, device_infos

DDP = {"strategy.use": "ddp"}


@pytest.fixture
def run(qtbot: QtBot, tmp_path: Path) -> Iterator[LiveRun]:
    written = WrittenRun(tmp_path / "runs", config={"strategy": {"use": "dp"}, "devices": {"use": "cpu:2"}})
    written.begin(devices=device_infos(2))
    written.memory(0, 1, {0: {"parameters": 9 * MIB}, 1: {"parameters": MIB}})
    live = LiveRun(written.path)
    live.start()
    qtbot.waitUntil(lambda: bool(live.drain()) or (live.config is not None and len(live.devices) == 2))
    yield live
    live.close()
    written.lose()


def test_a_look_plans_once_and_shows_until_nobody_looks(qtbot: QtBot, world: PlanWorld, run: LiveRun) -> None:
    world.tell([line("ddp", 5 * MIB, configured=True), line("ddp", 4 * MIB, label="ddp, other")])
    plans = CuredPlans(world.planner)
    plans.show(run, DDP)
    plans.hide()  # the pointer was on its way
    assert run.cured is None and not world.asked
    plans.show(run, DDP)
    qtbot.waitUntil(lambda: run.cured is not None and run.cured.line is not None, timeout=20_000)
    assert [run.cured_bytes_of(device) for device in run.devices] == [5 * MIB, 5 * MIB]
    (asked,) = world.asked
    assert asked["arguments"][-2:] == ["--devices", "cpu:2"] and "ddp" in asked["arguments"]
    plans.hide()
    assert run.cured is None
    plans.show(run, DDP)
    qtbot.waitUntil(lambda: run.cured is not None and run.cured.line is not None, timeout=20_000)
    assert len(world.asked) == 1
    plans.close()


def test_what_cannot_be_planned_says_why(qtbot: QtBot, world: PlanWorld, run: LiveRun) -> None:
    world.tell([line("ddp", configured=True, verdict=CANNOT, reason="It branches on a value.", devices=[])])
    plans = CuredPlans(world.planner)
    for cure, why in (
        (DDP, "It branches on a value."),
        ({"train.global_batch": 3}, "train.global_batch = 3"),
        ({"model.use": "mine.py:model"}, "not trusted"),
    ):
        plans.show(run, cure)
        qtbot.waitUntil(lambda why=why: run.cured is not None and why in run.cured.why_not, timeout=20_000)
        assert run.cured_bytes_of(run.devices[0]) is None
        plans.hide()
    plans.close()
