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
from rankdeck_app.views.plan import plan_chart_data
from rankdeck_app.views.plan.page import PlanPage
from rankdeck_app.views.plan.row_delegate import INDEX_HEIGHT, bar_sizes, labelled_bars
from rankdeck_app.views.plan.table import PlanColumns as Columns
from rankdeck_app.views.plan.target import RUN_DEVICES
from tests.helpers.fake_plan import FAKE_PLANNER, GIB, PlanWorld, plan_line
from tests.helpers.verified import with_verification

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


def gpu_line(strategy: str, *gib: float, **fields: object) -> PlanLine:
    devices = [
        PlannedDevice(
            device=index,
            name="A100-40GB",
            active_bytes=int(size * GIB),
            total_bytes=int(size * GIB),
            capacity_bytes=40 * GIB,
            by_kind={"parameters": int(size * GIB)},
        )
        for index, size in enumerate(gib)
    ]
    return plan_line(strategy, devices=devices, target=f"{len(gib)} x A100-40GB", **fields)


def show_answers(
    qtbot: QtBot, world: PlanWorld, page: PlanPage, lines: list[PlanLine], then: str = ""
) -> None:
    world.set_output(lines, then)
    page.show()
    qtbot.waitUntil(lambda: world.plan.is_complete, timeout=WAIT_MS)


def test_clicking_a_row_chooses_its_strategy_and_options(
    qtbot: QtBot, world: PlanWorld, page: PlanPage
) -> None:
    taken = plan_line("dp", label="dp, parallel_loss = true", options={"parallel_loss": True})
    show_answers(qtbot, world, page, [plan_line("ddp", configured=True), taken])
    index = page.table.row_model.index(0)
    where = page.table.visualRect(index).center()
    qtbot.mouseClick(page.table.viewport(), Qt.MouseButton.LeftButton, pos=where)
    assert world.draft.value(("strategy",)) == {"use": "dp", "parallel_loss": True}
    assert [row.is_chosen for row in page.table.row_model.rows] == [True, False]


def test_enter_chooses_the_current_row(qtbot: QtBot, world: PlanWorld, page: PlanPage) -> None:
    show_answers(qtbot, world, page, [plan_line("ddp", configured=True), plan_line("fsdp")])
    page.table.setFocus()
    assert page.table.currentIndex().row() == 0, "the chosen one"
    qtbot.keyClick(page.table, Qt.Key.Key_Down)
    assert world.draft.value(("strategy", "use")) == "ddp", "moving chooses nothing"
    qtbot.keyClick(page.table, Qt.Key.Key_Return)
    assert world.draft.value(("strategy", "use")) == "fsdp"


def test_the_page_explains_the_recommendation(qtbot: QtBot, world: PlanWorld, page: PlanPage) -> None:
    show_answers(qtbot, world, page, [plan_line("ddp", 2 * GIB, configured=True), plan_line("model", GIB)])
    assert page.reason_label.isVisible()
    assert page.reason_label.text().startswith(
        "Recommended: DDP. It is the simplest candidate that fits with room to spare and uses all devices "
        "at once; step times are unknown."
    )


def test_an_impossible_row_gives_its_reason_and_is_not_chosen(
    qtbot: QtBot, world: PlanWorld, page: PlanPage
) -> None:
    why = "The model has 3 heads."
    cannot = plan_line("tensor", devices=[], verdict=CANNOT, reason=why, refusal=Problem("heads", why))
    show_answers(qtbot, world, page, [plan_line("ddp", configured=True), cannot])
    row = next(candidate for candidate in page.table.row_model.rows if candidate.title == "Tensor parallel")
    assert row.reason == "The model has 3 heads." and row.verdict_text == "cannot" and not row.bars
    page.table.picked.emit(row.key)
    assert world.draft.value(("strategy", "use")) == "ddp"


