"""Know before you launch: the app and the real planner, on a small preset."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from rankdeck.run.plan_lines import CANNOT, FITS
from rankdeck_app.composition import App
from rankdeck_app.state.plan_process import PlanProcess
from rankdeck_app.views.plan.page import PlanPage
from tests.helpers.app_window import app_that_trains, wait_for, wait_for_launch

TEXT = """\
name = "Planned"
[model]
use = "mlp"
[data]
use = "digits"
[train]
steps = 12
global_batch = 32
evaluate_every = 0
[strategy]
use = "dp"
[devices]
use = "cpu:2"
"""
PLAN_TIMEOUT_S = 120


@pytest.fixture
def app(qtbot: QtBot, tmp_path: Path) -> Iterator[App]:
    with app_that_trains(tmp_path / "workspace", plans=True) as app:
        app.session.draft.replace(TEXT, folder=tmp_path, stem="planned")
        yield app


def test_the_prediction_in_the_footer_matches_the_measured_peak(qtbot: QtBot, app: App) -> None:
    plan = app.session.plan
    wait_for(lambda: plan.chosen_line is not None, PLAN_TIMEOUT_S, "an estimate")
    text = app.window.side_bar.get_view("launch").footer.estimate.accessibleName()
    assert text.startswith("Predicted: Virtual 0")
    predicted = [device.active_bytes for device in plan.chosen_line.devices]
    app.launcher.launch_draft()
    run = wait_for_launch(app)
    wait_for(lambda: run.outcome == "completed", PLAN_TIMEOUT_S, "the run's end")
    wait_for(lambda: run.prediction is not None, 10, "the prediction of the run")
    measured = [run.device_bytes(device) for device in run.devices]
    assert [run.predicted_bytes(device) for device in run.devices] == predicted
    assert predicted == pytest.approx(measured, rel=0.01)


@pytest.mark.slow
def test_the_plan_has_a_verdict_for_every_strategy(qtbot: QtBot, app: App) -> None:
    app.actions.show_plan()
    page = app.window.editor.active_page()
    assert isinstance(page, PlanPage)
    wait_for(lambda: page.plan.is_complete, 3 * PLAN_TIMEOUT_S, "the plan of every strategy")
    verdicts = {line.strategy: line.verdict for line in page.plan.lines}
    assert {"single", "dp", "ddp", "fsdp", "model"} <= {
        name for name, verdict in verdicts.items() if verdict == FITS
    }
    assert all(line.reason for line in page.plan.lines if line.verdict == CANNOT)
    cheapest, recommended, reason = page.plan.marks
    assert cheapest is not None and recommended is not None
    assert reason and reason in page.reason_label.text()


def test_verification_runs_real_ranks_and_can_be_canceled(
    qtbot: QtBot, app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    app.window.commands["plan.verify"].run()
    verification = app.session.plan.verification
    wait_for(
        lambda: any(verification.get_outcome(line) == "equal" for line in app.session.plan.lines),
        PLAN_TIMEOUT_S,
        "an answer",
    )
    app.window.editor.active_page().verify_button.click()  # type: ignore[union-attr, attr-defined]
    assert not verification.is_running
    wait_for(lambda: not list(tmp_path.glob("rankdeck-verify-*")), 30, "the end of its ranks")
    wait_for(lambda: not verification.findChildren(PlanProcess), 30, "the end of its process")
