"""What several views show of a run is the same in all of them: its name, its last loss, its steps, and what
was predicted for each device, over twelve runs with one attempt or several."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from rankdeck.base.units import format_bytes, format_loss
from rankdeck.compare.run_metrics import load_run
from rankdeck.compare.run_ref import RunRef
from rankdeck.compare.run_report import build_report
from rankdeck.run import plan_lines
from rankdeck.run.plan_lines import FITS, PlanLine, PlannedDevice
from rankdeck.run.prediction import prediction_file
from rankdeck.run.row import read_info
from rankdeck_app.composition import App
from rankdeck_app.views.dashboard import run_status
from rankdeck_app.views.dashboard.page import RunPage
from tests.helpers.app_window import open_run
from tests.helpers.cli import rankdeck_in_process
from tests.helpers.written_run import MIB, WrittenRun, device_infos

STRATEGIES = ("dp", "ddp", "fsdp")


def write_random_run(folder: Path, seed: int) -> WrittenRun:
    """A run of one to three attempts, each with a strategy, losses, peaks and a prediction of its own."""
    rng = random.Random(seed)
    num_devices, first = rng.randint(1, 5), 1
    run = WrittenRun(folder, f"run {seed}", {"name": ""})
    for attempt in range(rng.randint(1, 3)):
        strategy, num_steps = rng.choice(STRATEGIES), rng.randint(3, 30)
        title = f"MLP · {strategy.upper()} · {num_devices}"
        run.configure(strategy, attempt)
        name = f"environment.{attempt}.json" if attempt else "environment.json"
        (run.path / name).write_text(json.dumps({"title": title}), encoding="utf-8")
        lines = [
            PlannedDevice(device=at, name=f"Virtual {at}", active_bytes=size, total_bytes=size)
            for at in range(num_devices)
            for size in [rng.randint(50, 400) * MIB]
        ]
        line = PlanLine(strategy=strategy, options={}, label=strategy, verdict=FITS, devices=lines)
        prediction_file(run.dir).write_bytes(plan_lines.encode(line))
        run.start(1, device_infos(num_devices), strategy=strategy, attempt=attempt)
        run.write_steps(0, first, [rng.uniform(0.0005, 9.0) for _ in range(num_steps)], attempt=attempt)
        peaks = {at: {"activations": rng.randint(40, 500) * MIB} for at in range(num_devices)}
        run.write_memory(0, first + 1, peaks, attempt=attempt)
        first += num_steps
    run.end()
    return run


@pytest.mark.parametrize("seed", range(12))
def test_all_views_show_the_same_values_of_a_run(qtbot: QtBot, app: App, tmp_path: Path, seed: int) -> None:
    run = write_random_run(tmp_path / "runs", seed)
    facts = rankdeck_in_process("show", str(run.path), "--json").json
    info, compared = read_info(run.dir), load_run(RunRef(run.path))
    report = build_report(compared.run, compared.state)
    open_run(app, run.path)
    page = app.window.editor.active_page()
    assert isinstance(page, RunPage)
    live = page.run
    qtbot.waitUntil(lambda: live.is_over and live.prediction is not None and bool(live.devices))
    assert facts["title"] == info.title == compared.run.name == live.title == page.title
    assert facts["strategy"] == info.strategy == live.strategy
    assert facts["steps"] == live.step
    loss = format_loss(facts["loss"]["last"])
    assert {metric.key: metric.text for metric in report.metrics}["loss"] == loss
    assert next(cell.value for cell in run_status.stats(page.viewed_run) if cell.label == "Last loss") == loss
    assert loss in app.window.status_bar.item("loss", "right", 4, mono=True).text()
    predicted = [device["predicted_peak_bytes"] for device in facts["devices"]]
    assert None not in predicted
    assert [device.predicted_bytes for device in compared.run.devices] == predicted
    assert [device.predicted for device in report.devices] == [format_bytes(size) for size in predicted]
    assert [live.predicted_bytes(device) for device in live.devices] == predicted
    peaks = [device["peak_bytes"] for device in facts["devices"]]
    assert [live.device_bytes(device) for device in live.devices] == peaks
    if len(peaks) > 1:
        assert live.imbalance is not None and live.imbalance.device == facts["imbalance"]["device"]
        assert round(live.imbalance.excess_bytes) == facts["imbalance"]["excess_bytes"]