def test_a_planner_crash_keeps_the_answers(qtbot: QtBot, world: PlanWorld, page: PlanPage) -> None:
    world.set_output([plan_line("ddp", configured=True)], then="die")
    page.show()
    qtbot.waitUntil(lambda: bool(world.plan.problem), timeout=WAIT_MS)
    by_title = {row.title: row for row in page.table.row_model.rows}
    assert by_title["DDP"].verdict_text == "fits" and by_title["DDP"].bars
    assert by_title["FSDP"].verdict_text == "no result" and "signal 9" in by_title["FSDP"].tooltip
    assert not by_title["FSDP"].reason, "said once, above the table"
    assert page.problem_label.isVisible() and "signal 9" in page.problem_label.text()
    assert not page.reason_label.isVisible() and not page.trust_button.isVisible()


def test_bars_add_up_and_share_one_scale() -> None:
    device = PlannedDevice(
        device=0, name="A100-40GB", active_bytes=10, reserved_bytes=14, constants_bytes=3, total_bytes=17,
        capacity_bytes=40, others_bytes=5, by_kind={"parameters": 4, "activations": 6},
    )  # fmt: skip
    segments = dict(plan_chart_data.segments(device))
    assert segments == {"parameters": 4, "activations": 6, "reserved": 4, "constants": 3, "others": 5}
    assert plan_chart_data.scale([plan_line("ddp", devices=[device])]) == plan_chart_data.Scale(40, 40)
    assert plan_chart_data.scale([gpu_line("single", 400.0)]).end_bytes == int(1.3 * 40 * GIB), (
        "far above is cut"
    )
    assert plan_chart_data.scale([plan_line("ddp", 3 * GIB)]) == plan_chart_data.Scale(3 * GIB, None)


def test_the_fullest_device_is_highlighted() -> None:
    (dp,) = [gpu_line("dp", 20, 5, 5, 5)]
    assert [bar.is_lead for bar in plan_chart_data.bars(dp)] == [True, False, False, False]
    assert not any(bar.is_lead for bar in plan_chart_data.bars(gpu_line("ddp", 20, 20, 20, 20)))
    assert [bar.label for bar in plan_chart_data.bars(gpu_line("hybrid", *([20, 30] * 512)))] == [
        "GPU 0 ×512",
        "GPU 1 ×512",
    ]


@pytest.mark.parametrize("num_devices", [1, 4, 8, 16, 64])
def test_a_row_has_room_for_a_bar_per_device(
    qtbot: QtBot, world: PlanWorld, page: PlanPage, num_devices: int
) -> None:
    show_answers(qtbot, world, page, [gpu_line("ddp", *[4.0] * num_devices, configured=True)])
    height = page.table.visualRect(page.table.row_model.index(0)).height()
    assert num_devices <= height <= 140
    page.grab()


@pytest.mark.parametrize("width", [360, 430, 470, 560, 700, 880, 1050])
def test_columns_do_not_overlap(width: int) -> None:
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


def test_a_fix_shows_its_saving_and_is_applied_by_its_button(
    qtbot: QtBot, world: PlanWorld, page: PlanPage
) -> None:
    changed = gpu_line(
        "ddp", 30, configured=True, changes={"train.activation_checkpointing": True}, saves_bytes=14 * GIB,
        advice="train.activation_checkpointing = true saves 14.0 GiB: it fits then.",
    )  # fmt: skip
    show_answers(qtbot, world, page, [gpu_line("ddp", 44, configured=True, verdict=DOES_NOT_FIT), changed])
    assert len(page.fix_list.lines) == 1
    (button,) = page.fix_list.findChildren(QPushButton)
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert world.draft.value(("train", "activation_checkpointing")) is True


def test_planning_for_other_gpus_keeps_the_estimate(qtbot: QtBot, world: PlanWorld, page: PlanPage) -> None:
    show_answers(qtbot, world, page, [plan_line("ddp", configured=True)])
    world.set_output([gpu_line("ddp", 12, 12, configured=True)])
    plan_for(page, "2 x A100-40GB")
    qtbot.waitUntil(lambda: page.plan.is_complete, timeout=WAIT_MS)
    assert world.requests[-1]["arguments"][-2:] == ["--devices", "2 x A100-40GB"]
    assert page.stat_strip.data[0].value == "2 x A100-40GB"
    assert world.plan.chosen_line is not None and world.plan.chosen_line.target == ""
    plan_for(page, RUN_DEVICES)
    assert page.plan is world.plan and page.stat_strip.data[1].value == "1.0 GiB"


