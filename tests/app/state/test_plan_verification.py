"""Strategies of a plan are verified by the engine when a person asks, and for as long as the draft is the
same."""

from __future__ import annotations

import os
from collections.abc import Callable

from pytestqt.qtbot import QtBot

from rankdeck.run.plan_lines import CANNOT, FITS, PlannedDevice
from rankdeck_app.state.plan_verification import PENDING
from tests.helpers.told_plan import PlanWorld, line
from tests.helpers.verified import verified_as

WAIT_MS = 10_000


def until(qtbot: QtBot, condition: Callable[[], object]) -> None:
    qtbot.waitUntil(lambda: bool(condition()), timeout=WAIT_MS)


def planned(qtbot: QtBot, world: PlanWorld) -> None:
    """With answers about four strategies, one of which cannot."""
    lines = [line("ddp", configured=True), line("fsdp"), line("dp"), line("tensor", verdict=CANNOT)]
    world.tell(lines)
    world.plan.want_all(True)
    until(qtbot, lambda: world.plan.is_complete)


def outcomes(world: PlanWorld) -> dict[str, str | None]:
    return {line.label: world.plan.verification.outcome_of(line) for line in world.plan.lines}


def found(then: str, world: PlanWorld) -> None:
    """What the engine is to say: two of them."""
    world.tell(
        [verified_as("equal", line("ddp", configured=True)), verified_as("differs", line("fsdp"))], then
    )


def test_answers_come_one_by_one_and_the_others_are_awaited(qtbot: QtBot, world: PlanWorld) -> None:
    planned(qtbot, world)
    assert set(outcomes(world).values()) == {None}
    found("hang", world)
    world.plan.verification.start()
    until(qtbot, lambda: outcomes(world)["fsdp"] == "differs")
    assert outcomes(world) == {"ddp": "equal", "fsdp": "differs", "dp": PENDING, "tensor": None}
    arguments = world.asked[-1]["arguments"]
    assert "--verify" in arguments and arguments[arguments.index("--strategy") + 1] == "all"
    world.plan.verification.cancel()
    assert outcomes(world) == {"ddp": "equal", "fsdp": "differs", "dp": None, "tensor": None}, "kept"


def test_it_ends_with_the_process_and_says_why_it_did(qtbot: QtBot, world: PlanWorld) -> None:
    planned(qtbot, world)
    found("die", world)
    world.plan.verification.start()
    until(qtbot, lambda: not world.plan.verification.is_running)
    assert "signal 9" in world.plan.verification.failure and outcomes(world)["ddp"] == "equal"
    found("", world)
    world.plan.verification.start()
    until(qtbot, lambda: not world.plan.verification.is_running)
    assert world.plan.verification.failure == ""


def test_what_was_found_survives_another_plan_but_no_other_draft(qtbot: QtBot, world: PlanWorld) -> None:
    planned(qtbot, world)
    found("", world)
    world.plan.verification.start()
    until(qtbot, lambda: not world.plan.verification.is_running)
    asked = len(world.asked)
    world.plan.ask_again()
    until(qtbot, lambda: world.plan.is_complete and len(world.asked) == asked + 1)
    assert outcomes(world)["fsdp"] == "differs"
    world.draft.set_value(("strategy", "use"), "fsdp")
    world.draft.set_value(("train", "verify"), "off")
    assert outcomes(world)["fsdp"] == "differs" and world.plan.verification.differs(world.plan.chosen)
    world.draft.set_value(("train", "global_batch"), 64)
    until(qtbot, lambda: world.plan.is_complete)
    assert set(outcomes(world).values()) == {None}
    world.draft.set_value(("train", "global_batch"), 32)
    until(qtbot, lambda: world.plan.is_complete)
    assert set(outcomes(world).values()) == {None}, "it is not brought back"


def test_another_draft_ends_the_process_and_so_does_closing(qtbot: QtBot, world: PlanWorld) -> None:
    planned(qtbot, world)
    for end in (lambda: world.draft.set_value(("train", "global_batch"), 64), world.plan.close):
        until(qtbot, lambda: world.plan.is_complete)
        asked = len(world.asked)
        found("hang", world)
        world.plan.verification.start()
        until(qtbot, lambda before=asked: len(world.asked) > before)
        found("", world)
        pid = world.asked[-1]["pid"]
        end()
        until(qtbot, lambda one=pid: not _is_alive(one))
        assert not world.plan.verification.is_running


def test_more_devices_than_a_rehearsal_has_are_refused(qtbot: QtBot, world: PlanWorld) -> None:
    device = PlannedDevice(device=0, name="H100", active_bytes=1, total_bytes=1)
    world.tell([line("ddp", configured=True, verdict=FITS, devices=[device] * 65)])
    world.plan.want_all(True)
    until(qtbot, lambda: world.plan.is_complete)
    asked = len(world.asked)
    assert "at most 64" in world.plan.verification.obstacle
    world.plan.verification.start()
    assert not world.plan.verification.is_running and len(world.asked) == asked


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
