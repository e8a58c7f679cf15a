"""A strategy's step is asked for with the draft's own model, batch and devices, or the nearest that can."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pytestqt.qtbot import QtBot

from rankdeck.config.catalog import STRATEGIES
from rankdeck.run.movement import Movement, Operation
from rankdeck.run.plan_lines import CANNOT
from rankdeck_app.state.step_movement import StepMovement, list_variants, make_runnable
from tests.helpers.fake_plan import TEXT, PlanWorld, plan_line

WAIT_MS = 10_000


def make_movement(num_devices: int) -> Movement:
    group = list(range(num_devices))
    operations = [
        Operation("forward", 0, flops=9),
        Operation("all-reduce", 0, num_bytes=2048, peers=group),
    ]
    return Movement({0: operations}, [0] * num_devices, [("data", num_devices)])


@pytest.fixture
def make(world: PlanWorld) -> Iterator[Callable[[str], StepMovement]]:
    movements: list[StepMovement] = []

    def step_of(strategy: str) -> StepMovement:
        movements.append(StepMovement(world.draft, world.planner, STRATEGIES[strategy], world.parent))
        return movements[-1]

    yield step_of
    for step in movements:
        step.close()


def planner_arguments(world: PlanWorld) -> list[list[str]]:
    return [entry["arguments"] for entry in world.requests]


def test_a_step_is_planned_when_visible_and_drawn_from_the_answer(
    qtbot: QtBot, world: PlanWorld, make: Callable[[str], StepMovement]
) -> None:
    step = make("fsdp")
    world.set_output(
        [plan_line("fsdp", configured=True, movement=make_movement(2)), plan_line("fsdp", label="more")]
    )
    assert not step.is_planning
    step.set_wanted(True)
    assert step.is_planning
    qtbot.waitUntil(lambda: step.timeline is not None, timeout=WAIT_MS)
    assert step.timeline is not None and step.timeline.text() == "all-reduce 4.0 KiB (1×)"
    assert not step.is_planning and not step.notes and not step.problem
    (arguments,) = planner_arguments(world)
    assert arguments[-4:] == ["--json", "--strategy", "own", "--movement"]
    assert world.draft.value(("strategy", "use")) == "ddp", "the draft stays as it is"


def test_only_relevant_changes_drop_the_drawing(
    qtbot: QtBot, world: PlanWorld, make: Callable[[str], StepMovement]
) -> None:
    step = make("ddp")
    world.set_output([plan_line("ddp", configured=True, movement=make_movement(2))])
    step.set_wanted(True)
    qtbot.waitUntil(lambda: step.timeline is not None, timeout=WAIT_MS)
    world.draft.set_value(("train", "steps"), 7)
    assert step.timeline is not None, "a step is the same in a longer run"
    world.draft.set_value(("train", "global_batch"), 64)
    assert step.timeline is None and step.is_planning
    qtbot.waitUntil(lambda: step.timeline is not None, timeout=WAIT_MS)
    step.set_wanted(False)
    world.draft.set_value(("train", "global_batch"), 32)
    assert step.timeline is None and not step.is_planning, "nobody looks"
    assert len(planner_arguments(world)) == 2


def test_the_next_change_ends_a_slow_planner(
    qtbot: QtBot, world: PlanWorld, make: Callable[[str], StepMovement]
) -> None:
    step = make("ddp")
    world.set_output([], then="hang")
    step.plan_now()
    qtbot.waitUntil(lambda: len(world.requests) == 1, timeout=WAIT_MS)
    world.set_output([plan_line("ddp", configured=True, movement=make_movement(2))])
    step.set_wanted(True)
    step.set_variant({"sync": "ring"})
    qtbot.waitUntil(lambda: step.timeline is not None, timeout=WAIT_MS)
    assert len(world.requests) == 2


def test_a_dead_planner_is_reported(
    qtbot: QtBot, world: PlanWorld, make: Callable[[str], StepMovement]
) -> None:
    step = make("ddp")
    world.set_output([], then="die")
    step.plan_now()
    qtbot.waitUntil(lambda: bool(step.problem), timeout=WAIT_MS)
    assert "signal 9" in step.problem and step.timeline is None and not step.is_planning


def test_other_devices_are_drawn_where_the_own_cannot(
    qtbot: QtBot, world: PlanWorld, make: Callable[[str], StepMovement]
) -> None:
    step = make("tensor")
    cannot = plan_line("tensor", configured=True, devices=[], verdict=CANNOT, reason="3 heads are not 2.")
    world.set_output([cannot])
    step.plan_now()
    qtbot.waitUntil(lambda: bool(step.problem), timeout=WAIT_MS)
    assert len(planner_arguments(world)) == 2, "tried once more"
    assert step.notes == ["3 heads are not 2. The step is drawn for 4 virtual devices instead."]
    assert step.problem == "3 heads are not 2."


def test_missing_gpus_are_drawn_as_virtual_devices(
    qtbot: QtBot, world: PlanWorld, make: Callable[[str], StepMovement]
) -> None:
    world.draft.set_value(("devices", "use"), "gpu:6,7")
    step = make("ddp")
    world.set_output([], then="refuse")
    step.plan_now()
    qtbot.waitUntil(lambda: bool(step.problem), timeout=WAIT_MS)
    assert step.notes[0].startswith("There is no GPU 7. Use 0. The step is drawn for 4 virtual devices")


def test_manual_planning_starts_no_drawing(
    qtbot: QtBot, world: PlanWorld, make: Callable[[str], StepMovement]
) -> None:
    world.is_automatic = False
    step = make("ddp")
    world.set_output([plan_line("ddp", configured=True, movement=make_movement(2))])
    step.set_wanted(True)
    assert not step.is_planning
    step.plan_now()
    qtbot.waitUntil(lambda: step.timeline is not None, timeout=WAIT_MS)


def test_user_code_needs_trust(world: PlanWorld, make: Callable[[str], StepMovement]) -> None:
    world.draft.replace(TEXT.replace('use = "mlp"', 'use = "mine:build"'), folder=world.folder, stem="mine")
    step = make("ddp")
    step.plan_now()
    assert step.needs_trust and "not trusted yet" in step.problem and not step.is_planning
    assert not world.requests


@pytest.mark.parametrize(
    ("strategy", "changes", "note"),
    [
        ("pipeline", {"devices.use": "cpu:1"}, 'The step is drawn with devices.use = "cpu:2".'),
        ("pipeline-async", {"train.clip_norm": 1.0}, "The step is drawn with train.clip_norm = 0."),
        ("ddp", {"train.global_batch": 33}, "The step is drawn with train.global_batch = 32."),
    ],
)
def test_an_invalid_draft_is_fixed_for_the_drawing(
    world: PlanWorld, strategy: str, changes: dict[str, Any], note: str
) -> None:
    world.draft.set_values({tuple(key.split(".")): value for key, value in changes.items()})
    drawable = make_runnable(world.draft, STRATEGIES[strategy], {}, None)
    assert drawable.config is not None and drawable.config.strategy.use == strategy
    assert drawable.notes and drawable.notes[0].endswith(note)


def test_a_problem_without_a_fix_has_advice(world: PlanWorld) -> None:
    world.draft.replace("[model]\nuse = 'nonsense'\n", folder=world.folder, stem="x")
    drawable = make_runnable(world.draft, STRATEGIES["ddp"], {}, None)
    assert drawable.config is None and drawable.problem is not None and drawable.problem.advice


def test_a_single_device_is_drawn_with_several(
    qtbot: QtBot, world: PlanWorld, make: Callable[[str], StepMovement]
) -> None:
    world.draft.set_value(("devices", "use"), "cpu:1")
    step = make("ddp")
    world.set_output([plan_line("ddp", configured=True, movement=make_movement(4))])
    step.plan_now()
    qtbot.waitUntil(lambda: step.timeline is not None, timeout=WAIT_MS)
    note = "On a single device, no data moves. The step is drawn for 4 virtual devices instead."
    assert step.notes == [note]


def test_options_of_the_draft_are_not_offered_as_variants(
    world: PlanWorld, make: Callable[[str], StepMovement]
) -> None:
    world.draft.set_value(("strategy", "sync"), "ring")
    assert make("hybrid").options == {"sync": "ring"} and make("fsdp").options == {}
    offered = list_variants(STRATEGIES["ddp"], {"sync": "ring"}, 2)
    assert {"sync": "native"} in offered and {"sync": "ring"} not in offered
    assert {"compress": "powersgd"} in offered
    assert list_variants(STRATEGIES["fsdp"], {"reshard": False}, 2) == [{"reshard": True}]
    assert list_variants(STRATEGIES["single"], {}, 2) == []
    assert {"data": 2, "stage": 2} in list_variants(STRATEGIES["hybrid"], {}, 4)
