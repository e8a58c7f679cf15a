"""A strategy's page explains it, draws one step of it with the draft's own sizes, and offers it."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QLabel
from pytestqt.qtbot import QtBot
from typer.testing import CliRunner

from rankdeck.cli.app import app as command_line
from rankdeck.config.catalog import STRATEGIES, option_fields
from rankdeck.run.movement import Operation, build_timeline
from rankdeck_app.composition import App
from rankdeck_app.views.strategy.page import StrategyPage
from rankdeck_app.widgets.painting import Overflow, watch_overflows
from tests.helpers.fake_plan import TEXT, plan_line
from tests.helpers.waiting import scale_timeout

PLAN_TIMEOUT_S = 60


def open_strategy_page(app: App, name: str) -> StrategyPage:
    app.actions.explain_strategy(name)
    page = app.window.editor.active_page()
    assert isinstance(page, StrategyPage)
    return page


def show_step(page: StrategyPage, num_devices: int) -> None:
    """As if the planner had answered."""
    group = list(range(num_devices))
    operations = [
        [Operation("forward", rank, flops=9), Operation("all-reduce", rank, num_bytes=2**20, peers=group)]
        for rank in group
    ]
    page.step_movement.line = plan_line(
        page.spec.name, target=f"{num_devices} virtual devices", movement=None
    )
    page.step_movement.timeline = build_timeline(operations, 0.3)
    page.step_movement._question = page.step_movement._make_question()
    page.step_movement.changed.emit()


def test_a_strategy_page_lists_option_defaults(app: App) -> None:
    for name in STRATEGIES:
        app.actions.explain_strategy(name)
        page = app.window.editor.active_page()
        assert isinstance(page, StrategyPage) and page.spec.name == name
        texts = [label.text() for label in page.findChildren(QLabel)]
        assert not [text for text in texts if "Default: ." in text or "  " in text], name
        defaults = [field for field in option_fields(page.spec.options) if field.default is not None]
        assert sum("Default: " in text for text in texts) == len(defaults), name


def test_every_strategy_has_a_page(qtbot: QtBot, app: App) -> None:
    app.actions.explain_strategy("ddp")
    page = app.window.editor.active_page()
    assert isinstance(page, StrategyPage) and page.title == "DDP"
    page.use_button.click()
    assert app.session.draft.value(("strategy", "use")) == "ddp"
    app.actions.explain_strategy("nonsense")
    assert app.window.editor.active_page() is not page


@pytest.mark.slow
def test_the_planned_step_is_drawn_with_the_devices_of_the_draft(
    qtbot: QtBot, make_app: Callable[[], App], tmp_path: Path
) -> None:
    """The figures are those of `rankdeck plan --movement`."""
    app = make_app()
    app.window.show()
    app.session.draft.replace(TEXT, folder=tmp_path, stem="mlp")
    app.window.settings.set("plan.automatic", True)
    page = open_strategy_page(app, "pipeline")
    assert page.step_movement.is_planning and page.drawing.data.empty_text.startswith("Planning a step with")
    assert page.variant_box.isVisible() and page.use_button.isEnabled(), "the page is readable meanwhile"
    qtbot.waitUntil(
        lambda: page.step_movement.timeline is not None, timeout=int(1000 * scale_timeout(PLAN_TIMEOUT_S))
    )
    assert page.drawing.data.labels == ("Virtual 0", "Virtual 1")
    file = tmp_path / "asked.toml"
    file.write_text(TEXT.replace('use = "ddp"', 'use = "pipeline"'))
    result = CliRunner().invoke(command_line, ["plan", str(file), "--strategy", "own", "--movement"])
    assert page.step_movement.timeline is not None
    assert f"moves {page.step_movement.timeline.text()} per step" in " ".join(result.output.split())
    assert page.step_movement.timeline.text() in page.chart_card.subtitle
    assert page.chart_card.source == "predicted"
    page.chart_card.make_export("csv")(tmp_path / "step.csv")
    rows = list(csv.DictReader((tmp_path / "step.csv").read_text().splitlines()))
    assert {row["what"] for row in rows} >= {"forward", "backward", "step"}
    assert [row for row in rows if row["bytes"] and (row["among"] or row["from"])]


def test_nothing_of_the_page_is_cut(app: App) -> None:
    app.window.show()
    page = open_strategy_page(app, "hybrid")
    themes_and_sizes = [("Dark Modern", 800, 500), ("Dark Modern", 1440, 900), ("Light Modern", 1280, 720)]
    for theme, *size in themes_and_sizes:
        app.window.theme.load(theme)
        app.window.resize(*size)
        overflows: list[Overflow] = []
        for num_devices in (1, 4, 16):
            show_step(page, num_devices)
            QApplication.processEvents()
            with watch_overflows(overflows.append):
                page.grab()
                page.drawing.grab()
        assert not overflows, (theme, size)
        assert page.chart_card.height() == page.chart_card.preferred_height, (theme, size)


def test_the_hovered_block_is_described_below_the_drawing(qtbot: QtBot, app: App) -> None:
    app.window.show()
    page = open_strategy_page(app, "ddp")
    show_step(page, 2)
    assert (
        page.hint_label.text().startswith("Hover over a block or an arrow")
        and "show bytes, not time" in page.hint_label.text()
    )
    qtbot.keyClick(page.drawing, Qt.Key.Key_End)
    assert page.hint_label.text().startswith("all-reduce · among all 2 devices · 1.0 MiB sent by each")
    assert "DDP sends: Per rank and step" in page.hint_label.text()


def test_a_tried_option_is_used_with_the_strategy(qtbot: QtBot, app: App) -> None:
    app.window.show()
    page = open_strategy_page(app, "ddp")
    index = page.variant_box.findText("sync = ring")
    page.variant_box.setCurrentIndex(index)
    page.variant_box.activated.emit(index)
    assert page.use_button.text() == "Use DDP, sync = ring"
    assert app.session.draft.value(("strategy", "sync")) is None
    page.use_button.click()
    assert app.session.draft.value(("strategy", "use")) == "ddp"
    assert app.session.draft.value(("strategy", "sync")) == "ring"
    assert page.variant_box.findText("sync = native") > 0, "what differs now is offered"


def test_without_automatic_planning_a_button_draws_the_step(app: App) -> None:
    app.window.show()
    page = open_strategy_page(app, "ddp")
    assert page.draw_button.isVisible() and page.drawing.data.empty_text == "Not drawn yet"
    assert page.drawing.isAncestorOf(page.draw_button) and page.chart_card.height() < 100
    page.draw_button.click()
    assert page.step_movement.is_planning and not page.draw_button.isVisible()
    page.step_movement.close()


def test_the_drawing_is_copied_by_command(app: App) -> None:
    app.window.show()
    show_step(open_strategy_page(app, "ddp"), 2)
    app.window.commands.run("chart.copy")
    assert not QApplication.clipboard().pixmap().isNull()


def test_a_reopened_page_shows_its_step(app: App) -> None:
    app.window.show()
    page = open_strategy_page(app, "ddp")
    show_step(page, 2)
    step = page.step_movement
    app.window.editor.close_page(page.page_id)
    again = open_strategy_page(app, "ddp")
    assert again is not page and again.step_movement is step
    assert json.dumps(again.drawing.data.labels) == '["Virtual 0", "Virtual 1"]'
