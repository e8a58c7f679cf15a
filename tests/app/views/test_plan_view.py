"""The Plan tab and the footer's estimate: rows that say what they know, clicks that write the draft."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QPushButton
from pytestqt.qtbot import QtBot

from rankdeck.base.errors import Problem
from rankdeck.run.plan_lines import CANNOT, DOES_NOT_FIT, PlanLine, PlannedDevice
from rankdeck_app.composition import App
from rankdeck_app.settings import Settings
from rankdeck_app.state.draft_race import DraftRace
from rankdeck_app.state.plan import DraftPlan
from rankdeck_app.state.runs import Runs
from rankdeck_app.theme import Theme
from rankdeck_app.views.launch.footer import LaunchFooter
from rankdeck_app.views.plan import plan_figures
from rankdeck_app.views.plan.page import PlanPage
from rankdeck_app.views.plan.row_delegate import INDEX_HEIGHT, bar_sizes, labelled
from rankdeck_app.views.plan.table import Columns
from rankdeck_app.views.plan.target import OWN_DEVICES
from tests.helpers.told_plan import GIB, TOLD, PlanWorld, line
from tests.helpers.verified import verified_as

WAIT_MS = 10_000


@pytest.fixture
def page(qtbot: QtBot, world: PlanWorld, tmp_path: Path) -> Iterator[PlanPage]:
    elsewhere = DraftPlan(world.draft, world.planner, world.parent)
    settings = Settings(tmp_path / "settings.toml")
    raced = DraftRace(world.draft, Runs(tmp_path / "runs", world.parent), world.parent)
    page = PlanPage(Theme(), world.draft, world.plan, elsewhere, raced, settings)
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
    index = page.table.rows.index(0)
    where = page.table.visualRect(index).center()
    qtbot.mouseClick(page.table.viewport(), Qt.MouseButton.LeftButton, pos=where)
    assert world.draft.value(("strategy",)) == {"use": "dp", "parallel_loss": True}
    assert [figure.is_chosen for figure in page.table.rows.figures] == [True, False]


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
    why = "The model has 3 heads."
    cannot = line("tensor", devices=[], verdict=CANNOT, reason=why, refusal=Problem("heads", why))
    answered(qtbot, world, page, [line("ddp", configured=True), cannot])
    figure = next(one for one in page.table.rows.figures if one.title == "Tensor parallel")
    assert figure.words == "The model has 3 heads." and figure.verdict_word == "cannot" and not figure.bars
    page.table.picked.emit(figure.key)
    assert world.draft.value(("strategy", "use")) == "ddp"


def test_a_dead_planner_leaves_what_was_answered(qtbot: QtBot, world: PlanWorld, page: PlanPage) -> None:
    world.tell([line("ddp", configured=True)], then="die")
    page.show()
    qtbot.waitUntil(lambda: bool(world.plan.problem), timeout=WAIT_MS)
    by_title = {figure.title: figure for figure in page.table.rows.figures}
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
    height = page.table.visualRect(page.table.rows.index(0)).height()
    assert num_devices <= height <= 140
    page.grab()


@pytest.mark.parametrize("width", [360, 430, 470, 560, 700, 880, 1050])
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


def test_a_fix_says_its_bytes_and_its_button_changes_the_draft(
    qtbot: QtBot, world: PlanWorld, page: PlanPage
) -> None:
    changed = on_gpus(
        "ddp", 30, configured=True, changes={"train.activation_checkpointing": True}, saves_bytes=14 * GIB,
        advice="train.activation_checkpointing = true saves 14.0 GiB: it fits then.",
    )  # fmt: skip
    answered(qtbot, world, page, [on_gpus("ddp", 44, configured=True, verdict=DOES_NOT_FIT), changed])
    assert len(page.fixes.lines) == 1
    (button,) = page.fixes.findChildren(QPushButton)
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert world.draft.value(("train", "activation_checkpointing")) is True


def test_planning_for_other_gpus_leaves_the_estimate_alone(
    qtbot: QtBot, world: PlanWorld, page: PlanPage
) -> None:
    answered(qtbot, world, page, [line("ddp", configured=True)])
    world.tell([on_gpus("ddp", 12, 12, configured=True)])
    plan_for(page, "2 x A100-40GB")
    qtbot.waitUntil(lambda: page.plan.is_complete, timeout=WAIT_MS)
    assert world.asked[-1]["arguments"][-2:] == ["--devices", "2 x A100-40GB"]
    assert page.strip.figure[0].value == "2 x A100-40GB"
    assert world.plan.chosen is not None and world.plan.chosen.target == ""
    plan_for(page, OWN_DEVICES)
    assert page.plan is world.plan and page.strip.figure[1].value == "1.0 GiB"


def plan_for(page: PlanPage, text: str) -> None:
    line = page.target.lineEdit()
    assert line is not None
    line.setFocus()
    line.selectAll()
    QTest.keyClick(line, Qt.Key.Key_Delete)
    QTest.keyClicks(line, text)
    QTest.keyClick(line, Qt.Key.Key_Return)


def agrees(page: PlanPage, devices: str | None, target: str) -> bool:
    """Box, head and rows are of one state."""
    assert page.target.currentText() == (devices or OWN_DEVICES)
    assert page.plan.devices == devices
    head = page.strip.figure[0]
    assert head.label == ("Predicted for" if devices else "Predicted for this run's devices")
    assert {line.target for line in page.plan.lines} <= {target}
    return bool(head.value == target)


def test_box_head_and_rows_agree_whatever_is_loaded_chosen_or_fails(
    qtbot: QtBot, world: PlanWorld, page: PlanPage
) -> None:
    own, there = "2 virtual devices", "2 x A100-40GB"
    answered(qtbot, world, page, [line("ddp", configured=True, target=own)])
    assert agrees(page, None, own)
    world.tell([on_gpus("ddp", 12, 12, configured=True)])
    plan_for(page, "2xA100-40GB")
    assert agrees(page, "2xA100-40GB", "2xA100-40GB"), "as it was asked, until there is an answer"
    qtbot.waitUntil(lambda: page.plan.is_complete, timeout=WAIT_MS)
    assert agrees(page, "2xA100-40GB", there)
    # Another configuration, as a preset brings it: what is planned for stays, its answers go.
    world.draft.replace(world.draft.text.replace("32", "64"), folder=world.folder, stem="other")
    assert agrees(page, "2xA100-40GB", "2xA100-40GB") and not page.plan.lines
    qtbot.waitUntil(lambda: page.plan.is_complete, timeout=WAIT_MS)
    assert agrees(page, "2xA100-40GB", there)
    world.tell([], then="refuse")
    plan_for(page, "7 x nonsense")
    qtbot.waitUntil(lambda: page.problem.isVisible(), timeout=WAIT_MS)
    assert agrees(page, "7 x nonsense", "7 x nonsense") and not page.plan.lines
    world.tell([line("ddp", configured=True, target=own)])
    plan_for(page, "")
    assert agrees(page, None, own) and not page.problem.isVisible()
    qtbot.waitUntil(lambda: page.plan.is_complete, timeout=WAIT_MS)
    assert agrees(page, None, own)


def test_what_is_typed_counts_when_the_keyboard_leaves_and_escape_takes_it_back(
    qtbot: QtBot, world: PlanWorld, page: PlanPage
) -> None:
    answered(qtbot, world, page, [line("ddp", configured=True, target="cpu:2")])
    edit = page.target.lineEdit()
    assert edit is not None
    with qtbot.waitActive(page):
        page.activateWindow()
    edit.setFocus()
    edit.selectAll()
    qtbot.keyClicks(edit, "4 x H")
    page.refresh()
    assert edit.text().startswith("4 x H"), "somebody is typing"
    qtbot.keyClick(page.target, Qt.Key.Key_Escape)
    assert agrees(page, None, "cpu:2")
    edit.selectAll()
    qtbot.keyClicks(edit, "4 x 24GiB")
    page.table.setFocus()
    assert page.plan.devices == "4 x 24GiB" and agrees(page, "4 x 24GiB", "4 x 24GiB")


def test_bars_can_be_fitted_to_the_data_and_the_axis_says_so(
    qtbot: QtBot, world: PlanWorld, page: PlanPage
) -> None:
    lines = [on_gpus("ddp", 1.2, 1.1, configured=True), on_gpus("fsdp", 0.5, 0.5)]
    assert plan_figures.axis(plan_figures.scale(lines)) == "0–40 GiB"
    fitted = plan_figures.scale(lines, is_fitted=True)
    assert plan_figures.axis(fitted) == "0–1.2 GiB, fitted" and not fitted.shows_capacity
    assert plan_figures.scale([on_gpus("ddp", 44)], is_fitted=True).shows_capacity
    answered(qtbot, world, page, lines)
    assert not page.fit_button.isChecked() and page.fit_button.isEnabled()
    qtbot.mouseClick(page.fit_button, Qt.MouseButton.LeftButton)
    assert page.table.itemDelegate().scale == fitted  # type: ignore[attr-defined]
    page.grab()
    again = PlanPage(Theme(), world.draft, world.plan, world.plan, page._raced, page.settings)
    qtbot.addWidget(again)
    again.show()
    assert again.fit_button.isChecked(), "it is remembered"


@pytest.mark.parametrize("num_bars", range(1, 65))
def test_indices_beside_bars_never_touch(num_bars: int) -> None:
    places = labelled(num_bars)
    pitch = sum(bar_sizes(num_bars))
    assert list(places) == sorted(places) and (num_bars == 1) == (len(places) == 0)
    tops = [place * pitch for place in places]
    assert all(after - before >= INDEX_HEIGHT for before, after in pairwise(tops))
    assert num_bars == 1 or len(places) >= 2


def test_everything_is_called_predicted(qtbot: QtBot, world: PlanWorld, page: PlanPage) -> None:
    answered(qtbot, world, page, [line("ddp", configured=True)])
    assert page.strip.figure[0].label == "Predicted for this run's devices"
    assert "predicted" in page.table.rows.figures[0].tooltip


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
    for refusal, words in ((Problem("no", "No."), "DDP cannot run so"), (None, "DDP: not predicted")):
        unknown = line("ddp", devices=[], verdict=CANNOT, reason="No.", configured=True, refusal=refusal)
        world.tell([unknown])
        world.plan.ask_again()
        qtbot.waitUntil(lambda: world.plan.chosen is not None, timeout=WAIT_MS)
        assert words in footer.estimate.accessibleName() and "No." in footer.estimate.accessibleName()


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
    assert {figure.verdict_word for figure in page.table.rows.figures} == {"not asked"}
    target, chosen, *_ = page.strip.figure
    assert (target.value, chosen.label, chosen.value) == ("4 virtual devices", "Chosen: DP", "–")
    assert page.ask_button.isVisible() and "Nothing was asked yet" in page.reason.text()


def test_the_way_to_ask_is_gone_once_there_are_answers(
    qtbot: QtBot, world: PlanWorld, page: PlanPage
) -> None:
    answered(qtbot, world, page, [line("ddp", configured=True)])
    assert not page.ask_button.isVisible() and "Nothing" not in page.reason.text()


def test_the_plan_is_in_the_palette_and_the_view_menu(app: App) -> None:
    command = app.window.commands["plan.show"]
    assert command.menu.startswith("View/") and command.palette
    command.run()
    assert isinstance(app.window.editor.active_page(), PlanPage)


# Whether strategies compute what one device does


def test_a_row_says_whether_it_equals_one_device(qtbot: QtBot, world: PlanWorld, page: PlanPage) -> None:
    answered(qtbot, world, page, [line("ddp", configured=True), line("fsdp"), line("dp"), line("model")])
    assert page.verify_button.text() == "Verify" and page.verify_button.isEnabled()
    world.tell([verified_as("equal", line("ddp")), verified_as("differs", line("fsdp"))], then="hang")
    page.verify_button.setFocus()
    qtbot.keyClick(page.verify_button, Qt.Key.Key_Space)
    qtbot.waitUntil(lambda: page.table.rows.figures[2].verified == "differs", timeout=WAIT_MS)
    by_title = {figure.title: figure for figure in page.table.rows.figures}
    assert by_title["DP"].verified_word == "verifying…"
    assert by_title["DDP"].verified_word == "equal" and "One device: equal" in by_title["DDP"].description
    assert "Differs from one device: head.weight, head.bias" in by_title["FSDP"].tooltip
    assert page.verify_button.text() == "Cancel Verifying"
    qtbot.keyClick(page.verify_button, Qt.Key.Key_Space)
    assert page.table.rows.figures[0].verified_word == "" and page.verify_button.text() == "Verify"
    page.grab()  # every sign is painted
    assert page.reason.text().endswith("Verified: 1 of 2 equal one device. These differ: fsdp.")
    rows = list(plan_figures.csv_rows(world.plan))
    assert rows[0][-1] == "one_device" and any("Differs from one device" in str(row[-1]) for row in rows)


def test_what_stands_in_the_way_of_verifying_is_said(qtbot: QtBot, world: PlanWorld, page: PlanPage) -> None:
    world.draft.set_value(("train", "global_batch"), -1)
    page.show()
    assert not page.verify_button.isEnabled() and "global_batch" in page.verify_button.toolTip()


def test_a_strategy_that_differs_is_warned_of_where_it_is_launched(
    qtbot: QtBot, world: PlanWorld, footer: LaunchFooter
) -> None:
    world.tell([verified_as("differs", line("ddp", configured=True))])
    world.plan.want_all(True)
    qtbot.waitUntil(lambda: world.plan.is_complete, timeout=WAIT_MS)
    assert "Differs" not in footer.estimate.accessibleName()
    world.plan.verification.start()
    qtbot.waitUntil(lambda: not world.plan.verification.is_running, timeout=WAIT_MS)
    assert "Differs from one device: head.weight, head.bias" in footer.estimate.accessibleName()


def test_launching_what_differs_is_warned_of_once_more(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, launched, warned = app.session.plan, list[object](), list[str]()
    differing = verified_as("differs", line(plan.chosen_strategy, configured=True))
    monkeypatch.setattr(type(plan), "chosen", property(lambda _: differing))
    monkeypatch.setattr(plan.verification, "_found_of", lambda _: differing)
    monkeypatch.setattr(app.launching, "launch", launched.append)
    monkeypatch.setattr(app.window.toasts, "warn", warned.append)
    app.launching.launch_draft()
    assert launched and warned == ["DP: Differs from one device: head.weight, head.bias."]


def test_verifying_is_a_command_that_opens_the_plan(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = list[bool]()
    monkeypatch.setattr(app.session.plan, "ask_again", lambda: begun.append(False))
    monkeypatch.setattr(app.session.plan.verification, "start", lambda: begun.append(True))
    command = app.window.commands["plan.verify"]
    assert command.palette and command.keys
    command.run()
    assert isinstance(app.window.editor.active_page(), PlanPage)
    assert begun == [False, True], "what is not planned yet is planned, too"


def test_what_the_plan_knows_to_be_impossible_is_not_launched_and_its_fix_is_offered(
    qtbot: QtBot, world: PlanWorld, app: App
) -> None:
    why = Problem(
        "model", "Model gpt cannot read data digits.", path="model.use", advice="Use data.use = text.",
        cure={"data.use": "text"},
    )  # fmt: skip
    session, view = app.session, app.window.side_bar.view("launch")
    refused = {"devices": [], "verdict": CANNOT, "configured": True, "refusal": why}
    session.engine.python = str(TOLD)
    session.draft.choose(("data",), "digits")
    world.tell([line(session.plan.chosen_strategy, **refused)])
    session.plan.ask_again()
    qtbot.waitUntil(lambda: app.launching.blocker() is not None, timeout=WAIT_MS)
    said = view.footer.blocker
    assert said.words.text() == why.sentence and view.footer.button.property("kind") != "primary"
    app.window.commands.run("run.launch")
    assert not app.launching.num_pending and app.launching.form_blocker() is None
    assert app.window.context.get("raceable"), "others can"
    qtbot.mouseClick(said.fix, Qt.MouseButton.LeftButton)
    assert session.draft.value(("data", "use")) == "text" and app.launching.blocker() is None
    assert view.footer.button.property("kind") == "primary"


def test_a_refusal_for_devices_that_one_does_not_have_blocks_no_launch(
    qtbot: QtBot, world: PlanWorld
) -> None:
    refused = line("ddp", devices=[], verdict=CANNOT, configured=True, refusal=Problem("model", "No."))
    world.tell([refused])
    world.plan.start()
    qtbot.waitUntil(lambda: world.plan.refusal is not None, timeout=WAIT_MS)
    world.plan.set_devices("4 x A100-80GB")
    qtbot.waitUntil(lambda: world.plan.chosen is not None, timeout=WAIT_MS)
    assert world.plan.refusal is None
