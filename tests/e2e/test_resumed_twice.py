"""A run that was killed and resumed twice: `show`, exports, the list and the dashboard say the same of it."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from PySide6.QtCore import QCoreApplication
from safetensors import safe_open

from rankdeck.run.attempt import Attempt
from rankdeck.run.run_state import read_run_state
from rankdeck.run.series import Ema
from rankdeck.run_dir import RunDir
from rankdeck_app.state.live_run import LiveRun
from tests.helpers import killed_runs
from tests.helpers.cli import rankdeck_in_process
from tests.helpers.waiting import wait_until


def run_with_two_kills(folder: Path) -> RunDir:
    """A small run on two ranks, through the commands, to its end."""
    tables = killed_runs.make_tables({"use": "ddp"}, 2, None, steps=70, every=20) | {"name": "killed-twice"}
    tables["train"]["evaluate_every"] = 4
    (folder / "run.toml").write_text(
        killed_runs.make_config(tables, folder / "runs").to_toml(), encoding="utf-8"
    )
    started = rankdeck_in_process(
        "train", folder / "run.toml", "--runs", folder / "runs", "--detach", exit_code=0
    )
    run, choose = RunDir(Path(started.out.strip())), random.Random(0)
    for step in (25, 45):
        pids = killed_runs.wait_for_step(run, step)
        # Every rank has told of steps behind the checkpoint, and the next checkpoint is far.
        wait_until(lambda: (read_run_state(run).step or 0) >= step - 2, interval_s=0.01)  # noqa: B023
        killed_runs.kill(run, "rank", choose, pids)
        rankdeck_in_process("resume", run.path, "--detach", exit_code=0)
    killed_runs.wait_for_result(run)
    return run


def export_run(run: RunDir, to: str, *args: str) -> Any:
    file = run.path.parent / f"exported.{to}"
    rankdeck_in_process("export", run.path, file, "--to", to, *args, exit_code=0)
    text = file.read_text(encoding="utf-8")
    return json.loads(text) if to == "json" else list(csv.DictReader(text.splitlines()))


def open_in_app(run: RunDir) -> LiveRun:
    """The run in the app, read to its end."""
    live = LiveRun(run.path)
    live.start()
    wait_until(lambda: live.drain() is None or (live.outcome == "completed" and not live.has_unread))
    live.close()
    return live


@pytest.mark.slow
@pytest.mark.usefixtures("short_tmpdir")
def test_all_views_of_a_run_resumed_twice_agree(tmp_path: Path, qapp: QCoreApplication) -> None:
    run = run_with_two_kills(tmp_path)
    facts = rankdeck_in_process("show", run.path, "--json", exit_code=0).json
    assert (facts["attempts"], facts["steps"], facts["outcome"]) == (3, 70, "completed")
    everything, rows, live = export_run(run, "json"), export_run(run, "csv"), open_in_app(run)
    assert everything["summary"] == facts
    assert [row["step"] for row in everything["steps"]] == list(range(1, 71))
    losses = [row["loss"] for row in everything["steps"]]
    assert [float(row["loss"]) for row in rows] == losses
    assert (facts["loss"]["first"], facts["loss"]["last"]) == (losses[0], losses[-1])

    steps, loss_values = live.state.losses.points()
    assert steps.tolist() == list(range(1, 71)) and live.step == facts["steps"]
    assert loss_values.tolist() == pytest.approx(losses, rel=1e-6)
    smoothed = Ema(1 / 2).extend(np.array([losses]))[0]
    assert live.state.loss_ema.points()[1].tolist() == pytest.approx(smoothed.tolist(), rel=1e-5)
    assert live.samples_per_s == facts["samples_per_s"]
    assert live.state.step_times() == facts["step_s"]
    evaluation = live.state.evaluation
    assert evaluation is not None and evaluation.step == facts["evaluation"]["step"] == 70
    assert evaluation.loss == facts["evaluation"]["loss"]
    peaks = [live.device_bytes(device) for device in live.devices]
    assert peaks == [device["peak_bytes"] for device in facts["devices"]]
    assert live.state.counts.missing == facts["missing_lines"]
    steps, _ = live.state.held_out.points()
    assert len(steps) == len({*steps})
    (row,) = [
        row for row in rankdeck_in_process("runs", "--json", exit_code=0).json if row["run"] == run.name
    ]
    assert {key: row[key] for key in row} == {key: facts[key] for key in row}

    # As the first attempt left it, the run has steps that were trained again since.
    first = rankdeck_in_process("show", run.path, "--json", "--attempt", "0", exit_code=0).json
    restored = read_run_state(run).attempts[1].restored
    assert restored is not None and restored == 20 < first["steps"]
    before = export_run(run, "csv", "--attempt", "0")
    assert (
        len(before) == first["steps"]
        and [float(row["loss"]) for row in before[:restored]] == losses[:restored]
    )
    assert (
        rankdeck_in_process("show", run.path, "--attempt", "3", exit_code=2).err.count("has no attempt 3")
        == 1
    )

    weights = tmp_path / "w.safetensors"
    to = ("export", run.path, weights, "--to", "safetensors")
    # Weights of an attempt are those that the next one began with, while that checkpoint is kept.
    assert "No complete checkpoint" in rankdeck_in_process(*to, "--attempt", "0", exit_code=2).err
    later = read_run_state(run).attempts[2].restored
    assert rankdeck_in_process(*to, "--attempt", "1", "--json", exit_code=0).json["step"] == later
    with safe_open(weights, framework="numpy") as file:
        assert file.metadata()["step"] == str(later)
        early = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    rankdeck_in_process(*to, exit_code=0)
    with safe_open(weights, framework="numpy") as file:
        assert any((file.get_tensor(name) != early[name]).any() for name in early)
    assert first["weights"] is None and facts["weights"] is not None

    # The negative control: without the rule of resumes a fold of the same files shows other steps.
    with mock.patch.object(Attempt, "cut", return_value=False):
        assert read_run_state(run).column("step").tolist() != steps.tolist()
