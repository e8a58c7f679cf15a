"""Predicted beside measured, and the scale that a measured step sets, read from runs' directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck.compare.run_metrics import load_run
from rankdeck.compare.run_ref import RunRef
from rankdeck.planner.accuracy import compare_with_measured, error_spread, step_time_scale
from rankdeck.planner.candidates import Target, TargetDevice
from rankdeck.run import plan_lines
from rankdeck.run.plan_lines import PlanLine, PlannedDevice, StepTime
from rankdeck.run.prediction import prediction_file, read_prediction
from rankdeck.run.summary_builder import summarize
from tests.helpers.written_run import MIB, WrittenRun, device_infos

H100_TARGET = Target("1 x H100", (TargetDevice("NVIDIA H100 80GB HBM3", None),), like_cuda=True)


def write_run(runs: Path, peak_mib: int, low_s: float, high_s: float) -> WrittenRun:
    """A run of one GPU with ten steps of 0.2 s and a prediction of 100 MiB."""
    run = WrittenRun(runs)
    run.start(1, device_infos(1, "gpu"))
    run.write_steps(0, 1, [1.0] * 10, step_s=0.2)
    run.write_memory(0, 3, {0: {"parameters": peak_mib * MIB}})
    device = PlannedDevice(
        device=0, name="NVIDIA H100 80GB HBM3", active_bytes=100 * MIB, total_bytes=100 * MIB
    )
    step = StepTime(low_s=low_s, high_s=high_s)
    line = PlanLine(
        strategy="single", options={}, label="single", verdict="fits", devices=[device], step=step
    )
    run.end()
    prediction_file(run.dir).write_bytes(plan_lines.encode(line))
    return run


def test_a_run_is_compared_with_its_prediction(tmp_path: Path) -> None:
    run = write_run(tmp_path, peak_mib=80, low_s=0.1, high_s=0.1)
    (row,) = compare_with_measured(run.dir)
    assert row.error == pytest.approx(0.25)
    assert summarize(run.dir).facts()["devices"][0]["predicted_peak_bytes"] == 100 * MIB


def test_each_attempt_has_its_own_prediction(tmp_path: Path) -> None:
    run = write_run(tmp_path, peak_mib=80, low_s=0.1, high_s=0.1)
    run.configure("fsdp", attempt=1)
    run.start(1, device_infos(1, "gpu"), strategy="fsdp", attempt=1)
    run.write_memory(0, 13, {0: {"parameters": 40 * MIB}}, attempt=1)
    run.lose()
    assert read_prediction(run.dir) is None
    device = PlannedDevice(device=0, active_bytes=41 * MIB, total_bytes=41 * MIB)
    line = PlanLine(strategy="fsdp", options={}, label="fsdp", verdict="fits", devices=[device])
    prediction_file(run.dir).write_bytes(plan_lines.encode(line))
    for attempt, predicted in ((None, 41), (0, 100), (1, 41)):
        facts = summarize(run.dir, attempt=attempt).facts()
        assert facts["devices"][0]["predicted_peak_bytes"] == predicted * MIB
        (device_told,) = load_run(RunRef(run.path, attempt)).run.devices
        assert device_told.predicted_bytes == predicted * MIB


def test_a_measured_step_of_the_same_model_and_gpu_sets_the_scale(tmp_path: Path) -> None:
    run = write_run(tmp_path, peak_mib=80, low_s=0.05, high_s=0.2)
    config = run.dir.config()
    assert step_time_scale([run.dir], config, H100_TARGET) == pytest.approx(2.0)
    other = Target("1 x A100", (TargetDevice("A100-80GB", None),), like_cuda=True)
    assert step_time_scale([run.dir], config, other) is None


def test_the_error_spread_ignores_signs() -> None:
    spread = error_spread([0.01, -0.02, 0.03])
    assert spread is not None
    assert (spread.median, spread.p95, spread.worst) == (0.02, 0.03, 0.03)
    assert error_spread([]) is None
