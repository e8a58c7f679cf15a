"""The Plan tab and the footer's estimate: rows that say what they know, clicks that write the draft."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPushButton
from pytestqt.qtbot import QtBot

from rankdeck.base.errors import Problem
from rankdeck.run.plan_lines import CANNOT, DOES_NOT_FIT, PlanLine, PlannedDevice
from rankdeck_app.composition import App
from rankdeck_app.state.plan import DraftPlan
from rankdeck_app.theme import Theme
from rankdeck_app.views.launch.footer import LaunchFooter
from rankdeck_app.views.plan import plan_figures
from rankdeck_app.views.plan.page import OWN_DEVICES, PlanPage
from rankdeck_app.views.plan.table import Columns
from tests.helpers.told_plan import GIB, PlanWorld, line

WAIT_MS = 10_000


@pytest.fixture
def world(qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlanWorld]:
    world = PlanWorld(tmp_path, monkeypatch)
    yield world
    world.close()


@pytest.fixture
def page(qtbot: QtBot, world: PlanWorld) -> Iterator[PlanPage]:
    elsewhere = DraftPlan(world.draft, world.planner, world.parent)
    page = PlanPage(Theme(), world.draft, world.plan, elsewhere)
    qtbot.addWidget(page)
    page.resize(1091, 601)
    yield page
    elsewhere.close()


def on_gpus(strategy: str, *gib: float, **fields: object) -> PlanLine:
    devices = [
        PlannedDevice(
            device=place,
            name="A100-40GB",
            active_bytes=int(size * GIB),
            total_bytes=int(size * GIB),
            capacity_bytes=40 * GIB,
            by_kind={"parameters": int(size * GIB)},
        )
        for place, size in enumerate(gib)
    ]
    return line(strategy, devices=devices, target=f"{len(gib)} x A100-40GB", **fields)


def answered(qtbot: QtBot, world: PlanWorld, page: PlanPage, lines: list[PlanLine], then: str = "") -> None:
    world.tell(lines, then)
    page.show()
    qtbot.waitUntil(lambda: world.plan.is_complete, timeout=WAIT_MS)


def test_a_click_on_a_row_chooses_its_strategy_and_options(
    qtbot: QtBot, world: PlanWorld, page: PlanPage
) -> None:
    taken = line("dp", label="dp, parallel_loss = true", options={"parallel_loss": True})
    answered(qtbot, world, page, [line("ddp", configured=True), taken])
    index = page.table.plan_model.index(0)
    where = page.table.visualRect(index).center()
    qtbot.mouseClick(page.table.viewport(), Qt.MouseButton.LeftButton, pos=where)
    assert world.draft.value(("strategy",)) == {"use": "dp", "parallel_loss": True}
    assert [figure.is_chosen for figure in page.table.plan_model.figures] == [True, False]


def test_enter_chooses_the_row_that_has_the_keyboard(qtbot: QtBot, world: PlanWorld, page: PlanPage) -> None:
    answered(qtbot, world, page, [line("ddp", configured=True), line("fsdp")])
    page.table.setFocus()
    assert page.table.currentIndex().row() == 0, "the chosen one"
    qtbot.keyClick(page.table, Qt.Key.Key_Down)
    assert world.draft.value(("strategy", "use")) == "ddp", "moving chooses nothing"
    qtbot.keyClick(page.table, Qt.Key.Key_Return)
    assert world.draft.value(("strategy", "use")) == "fsdp"


def test_the_page_says_in_a_sentence_what_is_recommended(
    qtbot: QtBot, world: PlanWorld, page: PlanPage
) -> None:
    answered(qtbot, world, page, [line("ddp", 2 * GIB, configured=True), line("model", GIB)])
    assert page.reason.isVisible()
    assert page.reason.text().startswith("Recommended: DDP. It fits with room, step times are not known")


def test_a_row_that_cannot_says_why_and_is_not_chosen(qtbot: QtBot, world: PlanWorld, page: PlanPage) -> None:
    cannot = line("tensor", devices=[], verdict=CANNOT, reason="The model has 3 heads.")
    answered(qtbot, world, page, [line("ddp", configured=True), cannot])
    figure = next(one for one in page.table.plan_model.figures if one.title == "Tensor parallel")
    assert figure.words == "The model has 3 heads." and figure.verdict_word == "cannot" and not figure.bars
    page.table.picked.emit(figure.key)
    assert world.draft.value(("strategy", "use")) == "ddp"


def test_a_dead_planner_leaves_what_was_answered(qtbot: QtBot, world: PlanWorld, page: PlanPage) -> None:
    world.tell([line("ddp", configured=True)], then="die")
    page.show()
    qtbot.waitUntil(lambda: bool(world.plan.problem), timeout=WAIT_MS)
    by_title = {figure.title: figure for figure in page.table.plan_model.figures}
    assert by_title["DDP"].verdict_word == "fits" and by_title["DDP"].bars
    assert by_title["FSDP"].verdict_word == "no answer" and "signal 9" in by_title["FSDP"].tooltip
    assert not by_title["FSDP"].words, "said once, above the table"
    assert page.problem.isVisible() and "signal 9" in page.problem.text()
    assert not page.reason.isVisible() and not page.trust_button.isVisible()


def test_bars_add_up_and_share_one_scale() -> None:
    device = PlannedDevice(
        device=0, name="A100-40GB", active_bytes=10, reserved_bytes=14, constants_bytes=3, total_bytes=17,
        capacity_bytes=40, others_bytes=5, by_kind={"parameters": 4, "activations": 6},
    )  # fmt: skip
    parts = dict(plan_figures.segments(device))
    assert parts == {"parameters": 4, "activations": 6, "reserved": 4, "constants": 3, "others": 5}
    assert plan_figures.scale([line("ddp", devices=[device])]) == plan_figures.Scale(40, 40)
    assert plan_figures.scale([on_gpus("single", 400.0)]).end_bytes == int(1.3 * 40 * GIB), "far above is cut"
    assert plan_figures.scale([line("ddp", 3 * GIB)]) == plan_figures.Scale(3 * GIB, None)


def test_the_one_that_stands_above_the_others_is_hot() -> None:
    (dp,) = [on_gpus("dp", 20, 5, 5, 5)]
    assert [bar.leads for bar in plan_figures.bars(dp)] == [True, False, False, False]
    assert not any(bar.leads for bar in plan_figures.bars(on_gpus("ddp", 20, 20, 20, 20)))
    assert [bar.label for bar in plan_figures.bars(on_gpus("hybrid", *([20, 30] * 512)))] == [
        "GPU 0 ×512",
        "GPU 1 ×512",
    ]


@pytest.mark.parametrize("num_devices", [1, 4, 8, 16, 64])
def test_a_row_has_room_for_a_bar_per_device(
    qtbot: QtBot, world: PlanWorld, page: PlanPage, num_devices: int
) -> None:
    answered(qtbot, world, page, [on_gpus("ddp", *[4.0] * num_devices, configured=True)])
    height = page.table.visualRect(page.table.plan_model.index(0)).height()
    assert num_devices <= height <= 140
    page.grab()


@pytest.mark.parametrize("width", [560, 880, 1050])
def test_columns_stand_side_by_side(width: int) -> None:
    at = Columns(width)
    edges = [at.name, at.name + at.name_width, at.bars, at.bars + at.bars_width, at.peak]
    edges += [
        at.peak + at.peak_width,
        at.step,
        at.step + at.step_width,
        at.verdict,
        at.verdict + at.verdict_width,
    ]
    assert edges == sorted(edges) and edges[-1] <= width


def test_advice_says_its_bytes_and_its_button_changes_the_draft(
    qtbot: QtBot, world: PlanWorld, page: PlanPage
) -> None:
    changed = on_gpus(
        "ddp", 30, configured=True, changes={"train.activation_checkpointing": True}, saves_bytes=14 * GIB,
        advice="train.activation_checkpointing = true saves 14.0 GiB: it fits then.",
    )  # fmt: skip
    answered(qtbot, world, page, [on_gpus("ddp", 44, configured=True, verdict=DOES_NOT_FIT), changed])
    assert len(page.advice.lines) == 1
    (button,) = page.advice.findChildren(QPushButton)
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert world.draft.value(("train", "activation_checkpointing")) is True


def test_planning_for_other_gpus_leaves_the_estimate_alone(
    qtbot: QtBot, world: PlanWorld, page: PlanPage
) -> None:
    answered(qtbot, world, page, [line("ddp", configured=True)])
    world.tell([on_gpus("ddp", 12, 12, configured=True)])
    page.target.setEditText("2 x A100-40GB")
    page.target.lineEdit().returnPressed.emit()
    qtbot.waitUntil(lambda: page.plan.is_complete, timeout=WAIT_MS)
    assert world.asked[-1]["arguments"][-2:] == ["--devices", "2 x A100-40GB"]
    assert page.strip.figure[0].value == "2 x A100-40GB"
    assert world.plan.chosen is not None and world.plan.chosen.target == ""
    page.target.setEditText(OWN_DEVICES)
    page.target.lineEdit().returnPressed.emit()
    assert page.plan is world.plan and page.strip.figure[1].value == "1.0 GiB"


def test_everything_is_called_predicted(qtbot: QtBot, world: PlanWorld, page: PlanPage) -> None:
    answered(qtbot, world, page, [line("ddp", configured=True)])
    assert page.strip.figure[0].label == "Predicted for"
    assert "predicted" in page.table.plan_model.figures[0].tooltip


# The footer


@pytest.fixture
def footer(qtbot: QtBot, world: PlanWorld) -> LaunchFooter:
    footer = LaunchFooter(Theme(), world.plan, lambda: None, str)
    qtbot.addWidget(footer)
    footer.resize(290, 100)
    footer.show()
    return footer


def test_the_footer_says_the_peak_and_the_verdict(
    qtbot: QtBot, world: PlanWorld, footer: LaunchFooter
) -> None:
    assert footer.estimate.accessibleName() == "No estimate yet"
    world.tell([on_gpus("ddp", 30, 10, 10, configured=True)])
    world.plan.start()
    assert footer.estimate.accessibleName() == "No estimate yet: planning…"
    qtbot.waitUntil(lambda: world.plan.chosen is not None, timeout=WAIT_MS)
    said = footer.estimate.accessibleName()
    assert said.startswith("Predicted: GPU 0 30.0 · others 10.0 GiB") and "Fits in 40 GiB" in said


def test_the_footer_says_what_does_not_fit_and_what_cannot(
    qtbot: QtBot, world: PlanWorld, footer: LaunchFooter
) -> None:
    world.tell([on_gpus("ddp", 44, configured=True, verdict=DOES_NOT_FIT)])
    world.plan.start()
    qtbot.waitUntil(lambda: world.plan.chosen is not None, timeout=WAIT_MS)
    assert "Does not fit in 40 GiB: lacks 4.0 GiB" in footer.estimate.accessibleName()
    world.tell([line("ddp", configured=True, verdict=DOES_NOT_FIT, reason="Not enough memory.")])
    world.plan.ask_again()
    qtbot.waitUntil(lambda: world.plan.chosen is not None, timeout=WAIT_MS)
    assert "Too much for this machine" in footer.estimate.accessibleName()
    world.tell([on_gpus("ddp", 6, 6, configured=True, verdict=DOES_NOT_FIT)])
    world.plan.ask_again()
    qtbot.waitUntil(lambda: world.plan.chosen is not None, timeout=WAIT_MS)
    assert "Too much for this machine" in footer.estimate.accessibleName()
    world.tell([line("ddp", devices=[], verdict=CANNOT, reason="No.", configured=True)])
    world.plan.ask_again()
    qtbot.waitUntil(lambda: world.plan.chosen is not None, timeout=WAIT_MS)
    assert (
        "DDP cannot run so" in footer.estimate.accessibleName() and "No." in footer.estimate.accessibleName()
    )


def test_a_problem_of_the_draft_goes_before_the_estimate(
    qtbot: QtBot, world: PlanWorld, footer: LaunchFooter
) -> None:
    world.tell([line("ddp", configured=True)])
    world.plan.start()
    qtbot.waitUntil(lambda: world.plan.chosen is not None, timeout=WAIT_MS)
    footer.show_state(Problem("wrong", "train.steps is wrong."))
    assert footer.blocker.words.accessibleName() == "train.steps is wrong."
    assert not footer.estimate.isVisible()


def test_a_click_on_the_estimate_opens_the_plan(qtbot: QtBot, app: App) -> None:
    view = app.window.side_bar.view("launch")
    qtbot.mouseClick(view.footer.estimate, Qt.MouseButton.LeftButton)
    page = app.window.editor.active_page()
    assert isinstance(page, PlanPage)
    assert {figure.verdict_word for figure in page.table.plan_model.figures} == {"not asked"}


def test_the_plan_is_in_the_palette_and_the_view_menu(app: App) -> None:
    command = app.window.commands["plan.show"]
    assert command.menu.startswith("View/") and command.palette
    command.run()
    assert isinstance(app.window.editor.active_page(), PlanPage)