def plan_for(page: PlanPage, text: str) -> None:
    line = page.target_box.lineEdit()
    assert line is not None
    line.setFocus()
    line.selectAll()
    QTest.keyClick(line, Qt.Key.Key_Delete)
    QTest.keyClicks(line, text)
    QTest.keyClick(line, Qt.Key.Key_Return)


def is_consistent(page: PlanPage, devices: str | None, target: str) -> bool:
    """Box, head and rows are of one state."""
    assert page.target_box.currentText() == (devices or RUN_DEVICES)
    assert page.plan.devices == devices
    stat = page.stat_strip.data[0]
    assert stat.label == ("Predicted for" if devices else "Predicted for this run's devices")
    assert {line.target for line in page.plan.lines} <= {target}
    return bool(stat.value == target)


def test_target_header_and_rows_stay_consistent(qtbot: QtBot, world: PlanWorld, page: PlanPage) -> None:
    local_target, there = "2 virtual devices", "2 x A100-40GB"
    show_answers(qtbot, world, page, [plan_line("ddp", configured=True, target=local_target)])
    assert is_consistent(page, None, local_target)
    world.set_output([gpu_line("ddp", 12, 12, configured=True)])
    plan_for(page, "2xA100-40GB")
    assert is_consistent(page, "2xA100-40GB", "2xA100-40GB"), "as it was asked, until there is an answer"
    qtbot.waitUntil(lambda: page.plan.is_complete, timeout=WAIT_MS)
    assert is_consistent(page, "2xA100-40GB", there)
    # Another configuration, as a preset brings it: what is planned for stays, its answers go.
    world.draft.replace(world.draft.text.replace("32", "64"), folder=world.folder, stem="other")
    assert is_consistent(page, "2xA100-40GB", "2xA100-40GB") and not page.plan.lines
    qtbot.waitUntil(lambda: page.plan.is_complete, timeout=WAIT_MS)
    assert is_consistent(page, "2xA100-40GB", there)
    world.set_output([], then="refuse")
    plan_for(page, "7 x nonsense")
    qtbot.waitUntil(lambda: page.problem_label.isVisible(), timeout=WAIT_MS)
    assert is_consistent(page, "7 x nonsense", "7 x nonsense") and not page.plan.lines
    world.set_output([plan_line("ddp", configured=True, target=local_target)])
    plan_for(page, "")
    assert is_consistent(page, None, local_target) and not page.problem_label.isVisible()
    qtbot.waitUntil(lambda: page.plan.is_complete, timeout=WAIT_MS)
    assert is_consistent(page, None, local_target)


def test_a_typed_target_applies_on_focus_out_and_reverts_on_escape(
    qtbot: QtBot, world: PlanWorld, page: PlanPage
) -> None:
    show_answers(qtbot, world, page, [plan_line("ddp", configured=True, target="cpu:2")])
    edit = page.target_box.lineEdit()
    assert edit is not None
    with qtbot.waitActive(page):
        page.activateWindow()
    edit.setFocus()
    edit.selectAll()
    qtbot.keyClicks(edit, "4 x H")
    page.refresh()
    assert edit.text().startswith("4 x H"), "somebody is typing"
    qtbot.keyClick(page.target_box, Qt.Key.Key_Escape)
    assert is_consistent(page, None, "cpu:2")
    edit.selectAll()
    qtbot.keyClicks(edit, "4 x 24GiB")
    page.table.setFocus()
    assert page.plan.devices == "4 x 24GiB" and is_consistent(page, "4 x 24GiB", "4 x 24GiB")


