"""Steps become columns, whole and in order, soon after they were taken."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rankdeck import events
from rankdeck.run_dir import EventReader, EventWriter, RunDir
from rankdeck.training import reporting
from rankdeck.training.reporting import StepFacts, StepReporter
from tests.helpers.parity import configuration
from tests.helpers.rank_main import train_once

CPU = torch.device("cpu")


def step_facts(step: int, total: Any, norm: Any = None) -> StepFacts:
    loss = None if total is None else (total, 32)
    return StepFacts(step, loss, 0.1, 32, 0.001, time.time(), norm)


def read_steps(run: RunDir) -> list[events.Steps]:
    return [event for _, event in EventReader(run).read() if isinstance(event, events.Steps)]


def test_steps_are_written_together_and_complete(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    reporter = StepReporter(run.writer("rank-2"), 2, CPU)
    for step in range(5, 9):
        assert reporter.add(step_facts(step, float(step), norm=2.0 * step)) is None
    reporter.flush()
    (event,) = read_steps(run)
    assert (event.rank, event.first, event.loss_sum, event.count) == (2, 5, [5.0, 6.0, 7.0, 8.0], [32.0] * 4)
    assert event.grad_norm == [10.0, 12.0, 14.0, 16.0]
    assert len(event.lr) == len(event.samples) == len(event.step_s) == len(event.ended) == 4


def test_tensors_are_read_only_on_flush(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    reporter = StepReporter(run.writer("rank-0"), 0, CPU)
    reporter.add(step_facts(1, torch.tensor(1.5), norm=torch.tensor(0.25)))
    assert reporter.flush(wait=True) is None
    (event,) = read_steps(run)
    assert (event.loss_sum, event.grad_norm) == ([1.5], [0.25])


def test_a_rank_without_a_loss_reports_none(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    reporter = StepReporter(run.writer("rank-0"), 0, CPU)
    reporter.add(step_facts(1, None))
    reporter.flush()
    (event,) = read_steps(run)
    assert event.loss_sum is event.count is event.grad_norm is None


@pytest.mark.parametrize("num_devices", [1, 2])
def test_each_device_thread_reports_its_busy_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_devices: int
) -> None:
    monkeypatch.setattr(reporting, "SAMPLE_INTERVAL_S", 0.0)
    toml = configuration("mlp", '{ use = "dp" }', num_devices, steps=6)
    train_once({"toml": toml, "out": str(tmp_path / "out"), "events": str(tmp_path)}, rank=0, world_size=1)
    rank_events = events.decode_lines((tmp_path / "rank-0.0.jsonl").read_bytes())
    counts = [len(event.devices) for event in rank_events if isinstance(event, events.Sample)]
    assert set(counts) == ({2} if num_devices == 2 else set())


def test_steps_are_flushed_within_the_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(tmp_path)
    monkeypatch.setattr(reporting, "FLUSH_INTERVAL_S", 0.0)
    reporter = StepReporter(run.writer("rank-0"), 0, CPU)
    reporter.add(step_facts(1, 1.0))
    reporter.add(step_facts(2, 2.0))
    assert [event.first for event in read_steps(run)] == [1, 2]


def test_the_first_non_finite_loss_is_returned_with_its_step(tmp_path: Path) -> None:
    reporter = StepReporter(RunDir(tmp_path).writer("rank-0"), 0, CPU)
    for step, total in enumerate((1.0, float("inf"), float("nan")), start=4):
        assert reporter.add(step_facts(step, total)) is None
    assert reporter.flush() == (5, float("inf"))


def test_busy_time_is_reported_periodically(tmp_path: Path) -> None:
    meter = reporting.UtilizationMeter(EventWriter(tmp_path / "rank-0.0.jsonl"), 0, [0, 1])
    assert not meter.is_due()
    meter._last_report_s -= reporting.SAMPLE_INTERVAL_S
    assert meter.is_due()


@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_reports_loss_scale_changes(tmp_path: Path, rank: int) -> None:
    run = RunDir(tmp_path)
    reporter = StepReporter(run.writer(f"rank-{rank}"), rank, CPU)
    for step, scale in enumerate((4.0, 4.0, 2.0, 2.0, 4.0), start=3):
        facts = step_facts(step, 1.0)
        facts.loss_scale = torch.tensor(scale)
        reporter.add(facts)
        if step == 4:
            reporter.flush()
    reporter.flush()
    changes = [event for _, event in EventReader(run).read() if isinstance(event, events.LossScale)]
    assert [(event.step, event.scale) for event in changes] == (
        [(3, 4.0), (5, 2.0), (7, 4.0)] if not rank else []
    )
