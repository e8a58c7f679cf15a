"""Every preset and every strategy starts from the side bar: its row is chosen, its options are a form."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from rankdeck.config import presets
from rankdeck.config.catalog import STRATEGIES
from rankdeck_app.composition import App
from rankdeck_app.views.launch.side_bar import LaunchView
from tests.helpers.app_window import app_that_trains, wait_for, wait_for_launch

RUN_TIMEOUT_S = 120
# The suggestion of test_app_launch.py is one of them.
PRESETS = [
    pytest.param(card, id=card.name, marks=pytest.mark.slow)
    for card in presets.list_presets()
    if not card.needs_gpu
]
ROWS = [pytest.param(name, marks=pytest.mark.slow) for name in STRATEGIES]


@pytest.fixture
def app(qtbot: QtBot, tmp_path: Path) -> Iterator[App]:
    with app_that_trains(tmp_path / "workspace") as app:
        yield app


def side_bar(app: App) -> LaunchView:
    (view,) = app.window.findChildren(LaunchView)
    return view


def check_three_steps(app: App, strategy: str, devices: str) -> None:
    app.session.draft.set_values(
        {("train", "steps"): 3, ("train", "evaluate_every"): 0, ("devices", "use"): devices}
    )
    section = side_bar(app).strategy
    assert section.list.currentRow() == list(STRATEGIES).index(strategy)
    assert {key[1] for key in section.options.fields} == shown_options(strategy)
    app.launcher.launch_draft()
    run = wait_for_launch(app)
    wait_for(lambda: run.outcome not in (None, "running"), RUN_TIMEOUT_S, "the end of the run")
    assert run.outcome == "completed" and run.step == 3, run.problems


def shown_options(strategy: str) -> set[str]:
    """All but tables, which are written in the file."""
    return {
        name
        for name, field in STRATEGIES[strategy].options.model_fields.items()
        if "dict" not in str(field.annotation)
    }


@pytest.mark.parametrize("card", PRESETS)
def test_every_preset_launches_from_the_side_bar(app: App, card: presets.Preset) -> None:
    app.actions.use_preset(card)
    check_three_steps(app, card.strategy, "cpu:4")


@pytest.mark.parametrize("name", ROWS)
def test_every_strategy_launches_with_its_defaults(app: App, name: str) -> None:
    section = side_bar(app).strategy
    small = {"layers": 4, "heads": 4, "width": 64, "context": 32}
    app.session.draft.set_values({("model", "args", key): value for key, value in small.items()})
    app.session.draft.choose(("data",), "synthetic")
    app.session.draft.set_values({("devices", "use"): "cpu:2", ("train", "clip_norm"): 0.0})
    section.list.setCurrentRow(list(STRATEGIES).index(name))
    check_three_steps(app, name, "cpu:2")
