"""A live run sees every event of its directory once, joins its ranks, and never invents what is not known."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PySide6.QtCore import QCoreApplication

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.run.batch import RunChange
from rankdeck_app.state.live_run import LiveRun
from tests.helpers.waiting import wait_until
from tests.helpers.written_run import MIB, WrittenRun, device_infos


@pytest.fixture
def written(tmp_path: Path) -> Iterator[WrittenRun]:
    run = WrittenRun(tmp_path / "runs")
    yield run
    run.lose()


@pytest.fixture
def opened(qapp: QCoreApplication) -> Iterator[Callable[[Path], LiveRun]]:
    runs: list[LiveRun] = []

    def open_run(path: Path) -> LiveRun:
        runs.append(LiveRun(path))
        runs[-1].start()
        return runs[-1]

    yield open_run
    for run in runs:
        run.close()


def drain_until(run: LiveRun, condition: Callable[[], object]) -> None:
    def step() -> bool:
        run.drain()
        return bool(condition())

    wait_until(step)


def test_nothing_is_known_before_anything_was_written(
    written: WrittenRun, opened: Callable[[Path], LiveRun]
) -> None:
    run = opened(written.path)
    drain_until(run, lambda: run.outcome)
    assert run.outcome == "running" and run.config is not None
    unknown = (run.step, run.loss, run.samples_per_s, run.eta_s, run.elapsed_s, run.imbalance)
    assert unknown == (None,) * 6 and run.state.evaluation is None
    assert run.strategy is None and run.source is None and run.capacity_bytes is None


def test_a_point_appears_when_all_ranks_reported_it(
    written: WrittenRun, opened: Callable[[Path], LiveRun]
) -> None:
    written.start(world_size=2, devices=device_infos(2), strategy="ddp")
    written.write_steps(0, 1, [1.0, 2.0, 3.0], count=10)
    written.write_steps(1, 1, [4.0], count=30)
    run = opened(written.path)
    drain_until(run, lambda: run.step == 1)
    written.write_steps(1, 2, [5.0, None], count=30)
    drain_until(run, lambda: run.step == 3)
    x, y = run.state.losses.points()
    assert x.tolist() == [1, 2, 3]
    np.testing.assert_allclose(y, [(10 + 120) / 40, (20 + 150) / 40, np.nan], rtol=1e-6)
    assert run.state.last_row.lr == pytest.approx(1e-3)


def test_a_rank_that_reports_no_loss_does_not_dilute_it(
    written: WrittenRun, opened: Callable[[Path], LiveRun]
) -> None:
    written.start(world_size=2, devices=device_infos(2), strategy="pipeline")
    written.write_steps(0, 1, None)
    written.write_steps(1, 1, [7.0])
    run = opened(written.path)
    drain_until(run, lambda: run.step == 1)
    assert run.state.losses.last_y == 7.0


def test_reopening_reads_every_step_once(written: WrittenRun, opened: Callable[[Path], LiveRun]) -> None:
    written.start(steps=400)
    first = opened(written.path)
    for step in range(1, 301, 3):
        written.write_steps(0, step, [float(step), float(step + 1), float(step + 2)])
        first.drain()
    first.close()
    written.write_steps(0, 301, [301.0])
    second = opened(written.path)
    drain_until(second, lambda: second.step == 301)
    np.testing.assert_array_equal(second.state.losses.points()[0], np.arange(1, 302))
    np.testing.assert_array_equal(second.state.losses.points()[1], np.arange(1, 302))


def test_a_partial_last_line_is_read_when_complete(
    written: WrittenRun, opened: Callable[[Path], LiveRun]
) -> None:
    written.start()
    line = events.encode(
        events.Steps(rank=0, first=1, loss_sum=[3.0], count=[1.0], step_s=[0.1], samples=[1], ended=[5.0])
    )
    path = written.dir.events_folder / "rank-0.0.jsonl"
    path.write_bytes(line[:40])
    run = opened(written.path)
    drain_until(run, lambda: run.strategy)
    assert run.step is None
    with path.open("ab") as file:
        file.write(line[40:])
    drain_until(run, lambda: run.step == 1)
    assert run.state.losses.last_y == 3.0 and run.state.counts.missing == 0


def test_a_lost_line_leaves_a_gap_and_is_counted(
    written: WrittenRun, opened: Callable[[Path], LiveRun]
) -> None:
    written.start()
    written.write_steps(0, 1, [1.0])
    written.writer("rank-0")._seq += 1
    written.write_steps(0, 3, [3.0])
    run = opened(written.path)
    drain_until(run, lambda: run.step == 3 and run.state.counts.missing)
    np.testing.assert_array_equal(run.state.losses.points()[1], [1.0, np.nan, 3.0])
    assert run.state.counts.missing == 1


def test_a_restart_continues_from_the_first_attempt(
    written: WrittenRun, opened: Callable[[Path], LiveRun]
) -> None:
    written.start(world_size=2, devices=device_infos(2))
    for rank in (0, 1):
        written.write_steps(rank, 1, [1.0, 2.0, 3.0])
    written.write_steps(0, 4, [4.0])
    written.start(world_size=1, devices=device_infos(1), attempt=1)
    written.write_steps(0, 3, [30.0, 40.0, 50.0], attempt=1)
    run = opened(written.path)
    drain_until(run, lambda: run.step == 5)
    assert run.state.losses.points()[0].tolist() == [1, 2, 3, 4, 5]
    assert run.state.losses.points()[1].tolist() == [1, 2, 30, 40, 50]


@pytest.mark.parametrize("outcome", ["completed", "failed", "stopped"])
def test_the_outcome_comes_after_every_event(
    written: WrittenRun, opened: Callable[[Path], LiveRun], outcome: str
) -> None:
    written.start(steps=3)
    run = opened(written.path)
    drain_until(run, lambda: run.outcome == "running")
    written.write_steps(0, 1, [1.0, 2.0, 3.0])
    written.writer("rank-0").write(events.Evaluation(step=3, loss=0.5, samples=9, seconds=0.1, final=True))
    written.end(outcome)
    drain_until(run, lambda: run.outcome == outcome)
    assert run.step == 3 and run.state.evaluation is not None and run.state.evaluation.loss == 0.5
    assert run.eta_s is None and run.elapsed_s is not None


def test_a_run_that_reports_all_the_time_is_running(
    written: WrittenRun, opened: Callable[[Path], LiveRun]
) -> None:
    """No look at its outcome meets a moment without news."""
    written.start()
    written.write_exit_record("stopped")
    run = opened(written.path)
    drain_until(run, lambda: run.outcome == "stopped")
    (written.path / "end.json").unlink()
    step = iter(range(1, 100_000))

    def is_said() -> bool:
        written.write_steps(0, next(step), [1.0])
        return run.outcome == "running"

    drain_until(run, is_said)


def test_a_run_without_a_guard_is_lost(written: WrittenRun, opened: Callable[[Path], LiveRun]) -> None:
    written.start()
    written.lose()
    run = opened(written.path)
    drain_until(run, lambda: run.outcome == "lost")


def test_memory_and_imbalance_by_device(written: WrittenRun, opened: Callable[[Path], LiveRun]) -> None:
    written.start(devices=device_infos(4))
    run = opened(written.path)
    lead = {"parameters": 100 * MIB, "gathered": 186 * MIB}
    written.write_memory(0, 0, {index: {"parameters": 10 * MIB} for index in range(4)})
    written.write_memory(0, 5, {0: lead} | {index: {"parameters": 78 * MIB} for index in (1, 2, 3)})
    drain_until(run, lambda: run.devices and run.devices[3].memory_step == 5)
    imbalance = run.imbalance
    assert imbalance is not None and imbalance.device == 0 and imbalance.is_notable
    assert imbalance.excess_bytes == 208 * MIB and imbalance.ratio == pytest.approx(286 / 78)
    assert run.source == events.MEASURED_IN_REHEARSAL and run.is_rehearsal
    assert len(run.devices[0].memory_history) == 2


def test_a_finished_run_shows_the_peak_of_the_whole_run(
    written: WrittenRun, opened: Callable[[Path], LiveRun]
) -> None:
    written.start(devices=device_infos(2))
    written.write_memory(0, 1, {0: {"activations": 90 * MIB}, 1: {"activations": 30 * MIB}})
    written.write_memory(0, 2, {0: {"activations": 40 * MIB}, 1: {"activations": 30 * MIB}})
    run = opened(written.path)
    drain_until(run, lambda: run.devices and run.devices[0].memory_step == 2)
    assert run.device_bytes(run.devices[0]) == 40 * MIB
    written.end()
    drain_until(run, lambda: run.outcome == "completed")
    assert run.device_bytes(run.devices[0]) == 90 * MIB


def test_readings_before_the_start_is_known_are_kept(
    written: WrittenRun, opened: Callable[[Path], LiveRun]
) -> None:
    run = opened(written.path)
    sample = events.Sample(devices=[events.DeviceSample(device=0, utilisation=0.5)], interval_s=0.2)
    written.writer("sampler").write(sample)
    drain_until(run, lambda: run.state.num_events == 1)
    written.start()
    written.writer("sampler").write(events.Sample(devices=[events.DeviceSample(device=0)], interval_s=0.2))
    drain_until(run, lambda: run.state.num_events == 3 and run.devices)
    assert len(run.devices[0].utilisation_history) == 1, "an unknown reading is not a reading of zero"
    assert run.devices[0].interval_s == 0.2


def test_problems_are_emitted_in_order(written: WrittenRun, opened: Callable[[Path], LiveRun]) -> None:
    written.start()
    run = opened(written.path)
    emitted_problems: list[Problem] = []
    run.problem_raised.connect(emitted_problems.append)
    problem = Problem("rank-raised", "Rank 1 raised ValueError: no.", advice="Look at its output.", rank=1)
    written.writer("rank-1").write(events.ProblemRaised(problem=problem))
    drain_until(run, lambda: emitted_problems)
    assert run.problems == emitted_problems == [problem]


def test_draining_exceeds_its_budget_by_one_batch_at_most(
    written: WrittenRun, opened: Callable[[Path], LiveRun]
) -> None:
    written.start()
    run = opened(written.path)
    drain_until(run, lambda: run.outcome)
    written.write_steps(0, 1, [1.0])
    wait_until(lambda: run.has_unread)
    changes: list[RunChange] = []
    run.changed.connect(changes.append)
    assert run.drain(budget_s=0.0) & RunChange.STEPS
    assert run.drain() == RunChange.NOTHING and len(changes) == 1


def test_closing_ends_the_thread(written: WrittenRun, opened: Callable[[Path], LiveRun]) -> None:
    run = opened(written.path)
    drain_until(run, lambda: run.outcome)
    run.close()
    assert not any(thread.name.startswith("tail") for thread in threading.enumerate())


def test_damaged_lines_and_an_invalid_configuration_are_tolerated(
    written: WrittenRun, opened: Callable[[Path], LiveRun]
) -> None:
    (written.path / "config.toml").write_text("not = [toml", encoding="utf-8")
    written.start()
    with (written.dir.events_folder / "rank-0.0.jsonl").open("wb") as file:
        file.write(b"\x00\xff garbage\n" + json.dumps({"kind": "of-tomorrow", "seq": 1}).encode() + b"\n")
    run = opened(written.path)
    drain_until(run, lambda: run.strategy)
    assert run.config is None and run.step is None


def test_peaks_of_another_strategy_are_dropped(
    written: WrittenRun, opened: Callable[[Path], LiveRun]
) -> None:
    written.start(devices=device_infos(2), strategy="dp")
    written.write_steps(0, 1, [1.0])
    written.write_memory(0, 1, {0: {"activations": 900}, 1: {"activations": 100}})
    written.start(world_size=2, devices=device_infos(2), strategy="ddp", attempt=1)
    for rank in range(2):
        written.write_steps(rank, 2, [1.0], attempt=1)
        written.write_memory(rank, 2, {rank: {"activations": 300 + rank}}, attempt=1)
    written.end()
    run = opened(written.path)
    drain_until(run, lambda: run.outcome == "completed")
    assert [run.device_bytes(device) for device in run.devices] == [300, 301]
    assert [len(device.peak_history) for device in run.devices] == [2, 2]
    assert run.imbalance is not None and run.imbalance.excess_bytes == 1


def test_a_resumed_strategy_keeps_its_largest_peak(
    written: WrittenRun, opened: Callable[[Path], LiveRun]
) -> None:
    for attempt, peak in enumerate((900, 300)):
        written.start(devices=device_infos(1), attempt=attempt)
        written.write_steps(0, 1 + attempt, [1.0], attempt=attempt)
        written.write_memory(0, 1 + attempt, {0: {"activations": peak}}, attempt=attempt)
    written.end()
    run = opened(written.path)
    drain_until(run, lambda: run.outcome == "completed")
    assert run.device_bytes(run.devices[0]) == 900
