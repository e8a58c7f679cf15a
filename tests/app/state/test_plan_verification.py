"""Strategies of a plan are verified by the engine when a person asks, and for as long as the draft is the
same."""

from __future__ import annotations

import os
from collections.abc import Callable

from pytestqt.qtbot import QtBot

from rankdeck.run.plan_lines import CANNOT, FITS, PlannedDevice
from rankdeck_app.state.plan_verification import PENDING
from tests.helpers.fake_plan import PlanWorld, plan_line
from tests.helpers.verified import with_verification

WAIT_MS = 10_000


def wait_until(qtbot: QtBot, condition: Callable[[], object]) -> None:
    qtbot.waitUntil(lambda: bool(condition()), timeout=WAIT_MS)


def plan_all(qtbot: QtBot, world: PlanWorld) -> None:
    """With answers about four strategies, one of which cannot."""
    lines = [
        plan_line("ddp", configured=True),
        plan_line("fsdp"),
        plan_line("dp"),
        plan_line("tensor", verdict=CANNOT),
    ]
    world.set_output(lines)
    world.plan.set_wants_all(True)
    wait_until(qtbot, lambda: world.plan.is_complete)


def outcomes(world: PlanWorld) -> dict[str, str | None]:
    return {line.label: world.plan.verification.get_outcome(line) for line in world.plan.lines}


def tell_verification(then: str, world: PlanWorld) -> None:
    """What the engine is to say: two of them."""
    world.set_output(
        [
            with_verification("equal", plan_line("ddp", configured=True)),
            with_verification("differs", plan_line("fsdp")),
        ],
        then,
    )


def test_results_arrive_one_by_one(qtbot: QtBot, world: PlanWorld) -> None:
    plan_all(qtbot, world)
    assert set(outcomes(world).values()) == {None}
    tell_verification("hang", world)
    world.plan.verification.start()
    wait_until(qtbot, lambda: outcomes(world)["fsdp"] == "differs")
    assert outcomes(world) == {"ddp": "equal", "fsdp": "differs", "dp": PENDING, "tensor": None}
    arguments = world.requests[-1]["arguments"]
    assert "--verify" in arguments and arguments[arguments.index("--strategy") + 1] == "all"
    world.plan.verification.cancel()
    assert outcomes(world) == {"ddp": "equal", "fsdp": "differs", "dp": None, "tensor": None}, "kept"


def test_a_failed_verification_has_a_reason(qtbot: QtBot, world: PlanWorld) -> None:
    plan_all(qtbot, world)
    tell_verification("die", world)
    world.plan.verification.start()
    wait_until(qtbot, lambda: not world.plan.verification.is_running)
    assert "signal 9" in world.plan.verification.failure and outcomes(world)["ddp"] == "equal"
    tell_verification("", world)
    world.plan.verification.start()
    wait_until(qtbot, lambda: not world.plan.verification.is_running)
    assert world.plan.verification.failure == ""


def test_results_survive_a_new_plan_but_not_a_new_draft(qtbot: QtBot, world: PlanWorld) -> None:
    plan_all(qtbot, world)
    tell_verification("", world)
    world.plan.verification.start()
    wait_until(qtbot, lambda: not world.plan.verification.is_running)
    num_requests = len(world.requests)
    world.plan.plan_again()
    wait_until(qtbot, lambda: world.plan.is_complete and len(world.requests) == num_requests + 1)
    assert outcomes(world)["fsdp"] == "differs"
    world.draft.set_value(("strategy", "use"), "fsdp")
    world.draft.set_value(("train", "verify"), "off")
    assert outcomes(world)["fsdp"] == "differs" and world.plan.verification.is_different(
        world.plan.chosen_line
    )
    world.draft.set_value(("train", "global_batch"), 64)
    wait_until(qtbot, lambda: world.plan.is_complete)
    assert set(outcomes(world).values()) == {None}
    world.draft.set_value(("train", "global_batch"), 32)
    wait_until(qtbot, lambda: world.plan.is_complete)
    assert set(outcomes(world).values()) == {None}, "it is not brought back"


def test_a_new_draft_or_closing_ends_the_process(qtbot: QtBot, world: PlanWorld) -> None:
    plan_all(qtbot, world)
    for end in (lambda: world.draft.set_value(("train", "global_batch"), 64), world.plan.close):
        wait_until(qtbot, lambda: world.plan.is_complete)
        num_requests = len(world.requests)
        tell_verification("hang", world)
        world.plan.verification.start()
        wait_until(qtbot, lambda before=num_requests: len(world.requests) > before)
        tell_verification("", world)
        pid = world.requests[-1]["pid"]
        end()
        wait_until(qtbot, lambda ended_pid=pid: not _is_alive(ended_pid))
        assert not world.plan.verification.is_running


def test_too_many_devices_are_refused(qtbot: QtBot, world: PlanWorld) -> None:
    device = PlannedDevice(device=0, name="H100", active_bytes=1, total_bytes=1)
    world.set_output([plan_line("ddp", configured=True, verdict=FITS, devices=[device] * 65)])
    world.plan.set_wants_all(True)
    wait_until(qtbot, lambda: world.plan.is_complete)
    num_requests = len(world.requests)
    assert "at most 64" in world.plan.verification.obstacle
    world.plan.verification.start()
    assert not world.plan.verification.is_running and len(world.requests) == num_requests


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