def test_bars_can_be_fitted_to_the_data(qtbot: QtBot, world: PlanWorld, page: PlanPage) -> None:
    lines = [gpu_line("ddp", 1.2, 1.1, configured=True), gpu_line("fsdp", 0.5, 0.5)]
    assert plan_chart_data.axis_text(plan_chart_data.scale(lines)) == "0–40 GiB"
    fitted = plan_chart_data.scale(lines, is_fitted=True)
    assert plan_chart_data.axis_text(fitted) == "0–1.2 GiB, fitted" and not fitted.shows_capacity
    assert plan_chart_data.scale([gpu_line("ddp", 44)], is_fitted=True).shows_capacity
    show_answers(qtbot, world, page, lines)
    assert not page.fit_button.isChecked() and page.fit_button.isEnabled()
    qtbot.mouseClick(page.fit_button, Qt.MouseButton.LeftButton)
    assert page.table.itemDelegate().scale == fitted  # type: ignore[attr-defined]
    page.grab()
    again = PlanPage(Theme(), world.draft, world.plan, world.plan, page._draft_race, page.settings)
    qtbot.addWidget(again)
    again.show()
    assert again.fit_button.isChecked(), "it is remembered"


@pytest.mark.parametrize("num_bars", range(1, 65))
def test_bar_labels_never_overlap(num_bars: int) -> None:
    indices = labelled_bars(num_bars)
    pitch = sum(bar_sizes(num_bars))
    assert list(indices) == sorted(indices) and (num_bars == 1) == (len(indices) == 0)
    tops = [index * pitch for index in indices]
    assert all(after - before >= INDEX_HEIGHT for before, after in pairwise(tops))
    assert num_bars == 1 or len(indices) >= 2


def test_all_values_are_labelled_predicted(qtbot: QtBot, world: PlanWorld, page: PlanPage) -> None:
    show_answers(qtbot, world, page, [plan_line("ddp", configured=True)])
    assert page.stat_strip.data[0].label == "Predicted for this run's devices"
    assert "predicted" in page.table.row_model.rows[0].tooltip


# The footer


@pytest.fixture
def footer(qtbot: QtBot, world: PlanWorld) -> LaunchFooter:
    footer = LaunchFooter(Theme(), world.plan, lambda: None, str)
    qtbot.addWidget(footer)
    footer.resize(290, 100)
    footer.show()
    return footer


def test_the_footer_shows_the_peak_and_the_verdict(
    qtbot: QtBot, world: PlanWorld, footer: LaunchFooter
) -> None:
    assert footer.estimate.accessibleName() == "No estimate yet"
    world.set_output([gpu_line("ddp", 30, 10, 10, configured=True)])
    world.plan.start()
    assert footer.estimate.accessibleName() == "No estimate yet: planning…"
    qtbot.waitUntil(lambda: world.plan.chosen_line is not None, timeout=WAIT_MS)
    text = footer.estimate.accessibleName()
    assert text.startswith("Predicted: GPU 0 30.0 · others 10.0 GiB") and "Fits in 40 GiB" in text


def test_the_footer_names_plans_that_do_not_fit(qtbot: QtBot, world: PlanWorld, footer: LaunchFooter) -> None:
    world.set_output([gpu_line("ddp", 44, configured=True, verdict=DOES_NOT_FIT)])
    world.plan.start()
    qtbot.waitUntil(lambda: world.plan.chosen_line is not None, timeout=WAIT_MS)
    assert "Does not fit in 40 GiB: 4.0 GiB short" in footer.estimate.accessibleName()
    world.set_output([plan_line("ddp", configured=True, verdict=DOES_NOT_FIT, reason="Not enough memory.")])
    world.plan.plan_again()
    qtbot.waitUntil(lambda: world.plan.chosen_line is not None, timeout=WAIT_MS)
    assert "Too much for this machine" in footer.estimate.accessibleName()
    world.set_output([gpu_line("ddp", 6, 6, configured=True, verdict=DOES_NOT_FIT)])
    world.plan.plan_again()
    qtbot.waitUntil(lambda: world.plan.chosen_line is not None, timeout=WAIT_MS)
    assert "Too much for this machine" in footer.estimate.accessibleName()
    for refusal, text in ((Problem("no", "No."), "DDP cannot run"), (None, "DDP: not predicted")):
        unknown = plan_line("ddp", devices=[], verdict=CANNOT, reason="No.", configured=True, refusal=refusal)
        world.set_output([unknown])
        world.plan.plan_again()
        qtbot.waitUntil(lambda: world.plan.chosen_line is not None, timeout=WAIT_MS)
        assert text in footer.estimate.accessibleName() and "No." in footer.estimate.accessibleName()


