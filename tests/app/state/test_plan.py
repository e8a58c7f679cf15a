"""The plan of the draft: answers are folded as they come, outdated ones dropped, no process outlives it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pytestqt.qtbot import QtBot

from rankdeck.config import from_dict
from rankdeck.run.plan_lines import CANNOT, DOES_NOT_FIT, FITS, StepTime
from rankdeck_app.io_thread import IoThread
from rankdeck_app.state.plan import choose_line
from rankdeck_app.state.plan_process import PlanProcess
from tests.helpers.fake_plan import FAKE_PLANNER, GIB, PlanWorld, plan_line

WAIT_MS = 10_000


def row_states(world: PlanWorld) -> dict[str, str]:
    return {row.label: row.line.verdict if row.line else row.failure or "awaited" for row in world.plan.rows}


def wait_until(qtbot: QtBot, condition: Callable[[], object]) -> None:
    qtbot.waitUntil(lambda: bool(condition()), timeout=WAIT_MS)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_lines_are_sorted_in_catalogue_order(qtbot: QtBot, world: PlanWorld) -> None:
    world.set_output(
        [
            plan_line("fsdp"),
            plan_line("ddp", configured=True),
            plan_line("dp", label="dp, parallel_loss = true"),
            plan_line("dp"),
        ]
    )
    world.plan.set_wants_all(True)
    assert set(row_states(world).values()) == {"awaited"}
    wait_until(qtbot, lambda: world.plan.is_complete)
    assert list(row_states(world)) == ["dp", "dp, parallel_loss = true", "ddp", "fsdp"]
    assert world.plan.chosen_line is not None and world.plan.chosen_line.strategy == "ddp"
    file = world.requests[0]["arguments"][6]
    arguments = ["-C", str(world.folder), "plan", file, "--json", "--strategy", "all"]
    assert world.requests[0]["arguments"][3:] == arguments
    assert not list((world.folder / "launch").iterdir()), "the configuration's file is removed"


def test_recommendations_wait_for_every_answer(qtbot: QtBot, world: PlanWorld) -> None:
    fast, small = StepTime(low_s=0.1, high_s=0.2), StepTime(low_s=1.0, high_s=2.0)
    world.set_output([plan_line("ddp", 2 * GIB, step=fast), plan_line("fsdp", GIB, step=small)], then="hang")
    world.plan.set_wants_all(True)
    wait_until(qtbot, lambda: len(world.plan.lines) == 2)
    assert world.plan.marks == (None, None, "")
    world.set_output([plan_line("ddp", 2 * GIB, step=fast), plan_line("fsdp", GIB, step=small)])
    world.plan.plan_again()
    wait_until(qtbot, lambda: world.plan.is_complete)
    cheapest, recommended, reason = world.plan.marks
    assert cheapest is not None and cheapest.strategy == "fsdp"
    assert recommended is not None and recommended.strategy == "ddp"
    assert "fits with room to spare is predicted to be faster" in reason


def test_a_changed_draft_drops_answers_and_ends_the_process(qtbot: QtBot, world: PlanWorld) -> None:
    world.set_output([plan_line("ddp", configured=True)], then="hang")
    world.plan.set_wants_all(True)
    wait_until(qtbot, lambda: world.plan.chosen_line is not None)
    old = world.requests[0]["pid"]
    world.set_output([plan_line("ddp", 3 * GIB, configured=True)])
    world.draft.set_value(("train", "global_batch"), 64)
    assert world.plan.chosen_line is None and world.plan.is_planning, "dropped at once, before the new answer"
    wait_until(qtbot, lambda: world.plan.is_complete)
    assert world.plan.chosen_line is not None and world.plan.chosen_line.devices[0].total_bytes == 3 * GIB
    wait_until(qtbot, lambda: not is_alive(old))


def test_lines_of_an_ended_process_are_ignored(qtbot: QtBot, world: PlanWorld) -> None:
    world.set_output([], then="hang")
    world.plan.set_wants_all(True)
    wait_until(qtbot, lambda: world.requests)
    (process,) = world.plan.findChildren(PlanProcess)
    world.draft.set_value(("train", "global_batch"), 64)
    process.line_received.emit(plan_line("ddp", configured=True))
    assert world.plan.lines == []


def test_typing_is_debounced(qtbot: QtBot, world: PlanWorld) -> None:
    world.set_output([plan_line("ddp", configured=True)])
    world.plan.start()
    for batch in (34, 36, 38, 40):
        world.draft.set_value(("train", "global_batch"), batch)
    wait_until(qtbot, lambda: world.plan.chosen_line is not None)
    assert len(world.requests) == 1


def test_irrelevant_changes_start_no_plan(qtbot: QtBot, world: PlanWorld) -> None:
    world.set_output([plan_line("ddp", configured=True)])
    world.plan.start()
    wait_until(qtbot, lambda: world.plan.chosen_line is not None)
    world.draft.set_values({("train", "steps"): 7, ("name",): "other"})
    assert world.plan.chosen_line is not None and not world.plan.is_planning
    world.draft.set_value(("train", "precision"), "bf16")
    assert world.plan.chosen_line is None and world.plan.is_planning


def test_only_the_chosen_strategy_is_planned_while_hidden(qtbot: QtBot, world: PlanWorld) -> None:
    world.set_output([plan_line("ddp", configured=True)], then="hang")
    world.plan.start()
    wait_until(qtbot, lambda: world.plan.chosen_line is not None)
    assert world.requests[0]["arguments"][-1] == "ddp"
    assert not world.plan.is_planning, "the rest of the answer was not waited for"
    wait_until(qtbot, lambda: not is_alive(world.requests[0]["pid"]))


def test_choosing_a_planned_strategy_starts_no_plan(qtbot: QtBot, world: PlanWorld) -> None:
    world.set_output([plan_line("ddp", configured=True), plan_line("fsdp")])
    world.plan.set_wants_all(True)
    wait_until(qtbot, lambda: world.plan.is_complete)
    choose_line(world.draft, world.plan.lines[1])
    assert world.draft.config is not None and world.draft.config.strategy.use == "fsdp"
    assert world.plan.chosen_line is not None and world.plan.chosen_line.strategy == "fsdp"
    assert not world.plan.is_planning and len(world.requests) == 1


def test_a_dead_planner_fails_only_the_pending_rows(qtbot: QtBot, world: PlanWorld) -> None:
    world.set_output([plan_line("ddp", configured=True)], then="die")
    world.plan.set_wants_all(True)
    wait_until(qtbot, lambda: world.plan.problem)
    states = row_states(world)
    assert states["ddp"] == FITS and "signal 9" in states["fsdp"]
    world.set_output([plan_line("ddp", configured=True), plan_line("fsdp")])
    world.plan.plan_again()
    wait_until(qtbot, lambda: world.plan.is_complete and not world.plan.problem)
    assert row_states(world) == {"ddp": FITS, "fsdp": FITS}


def test_problems_of_the_planner_are_shown(qtbot: QtBot, world: PlanWorld) -> None:
    world.set_output([], then="refuse")
    world.plan.start()
    wait_until(qtbot, lambda: world.plan.problem)
    assert world.plan.problem == "There is no GPU 7. Use 0."
    assert not world.plan.is_planning, "the same question is not asked again and again"


def test_a_silent_planner_times_out(qtbot: QtBot, world: PlanWorld) -> None:
    world.set_output([], then="hang")
    process = PlanProcess(
        str(FAKE_PLANNER),
        [],
        world.folder,
        world.parent,
        io_thread=IoThread(world.parent),
        silence_timeout_ms=2500,
    )
    with qtbot.waitSignal(process.ended, timeout=WAIT_MS) as ended:
        process.start()
    assert "sent no output for 2 s" in ended.args[0]
    wait_until(qtbot, lambda: not is_alive(world.requests[0]["pid"]))


def test_user_code_is_not_planned_before_its_folder_is_trusted(
    qtbot: QtBot, world: PlanWorld, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text("")
    world.set_output([plan_line("ddp", configured=True)])
    world.draft.set_value(("model", "use"), "own.py:build")
    world.plan.start()
    wait_until(qtbot, lambda: world.plan.problem)
    assert world.plan.needs_trust and world.requests == []
    world.trust.add(tmp_path)
    world.plan.plan_again()
    wait_until(qtbot, lambda: world.plan.chosen_line is not None)


def test_manual_planning_waits_for_the_command(qtbot: QtBot, world: PlanWorld) -> None:
    world.is_automatic = False
    world.set_output([plan_line("ddp", configured=True)])
    world.plan.set_wants_all(True)
    world.draft.set_value(("train", "global_batch"), 64)
    assert not world.plan.is_planning
    world.plan.plan_again()
    wait_until(qtbot, lambda: world.plan.is_complete)


def test_an_invalid_draft_keeps_the_other_rows(qtbot: QtBot, world: PlanWorld) -> None:
    world.set_output([plan_line("ddp", configured=True), plan_line("fsdp")])
    world.plan.set_wants_all(True)
    wait_until(qtbot, lambda: world.plan.is_complete)
    world.draft.set_value(("strategy", "bucket_mb"), -1)
    assert "bucket_mb" in world.plan.problem and len(world.plan.lines) == 2
    world.draft.set_value(("strategy", "bucket_mb"), None)
    assert not world.plan.problem and world.plan.chosen_line is not None and len(world.requests) == 1


def test_closing_ends_the_process(qtbot: QtBot, world: PlanWorld) -> None:
    world.set_output([], then="hang")
    world.plan.set_wants_all(True)
    wait_until(qtbot, lambda: world.requests)
    world.plan.close()
    assert not is_alive(world.requests[0]["pid"])


def test_choosing_a_line_writes_options_and_changes_in_one_edit(world: PlanWorld) -> None:
    world.draft.set_values({("strategy", "bucket_mb"): 5.0})
    changes: list[None] = []
    world.draft.changed.connect(lambda: changes.append(None))
    advised = plan_line(
        "dp",
        options={"parallel_loss": True},
        changes={"train.activation_checkpointing": True},
        verdict=DOES_NOT_FIT,
    )
    choose_line(world.draft, advised)
    assert world.draft.value(("strategy",)) == {"use": "dp", "parallel_loss": True}
    assert world.draft.value(("train", "activation_checkpointing")) is True
    assert world.draft.config is not None and len(changes) == 1
    choose_line(world.draft, plan_line("dp", options={"parallel_loss": False}))
    assert world.draft.value(("strategy",)) == {"use": "dp"}, "what is the default is not written"


def test_an_answer_is_reused_for_a_run_of_the_same_configuration(qtbot: QtBot, world: PlanWorld) -> None:
    world.set_output([plan_line("ddp", configured=True)])
    world.plan.start()
    wait_until(qtbot, lambda: world.plan.chosen_line is not None)
    config = world.draft.config
    assert config is not None and world.plan.find_line(config) is world.plan.chosen_line
    tables = config.to_dict()
    tables["devices"] = {"use": "auto"}
    assert world.plan.find_line(from_dict(tables, folder=world.folder)) is not None
    tables["train"]["global_batch"] = 64
    assert world.plan.find_line(from_dict(tables, folder=world.folder)) is None


def test_a_refusal_of_the_chosen_strategy_does_not_stop_the_others(qtbot: QtBot, world: PlanWorld) -> None:
    world.set_output([plan_line("single"), plan_line("ddp", devices=[], verdict=CANNOT, reason="33 is odd.")])
    world.draft.set_value(("train", "global_batch"), 33)
    assert world.draft.config is None and world.draft.problems[0].path == "train.global_batch"
    world.plan.set_wants_all(True)
    wait_until(qtbot, lambda: world.plan.is_complete)
    assert row_states(world) == {"single": FITS, "ddp": CANNOT} and not world.plan.problem
    assert world.plan.chosen_line is not None and world.plan.chosen_line.strategy == "ddp"
    world.draft.set_value(("train", "steps"), "soon")
    assert "is not a whole number" in world.plan.problem
