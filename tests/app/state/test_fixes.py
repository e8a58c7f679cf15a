"""A fix that is looked at is planned once, on the run's own devices, and shown until nobody looks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from rankdeck.run.plan_lines import AT_LEAST, CANNOT
from rankdeck_app.state.fixes import FixPlans
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.state.plan_text import FixPlan
from tests.helpers.fake_plan import PlanWorld, plan_line
from tests.helpers.written_run import MIB, WrittenRun, device_infos

DDP = {"strategy.use": "ddp"}


@pytest.fixture
def run(qtbot: QtBot, tmp_path: Path) -> Iterator[LiveRun]:
    written = WrittenRun(tmp_path / "runs", config={"strategy": {"use": "dp"}, "devices": {"use": "cpu:2"}})
    written.start(devices=device_infos(2))
    written.write_memory(0, 1, {0: {"parameters": 9 * MIB}, 1: {"parameters": MIB}})
    live = LiveRun(written.path)
    live.start()
    qtbot.waitUntil(lambda: bool(live.drain()) or (live.config is not None and len(live.devices) == 2))
    yield live
    live.close()
    written.lose()


def test_a_preview_is_planned_once_and_shown_while_hovered(
    qtbot: QtBot, world: PlanWorld, run: LiveRun
) -> None:
    world.set_output(
        [plan_line("ddp", 5 * MIB, configured=True), plan_line("ddp", 4 * MIB, label="ddp, other")]
    )
    plans = FixPlans(world.planner)
    plans.show(run, DDP)
    plans.hide()  # the pointer was on its way
    assert run.fix_plan is None and not world.requests
    plans.show(run, DDP)
    qtbot.waitUntil(lambda: run.fix_plan is not None and run.fix_plan.line is not None, timeout=20_000)
    assert [run.fix_bytes(device) for device in run.devices] == [5 * MIB, 5 * MIB]
    (request,) = world.requests
    assert request["arguments"][-2:] == ["--devices", "cpu:2"] and "ddp" in request["arguments"]
    plans.hide()
    assert run.fix_plan is None
    plans.show(run, DDP)
    qtbot.waitUntil(lambda: run.fix_plan is not None and run.fix_plan.line is not None, timeout=20_000)
    assert len(world.requests) == 1
    plans.close()


def test_a_fix_that_cannot_be_planned_has_a_reason(qtbot: QtBot, world: PlanWorld, run: LiveRun) -> None:
    world.set_output(
        [plan_line("ddp", configured=True, verdict=CANNOT, reason="It branches on a value.", devices=[])]
    )
    plans = FixPlans(world.planner)
    for changes, why in (
        (DDP, "It branches on a value."),
        ({"train.global_batch": 3}, "train.global_batch = 3"),
        ({"model.use": "mine.py:model"}, "not trusted"),
    ):
        plans.show(run, changes)
        qtbot.waitUntil(
            lambda why=why: run.fix_plan is not None and why in run.fix_plan.failure, timeout=20_000
        )
        assert run.fix_bytes(run.devices[0]) is None
        plans.hide()
    plans.close()


def test_a_fix_plan_text_says_predicted() -> None:
    fix_plan = FixPlan("DDP", plan_line("ddp", 31 * MIB))
    assert fix_plan.texts(30 * MIB) == (
        "with DDP: 30.0 MiB predicted on the fullest device",
        "with DDP: 30.0 MiB predicted",
        "30.0 MiB predicted",
    )
    # Of a bound no bar is drawn: the planner's own figure stands in.
    bound = FixPlan("DDP", plan_line("ddp", 31 * MIB, is_bound=True, bound=AT_LEAST))
    assert bound.texts(0)[0].startswith("with DDP: at least 31.0 MiB")


def test_an_unknown_fix_plan_is_described() -> None:
    assert FixPlan("DDP").texts(0)[0] == "with DDP: planning…"
    assert FixPlan("DDP", failure="the run's code is not trusted").texts(0) == (
        "with DDP: the run's code is not trusted", "with DDP: unknown",
    )  # fmt: skip