def test_a_problem_of_the_draft_replaces_the_estimate(
    qtbot: QtBot, world: PlanWorld, footer: LaunchFooter
) -> None:
    world.set_output([plan_line("ddp", configured=True)])
    world.plan.start()
    qtbot.waitUntil(lambda: world.plan.chosen_line is not None, timeout=WAIT_MS)
    footer.show_state(Problem("wrong", "train.steps is wrong."))
    assert footer.blocker_banner.message.accessibleName() == "train.steps is wrong."
    assert not footer.estimate.isVisible()


def test_a_click_on_the_estimate_opens_the_plan(qtbot: QtBot, app: App) -> None:
    view = app.window.side_bar.get_view("launch")
    qtbot.mouseClick(view.footer.estimate, Qt.MouseButton.LeftButton)
    page = app.window.editor.active_page()
    assert isinstance(page, PlanPage)
    assert {row.verdict_text for row in page.table.row_model.rows} == {"not planned"}
    target, chosen, *_ = page.stat_strip.data
    assert (target.value, chosen.label, chosen.value) == ("4 virtual devices", "Chosen: DP", "–")
    assert page.plan_button.isVisible() and "No plan yet" in page.reason_label.text()


def test_the_plan_button_is_hidden_once_there_are_answers(
    qtbot: QtBot, world: PlanWorld, page: PlanPage
) -> None:
    show_answers(qtbot, world, page, [plan_line("ddp", configured=True)])
    assert not page.plan_button.isVisible() and "No plan yet" not in page.reason_label.text()


def test_the_plan_is_in_the_palette_and_the_view_menu(app: App) -> None:
    command = app.window.commands["plan.show"]
    assert command.menu.startswith("View/") and command.palette
    command.run()
    assert isinstance(app.window.editor.active_page(), PlanPage)


# Whether strategies compute what one device does


def test_a_row_shows_its_verification(qtbot: QtBot, world: PlanWorld, page: PlanPage) -> None:
    show_answers(
        qtbot,
        world,
        page,
        [plan_line("ddp", configured=True), plan_line("fsdp"), plan_line("dp"), plan_line("model")],
    )
    assert page.verify_button.text() == "Verify" and page.verify_button.isEnabled()
    world.set_output(
        [with_verification("equal", plan_line("ddp")), with_verification("differs", plan_line("fsdp"))],
        then="hang",
    )
    page.verify_button.setFocus()
    qtbot.keyClick(page.verify_button, Qt.Key.Key_Space)
    qtbot.waitUntil(lambda: page.table.row_model.rows[2].verification_text == "differs", timeout=WAIT_MS)
    by_title = {plan_row.title: plan_row for plan_row in page.table.row_model.rows}
    assert by_title["DP"].verification_text == "verifying…"
    assert by_title["DDP"].verification_text == "equal" and "One device: equal" in by_title["DDP"].description
    assert "Differs from one device: head.weight, head.bias" in by_title["FSDP"].tooltip
    assert page.verify_button.text() == "Cancel Verification"
    qtbot.keyClick(page.verify_button, Qt.Key.Key_Space)
    assert page.table.row_model.rows[0].verification_text == "" and page.verify_button.text() == "Verify"
    page.grab()  # every sign is painted
    reason = page.reason_label.text()
    assert "Verified: the same result as one device for 1 of 2. Different: fsdp." in reason
    rows = list(plan_chart_data.csv_rows(world.plan))
    assert rows[0][-1] == "one_device" and any("Differs from one device" in str(row[-1]) for row in rows)


