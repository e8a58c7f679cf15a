"""A strategy's step is asked for with the draft's own model, batch and devices, or the nearest that can."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pytestqt.qtbot import QtBot

from rankdeck.config.catalog import STRATEGIES
from rankdeck.run.movement import Movement, Part
from rankdeck.run.plan_lines import CANNOT
from rankdeck_app.state.step_movement import StepMovement, nearest, variants_of
from tests.helpers.told_plan import TEXT, PlanWorld, line

WAIT_MS = 10_000


def moved(num_devices: int) -> Movement:
    group = list(range(num_devices))
    parts = [
        Part("forward", 0, flops=9),
        Part("all-reduce", 0, num_bytes=2048, peers=group),
    ]
    return Movement({0: parts}, [0] * num_devices, [("data", num_devices)])


@pytest.fixture
def make(world: PlanWorld) -> Iterator[Callable[[str], StepMovement]]:
    made: list[StepMovement] = []

    def step_of(strategy: str) -> StepMovement:
        made.append(StepMovement(world.draft, world.planner, STRATEGIES[strategy], world.parent))
        return made[-1]

    yield step_of
    for step in made:
        step.close()


def asked(world: PlanWorld) -> list[list[str]]:
    return [entry["arguments"] for entry in world.asked]


def test_it_is_asked_when_somebody_looks_and_drawn_as_the_engine_answers(
    qtbot: QtBot, world: PlanWorld, make: Callable[[str], StepMovement]
) -> None:
    step = make("fsdp")
    world.tell([line("fsdp", configured=True, movement=moved(2)), line("fsdp", label="more")])
    assert not step.is_asking
    step.want(True)
    assert step.is_asking
    qtbot.waitUntil(lambda: step.timeline is not None, timeout=WAIT_MS)
    assert step.timeline is not None and step.timeline.in_words() == "all-reduce 4.0 KiB in 1"
    assert not step.is_asking and not step.notes and not step.problem
    (arguments,) = asked(world)
    assert arguments[-4:] == ["--json", "--strategy", "own", "--movement"]
    assert world.draft.value(("strategy", "use")) == "ddp", "the draft stays as it is"


def test_another_draft_drops_the_drawing_and_what_does_not_matter_keeps_it(
    qtbot: QtBot, world: PlanWorld, make: Callable[[str], StepMovement]
) -> None:
    step = make("ddp")
    world.tell([line("ddp", configured=True, movement=moved(2))])
    step.want(True)
    qtbot.waitUntil(lambda: step.timeline is not None, timeout=WAIT_MS)
    world.draft.set_value(("train", "steps"), 7)
    assert step.timeline is not None, "a step is the same in a longer run"
    world.draft.set_value(("train", "global_batch"), 64)
    assert step.timeline is None and step.is_asking
    qtbot.waitUntil(lambda: step.timeline is not None, timeout=WAIT_MS)
    step.want(False)
    world.draft.set_value(("train", "global_batch"), 32)
    assert step.timeline is None and not step.is_asking, "nobody looks"
    assert len(asked(world)) == 2


def test_a_planner_that_is_slow_is_ended_by_the_next_change(
    qtbot: QtBot, world: PlanWorld, make: Callable[[str], StepMovement]
) -> None:
    step = make("ddp")
    world.tell([], then="hang")
    step.ask()
    qtbot.waitUntil(lambda: len(world.asked) == 1, timeout=WAIT_MS)
    world.tell([line("ddp", configured=True, movement=moved(2))])
    step.want(True)
    step.set_variant({"sync": "ring"})
    qtbot.waitUntil(lambda: step.timeline is not None, timeout=WAIT_MS)
    assert len(world.asked) == 2


def test_a_planner_that_dies_is_said(
    qtbot: QtBot, world: PlanWorld, make: Callable[[str], StepMovement]
) -> None:
    step = make("ddp")
    world.tell([], then="die")
    step.ask()
    qtbot.waitUntil(lambda: bool(step.problem), timeout=WAIT_MS)
    assert "signal 9" in step.problem and step.timeline is None and not step.is_asking


def test_what_cannot_be_drawn_for_its_own_devices_is_drawn_for_others(
    qtbot: QtBot, world: PlanWorld, make: Callable[[str], StepMovement]
) -> None:
    step = make("tensor")
    cannot = line("tensor", configured=True, devices=[], verdict=CANNOT, reason="3 heads are not 2.")
    world.tell([cannot])
    step.ask()
    qtbot.waitUntil(lambda: bool(step.problem), timeout=WAIT_MS)
    assert len(asked(world)) == 2, "tried once more"
    assert step.notes == ["3 heads are not 2. Drawn for 4 virtual devices instead."]
    assert step.problem == "3 heads are not 2."


def test_gpus_that_are_not_here_are_virtual_devices_in_the_drawing(
    qtbot: QtBot, world: PlanWorld, make: Callable[[str], StepMovement]
) -> None:
    world.draft.set_value(("devices", "use"), "gpu:6,7")
    step = make("ddp")
    world.tell([], then="refuse")
    step.ask()
    qtbot.waitUntil(lambda: bool(step.problem), timeout=WAIT_MS)
    assert step.notes[0].startswith("There is no GPU 7. Use 0. Drawn for 4 virtual devices")


def test_nothing_is_asked_by_itself_where_planning_is_not_automatic(
    qtbot: QtBot, world: PlanWorld, make: Callable[[str], StepMovement]
) -> None:
    world.is_automatic = False
    step = make("ddp")
    world.tell([line("ddp", configured=True, movement=moved(2))])
    step.want(True)
    assert not step.is_asking
    step.ask()
    qtbot.waitUntil(lambda: step.timeline is not None, timeout=WAIT_MS)


def test_code_of_ones_own_is_not_run_unasked(world: PlanWorld, make: Callable[[str], StepMovement]) -> None:
    world.draft.replace(TEXT.replace('use = "mlp"', 'use = "mine:build"'), folder=world.folder, stem="mine")
    step = make("ddp")
    step.ask()
    assert step.needs_trust and "code of its own" in step.problem and not step.is_asking
    assert not world.asked


@pytest.mark.parametrize(
    ("strategy", "changes", "note"),
    [
        ("pipeline", {"devices.use": "cpu:1"}, 'Drawn as if you set devices.use = "cpu:2".'),
        ("pipeline-async", {"train.clip_norm": 1.0}, "Drawn as if you set train.clip_norm = 0."),
        ("ddp", {"train.global_batch": 33}, "Drawn as if you set train.global_batch = 32."),
    ],
)
def test_a_draft_that_cannot_run_it_is_mended_for_the_drawing(
    world: PlanWorld, strategy: str, changes: dict[str, Any], note: str
) -> None:
    world.draft.set_values({tuple(key.split(".")): value for key, value in changes.items()})
    drawable = nearest(world.draft, STRATEGIES[strategy], {}, None)
    assert drawable.config is not None and drawable.config.strategy.use == strategy
    assert drawable.notes and drawable.notes[0].endswith(note)


def test_what_has_no_cure_is_said_with_what_to_change(world: PlanWorld) -> None:
    world.draft.replace("[model]\nuse = 'nonsense'\n", folder=world.folder, stem="x")
    drawable = nearest(world.draft, STRATEGIES["ddp"], {}, None)
    assert drawable.config is None and drawable.problem is not None and drawable.problem.advice


def test_one_device_alone_is_drawn_with_more(
    qtbot: QtBot, world: PlanWorld, make: Callable[[str], StepMovement]
) -> None:
    world.draft.set_value(("devices", "use"), "cpu:1")
    step = make("ddp")
    world.tell([line("ddp", configured=True, movement=moved(4))])
    step.ask()
    qtbot.waitUntil(lambda: step.timeline is not None, timeout=WAIT_MS)
    assert step.notes == ["On one device nothing moves. Drawn for 4 virtual devices instead."]


def test_options_that_the_draft_has_stay_and_others_are_offered(
    world: PlanWorld, make: Callable[[str], StepMovement]
) -> None:
    world.draft.set_value(("strategy", "sync"), "ring")
    assert make("hybrid").options == {"sync": "ring"} and make("fsdp").options == {}
    offered = variants_of(STRATEGIES["ddp"], {"sync": "ring"}, 2)
    assert {"sync": "native"} in offered and {"sync": "ring"} not in offered
    assert {"compress": "powersgd"} in offered
    assert variants_of(STRATEGIES["fsdp"], {"reshard": False}, 2) == [{"reshard": True}]
    assert variants_of(STRATEGIES["single"], {}, 2) == []
    assert {"data": 2, "stage": 2} in variants_of(STRATEGIES["hybrid"], {}, 4)
