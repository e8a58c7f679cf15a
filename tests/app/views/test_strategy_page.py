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
from rankdeck.run.movement import Part, timeline
from rankdeck_app.composition import App
from rankdeck_app.views.strategy.page import StrategyPage
from rankdeck_app.widgets.painting import Overflow, watch_overflows
from tests.helpers.told_plan import TEXT, line
from tests.helpers.waiting import with_load

PLANNED_S = 60


def opened(app: App, name: str) -> StrategyPage:
    app.actions.explain_strategy(name)
    page = app.window.editor.active_page()
    assert isinstance(page, StrategyPage)
    return page


def show_step(page: StrategyPage, num_devices: int) -> None:
    """As if the planner had answered."""
    group = list(range(num_devices))
    parts = [
        [Part("forward", rank, flops=9), Part("all-reduce", rank, num_bytes=2**20, peers=group)]
        for rank in group
    ]
    page.step.line = line(page.card.name, target=f"{num_devices} virtual devices", movement=None)
    page.step.timeline = timeline(parts, 0.3)
    page.step._question = page.step._question_now()
    page.step.changed.emit()


def test_a_strategy_page_names_defaults_where_there_are_some(app: App) -> None:
    for name in STRATEGIES:
        app.actions.explain_strategy(name)
        page = app.window.editor.active_page()
        assert isinstance(page, StrategyPage) and page.card.name == name
        texts = [label.text() for label in page.findChildren(QLabel)]
        assert not [text for text in texts if "Default: ." in text or "  " in text], name
        known = [field for field in option_fields(page.card.options) if field.default is not None]
        assert sum("Default: " in text for text in texts) == len(known), name


def test_every_strategy_has_a_page_that_explains_and_offers_it(qtbot: QtBot, app: App) -> None:
    app.actions.explain_strategy("ddp")
    page = app.window.editor.active_page()
    assert isinstance(page, StrategyPage) and page.title == "DDP"
    page.use_button.click()
    assert app.session.draft.value(("strategy", "use")) == "ddp"
    app.actions.explain_strategy("nonsense")
    assert app.window.editor.active_page() is not page


@pytest.mark.slow
def test_the_planner_s_own_step_is_drawn_with_the_draft_s_devices(
    qtbot: QtBot, make_app: Callable[[], App], tmp_path: Path
) -> None:
    """The figures are those of `rankdeck plan --movement`."""
    app = make_app()
    app.window.show()
    app.session.draft.replace(TEXT, folder=tmp_path, stem="mlp")
    app.window.settings.set("plan.automatic", True)
    page = opened(app, "pipeline")
    assert page.step.is_asking and page.drawing.figure.absence.startswith("Working out a step under")
    assert page.variants.isVisible() and page.use_button.isEnabled(), "the page is readable meanwhile"
    qtbot.waitUntil(lambda: page.step.timeline is not None, timeout=int(1000 * with_load(PLANNED_S)))
    assert page.drawing.figure.labels == ("Virtual 0", "Virtual 1")
    file = tmp_path / "asked.toml"
    file.write_text(TEXT.replace('use = "ddp"', 'use = "pipeline"'))
    told = CliRunner().invoke(command_line, ["plan", str(file), "--strategy", "own", "--movement"])
    assert page.step.timeline is not None
    assert f"moves {page.step.timeline.in_words()} a step" in " ".join(told.output.split())
    assert page.step.timeline.in_words() in page.chart_card.subtitle
    assert page.chart_card.source == "predicted"
    page.chart_card.exported("csv")(tmp_path / "step.csv")
    rows = list(csv.DictReader((tmp_path / "step.csv").read_text().splitlines()))
    assert {row["what"] for row in rows} >= {"forward", "backward", "step"}
    assert [row for row in rows if row["bytes"] and (row["among"] or row["from"])]


def test_nothing_of_the_page_is_cut(app: App) -> None:
    app.window.show()
    page = opened(app, "hybrid")
    looks = [("Dark Modern", 800, 500), ("Dark Modern", 1440, 900), ("Light Modern", 1280, 720)]
    for theme, *size in looks:
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
        assert page.chart_card.height() == page.chart_card.natural_height, (theme, size)


def test_what_is_pointed_at_is_told_below_the_drawing(qtbot: QtBot, app: App) -> None:
    app.window.show()
    page = opened(app, "ddp")
    show_step(page, 2)
    assert page.told.text().startswith("Point at a block or an arrow") and "no times" in page.told.text()
    qtbot.keyClick(page.drawing, Qt.Key.Key_End)
    assert page.told.text().startswith("all-reduce · among all 2 · 1.0 MiB sent by each")
    assert "DDP sends: Per rank and step" in page.told.text()


def test_an_option_that_is_tried_is_used_with_the_strategy(qtbot: QtBot, app: App) -> None:
    app.window.show()
    page = opened(app, "ddp")
    place = page.variants.findText("sync = ring")
    page.variants.setCurrentIndex(place)
    page.variants.activated.emit(place)
    assert page.use_button.text() == "Use DDP, sync = ring"
    assert app.session.draft.value(("strategy", "sync")) is None
    page.use_button.click()
    assert app.session.draft.value(("strategy", "use")) == "ddp"
    assert app.session.draft.value(("strategy", "sync")) == "ring"
    assert page.variants.findText("sync = native") > 0, "what differs now is offered"


def test_where_planning_is_not_automatic_a_button_asks(app: App) -> None:
    app.window.show()
    page = opened(app, "ddp")
    assert page.ask_button.isVisible() and page.drawing.figure.absence == "Not drawn yet"
    assert page.drawing.isAncestorOf(page.ask_button) and page.chart_card.height() < 100
    page.ask_button.click()
    assert page.step.is_asking and not page.ask_button.isVisible()
    page.step.close()


def test_the_drawing_is_copied_by_command(app: App) -> None:
    app.window.show()
    show_step(opened(app, "ddp"), 2)
    app.window.commands.run("chart.copy")
    assert not QApplication.clipboard().pixmap().isNull()


def test_the_page_comes_back_with_its_step_after_it_was_closed(app: App) -> None:
    app.window.show()
    page = opened(app, "ddp")
    show_step(page, 2)
    step = page.step
    app.window.editor.close_page(page.page_id)
    again = opened(app, "ddp")
    assert again is not page and again.step is step
    assert json.dumps(again.drawing.figure.labels) == '["Virtual 0", "Virtual 1"]'