def test_the_verify_button_says_why_it_is_disabled(qtbot: QtBot, world: PlanWorld, page: PlanPage) -> None:
    world.draft.set_value(("train", "global_batch"), -1)
    page.show()
    assert not page.verify_button.isEnabled() and "global_batch" in page.verify_button.toolTip()


def test_the_footer_warns_of_a_strategy_that_differs(
    qtbot: QtBot, world: PlanWorld, footer: LaunchFooter
) -> None:
    world.set_output([with_verification("differs", plan_line("ddp", configured=True))])
    world.plan.set_wants_all(True)
    qtbot.waitUntil(lambda: world.plan.is_complete, timeout=WAIT_MS)
    assert "Differs" not in footer.estimate.accessibleName()
    world.plan.verification.start()
    qtbot.waitUntil(lambda: not world.plan.verification.is_running, timeout=WAIT_MS)
    assert "Differs from one device: head.weight, head.bias" in footer.estimate.accessibleName()


def test_launching_a_strategy_that_differs_shows_a_warning(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, launched, warned = app.session.plan, list[object](), list[str]()
    differing = with_verification("differs", plan_line(plan.chosen_strategy, configured=True))
    monkeypatch.setattr(type(plan), "chosen_line", property(lambda _: differing))
    monkeypatch.setattr(plan.verification, "_find_line", lambda _: differing)
    monkeypatch.setattr(app.launcher, "launch", launched.append)
    monkeypatch.setattr(app.window.toasts, "warn", warned.append)
    app.launcher.launch_draft()
    assert launched and warned == ["DP: Differs from one device: head.weight, head.bias."]


def test_verifying_is_a_command_that_opens_the_plan(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = list[bool]()
    monkeypatch.setattr(app.session.plan, "plan_again", lambda: starts.append(False))
    monkeypatch.setattr(app.session.plan.verification, "start", lambda: starts.append(True))
    command = app.window.commands["plan.verify"]
    assert command.palette and command.keys
    command.run()
    assert isinstance(app.window.editor.active_page(), PlanPage)
    assert starts == [False, True], "what is not planned yet is planned, too"


def test_an_impossible_plan_blocks_launch_and_offers_its_fix(
    qtbot: QtBot, world: PlanWorld, app: App
) -> None:
    why = Problem(
        "model", "gpt cannot be trained on digits.", path="model.use", advice="Use data.use = text.",
        cure={"data.use": "text"},
    )  # fmt: skip
    session, view = app.session, app.window.side_bar.get_view("launch")
    refused = {"devices": [], "verdict": CANNOT, "configured": True, "refusal": why}
    session.engine.python = str(FAKE_PLANNER)
    session.draft.choose(("data",), "digits")
    world.set_output([plan_line(session.plan.chosen_strategy, **refused)])
    session.plan.plan_again()
    qtbot.waitUntil(lambda: app.launcher.blocker() is not None, timeout=WAIT_MS)
    banner = view.footer.blocker_banner
    assert banner.message.text() == why.sentence and view.footer.launch_button.property("kind") != "primary"
    app.window.commands.run("run.launch")
    assert not app.launcher.num_pending and app.launcher.form_blocker() is None
    assert app.window.context.get("raceable"), "others can"
    qtbot.mouseClick(banner.fix_button, Qt.MouseButton.LeftButton)
    assert session.draft.value(("data", "use")) == "text" and app.launcher.blocker() is None
    assert view.footer.launch_button.property("kind") == "primary"


def test_a_refusal_for_other_devices_does_not_block_launch(qtbot: QtBot, world: PlanWorld) -> None:
    refused = plan_line("ddp", devices=[], verdict=CANNOT, configured=True, refusal=Problem("model", "No."))
    world.set_output([refused])
    world.plan.start()
    qtbot.waitUntil(lambda: world.plan.refusal is not None, timeout=WAIT_MS)
    world.plan.set_devices("4 x A100-80GB")
    qtbot.waitUntil(lambda: world.plan.chosen_line is not None, timeout=WAIT_MS)
    assert world.plan.refusal is None
