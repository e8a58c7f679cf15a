"""The plan of the draft: answers are folded as they come, outdated ones dropped, no process outlives it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pytestqt.qtbot import QtBot

from rankdeck.config import from_dict
from rankdeck.run.plan_lines import CANNOT, DOES_NOT_FIT, FITS, StepTime
from rankdeck_app.io_thread import IoThread
from rankdeck_app.state.plan import choose
from rankdeck_app.state.plan_process import PlanProcess
from tests.helpers.told_plan import GIB, TOLD, PlanWorld, line

WAIT_MS = 10_000


def shown(world: PlanWorld) -> dict[str, str]:
    return {row.label: row.line.verdict if row.line else row.failure or "awaited" for row in world.plan.rows}


def until(qtbot: QtBot, condition: Callable[[], object]) -> None:
    qtbot.waitUntil(lambda: bool(condition()), timeout=WAIT_MS)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_lines_take_their_rows_in_the_catalogues_order(qtbot: QtBot, world: PlanWorld) -> None:
    world.tell(
        [line("fsdp"), line("ddp", configured=True), line("dp", label="dp, parallel_loss = true"), line("dp")]
    )
    world.plan.want_all(True)
    assert set(shown(world).values()) == {"awaited"}
    until(qtbot, lambda: world.plan.is_complete)
    assert list(shown(world)) == ["dp", "dp, parallel_loss = true", "ddp", "fsdp"]
    assert world.plan.chosen is not None and world.plan.chosen.strategy == "ddp"
    file = world.asked[0]["arguments"][6]
    asked = ["-C", str(world.folder), "plan", file, "--json", "--strategy", "all"]
    assert world.asked[0]["arguments"][3:] == asked
    assert not list((world.folder / "launch").iterdir()), "the configuration's file is removed"


def test_marks_are_said_only_when_every_answer_is_there(qtbot: QtBot, world: PlanWorld) -> None:
    fast, small = StepTime(low_s=0.1, high_s=0.2), StepTime(low_s=1.0, high_s=2.0)
    world.tell([line("ddp", 2 * GIB, step=fast), line("fsdp", GIB, step=small)], then="hang")
    world.plan.want_all(True)
    until(qtbot, lambda: len(world.plan.lines) == 2)
    assert world.plan.marks == (None, None, "")
    world.tell([line("ddp", 2 * GIB, step=fast), line("fsdp", GIB, step=small)])
    world.plan.ask_again()
    until(qtbot, lambda: world.plan.is_complete)
    cheapest, recommended, reason = world.plan.marks
    assert cheapest is not None and cheapest.strategy == "fsdp"
    assert recommended is not None and recommended.strategy == "ddp"
    assert "no other that does is predicted to be faster" in reason


def test_answers_to_an_older_form_are_dropped_and_its_process_ended(qtbot: QtBot, world: PlanWorld) -> None:
    world.tell([line("ddp", configured=True)], then="hang")
    world.plan.want_all(True)
    until(qtbot, lambda: world.plan.chosen is not None)
    old = world.asked[0]["pid"]
    world.tell([line("ddp", 3 * GIB, configured=True)])
    world.draft.set_value(("train", "global_batch"), 64)
    assert world.plan.chosen is None and world.plan.is_asking, "dropped at once, before the new answer"
    until(qtbot, lambda: world.plan.is_complete)
    assert world.plan.chosen is not None and world.plan.chosen.devices[0].total_bytes == 3 * GIB
    until(qtbot, lambda: not is_alive(old))


def test_a_line_of_an_ended_process_is_not_taken(qtbot: QtBot, world: PlanWorld) -> None:
    world.tell([], then="hang")
    world.plan.want_all(True)
    until(qtbot, lambda: world.asked)
    (process,) = world.plan.findChildren(PlanProcess)
    world.draft.set_value(("train", "global_batch"), 64)
    process.line_came.emit(line("ddp", configured=True))
    assert world.plan.lines == []


def test_typing_asks_once_it_is_quiet(qtbot: QtBot, world: PlanWorld) -> None:
    world.tell([line("ddp", configured=True)])
    world.plan.start()
    for batch in (34, 36, 38, 40):
        world.draft.set_value(("train", "global_batch"), batch)
    until(qtbot, lambda: world.plan.chosen is not None)
    assert len(world.asked) == 1


def test_what_no_memory_depends_on_asks_nothing(qtbot: QtBot, world: PlanWorld) -> None:
    world.tell([line("ddp", configured=True)])
    world.plan.start()
    until(qtbot, lambda: world.plan.chosen is not None)
    world.draft.set_values({("train", "steps"): 7, ("name",): "other"})
    assert world.plan.chosen is not None and not world.plan.is_asking
    world.draft.set_value(("train", "precision"), "bf16")
    assert world.plan.chosen is None and world.plan.is_asking


def test_only_the_chosen_strategy_is_asked_while_nobody_looks(qtbot: QtBot, world: PlanWorld) -> None:
    world.tell([line("ddp", configured=True)], then="hang")
    world.plan.start()
    until(qtbot, lambda: world.plan.chosen is not None)
    assert world.asked[0]["arguments"][-1] == "ddp"
    assert not world.plan.is_asking, "the rest of the answer was not waited for"
    until(qtbot, lambda: not is_alive(world.asked[0]["pid"]))


def test_choosing_a_known_strategy_asks_nothing(qtbot: QtBot, world: PlanWorld) -> None:
    world.tell([line("ddp", configured=True), line("fsdp")])
    world.plan.want_all(True)
    until(qtbot, lambda: world.plan.is_complete)
    choose(world.draft, world.plan.lines[1])
    assert world.draft.config is not None and world.draft.config.strategy.use == "fsdp"
    assert world.plan.chosen is not None and world.plan.chosen.strategy == "fsdp"
    assert not world.plan.is_asking and len(world.asked) == 1


def test_a_dead_planner_fails_the_open_rows_only(qtbot: QtBot, world: PlanWorld) -> None:
    world.tell([line("ddp", configured=True)], then="die")
    world.plan.want_all(True)
    until(qtbot, lambda: world.plan.problem)
    said = shown(world)
    assert said["ddp"] == FITS and "signal 9" in said["fsdp"]
    world.tell([line("ddp", configured=True), line("fsdp")])
    world.plan.ask_again()
    until(qtbot, lambda: world.plan.is_complete and not world.plan.problem)
    assert shown(world) == {"ddp": FITS, "fsdp": FITS}


def test_the_engines_own_words_are_shown(qtbot: QtBot, world: PlanWorld) -> None:
    world.tell([], then="refuse")
    world.plan.start()
    until(qtbot, lambda: world.plan.problem)
    assert world.plan.problem == "There is no GPU 7. Use 0."
    assert not world.plan.is_asking, "the same question is not asked again and again"


def test_a_silent_planner_is_given_up(qtbot: QtBot, world: PlanWorld) -> None:
    world.tell([], then="hang")
    process = PlanProcess(
        str(TOLD), [], world.folder, world.parent, disk=IoThread(world.parent), silence_ms=2500
    )
    with qtbot.waitSignal(process.ended, timeout=WAIT_MS) as ended:
        process.start()
    assert "nothing" in ended.args[0]
    until(qtbot, lambda: not is_alive(world.asked[0]["pid"]))


def test_own_code_is_not_run_before_its_folder_is_trusted(
    qtbot: QtBot, world: PlanWorld, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text("")
    world.tell([line("ddp", configured=True)])
    world.draft.set_value(("model", "use"), "own.py:build")
    world.plan.start()
    until(qtbot, lambda: world.plan.problem)
    assert world.plan.needs_trust and world.asked == []
    world.trust.add(tmp_path)
    world.plan.ask_again()
    until(qtbot, lambda: world.plan.chosen is not None)


def test_a_plan_that_is_not_automatic_waits_to_be_asked(qtbot: QtBot, world: PlanWorld) -> None:
    world.is_automatic = False
    world.tell([line("ddp", configured=True)])
    world.plan.want_all(True)
    world.draft.set_value(("train", "global_batch"), 64)
    assert not world.plan.is_asking
    world.plan.ask_again()
    until(qtbot, lambda: world.plan.is_complete)


def test_a_draft_that_is_wrong_keeps_the_rows_of_the_others(qtbot: QtBot, world: PlanWorld) -> None:
    world.tell([line("ddp", configured=True), line("fsdp")])
    world.plan.want_all(True)
    until(qtbot, lambda: world.plan.is_complete)
    world.draft.set_value(("strategy", "bucket_mb"), -1)
    assert "bucket_mb" in world.plan.problem and len(world.plan.lines) == 2
    world.draft.set_value(("strategy", "bucket_mb"), None)
    assert not world.plan.problem and world.plan.chosen is not None and len(world.asked) == 1


def test_closing_ends_the_process(qtbot: QtBot, world: PlanWorld) -> None:
    world.tell([], then="hang")
    world.plan.want_all(True)
    until(qtbot, lambda: world.asked)
    world.plan.close()
    assert not is_alive(world.asked[0]["pid"])


def test_a_choice_writes_strategy_options_and_changes_at_once(world: PlanWorld) -> None:
    world.draft.set_values({("strategy", "bucket_mb"): 5.0})
    told: list[None] = []
    world.draft.changed.connect(lambda: told.append(None))
    advised = line(
        "dp",
        options={"parallel_loss": True},
        changes={"train.activation_checkpointing": True},
        verdict=DOES_NOT_FIT,
    )
    choose(world.draft, advised)
    assert world.draft.value(("strategy",)) == {"use": "dp", "parallel_loss": True}
    assert world.draft.value(("train", "activation_checkpointing")) is True
    assert world.draft.config is not None and len(told) == 1
    choose(world.draft, line("dp", options={"parallel_loss": False}))
    assert world.draft.value(("strategy",)) == {"use": "dp"}, "what is the default is not written"


def test_the_answer_serves_a_run_of_the_same_configuration(qtbot: QtBot, world: PlanWorld) -> None:
    world.tell([line("ddp", configured=True)])
    world.plan.start()
    until(qtbot, lambda: world.plan.chosen is not None)
    config = world.draft.config
    assert config is not None and world.plan.line_for(config) is world.plan.chosen
    tables = config.to_dict()
    tables["devices"] = {"use": "auto"}
    assert world.plan.line_for(from_dict(tables, folder=world.folder)) is not None
    tables["train"]["global_batch"] = 64
    assert world.plan.line_for(from_dict(tables, folder=world.folder)) is None


def test_what_only_the_chosen_strategy_refuses_stops_no_other(qtbot: QtBot, world: PlanWorld) -> None:
    world.tell([line("single"), line("ddp", devices=[], verdict=CANNOT, reason="33 is odd.")])
    world.draft.set_value(("train", "global_batch"), 33)
    assert world.draft.config is None and world.draft.problems[0].path == "train.global_batch"
    world.plan.want_all(True)
    until(qtbot, lambda: world.plan.is_complete)
    assert shown(world) == {"single": FITS, "ddp": CANNOT} and not world.plan.problem
    assert world.plan.chosen is not None and world.plan.chosen.strategy == "ddp"
    world.draft.set_value(("train", "steps"), "soon")
    assert "is not a whole number" in world.plan.problem
