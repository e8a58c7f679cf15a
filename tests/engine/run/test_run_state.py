"""One fold of a run: the rule of resumes, and the same state however the files are read."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.run import curves
from rankdeck.run.attempt import Attempt
from rankdeck.run.batch import Batch, RunChange
from rankdeck.run.row import read_info, row_json
from rankdeck.run.run_state import RunState, read_run_state
from rankdeck.run.summary_builder import summarize
from rankdeck.run_dir import EventReader, RunDir
from tests.helpers.written_run import MIB, WrittenRun, device_infos

NUM_RUNS = 150


def write_restored(run: WrittenRun, rank: int, step: int, attempt: int) -> None:
    run.writer(f"rank-{rank}", attempt).write(events.Restored(rank=rank, step=step))


def write_evaluation(run: WrittenRun, step: int, loss: float, attempt: int = 0) -> None:
    run.writer("rank-0", attempt).write(events.Evaluation(step=step, loss=loss, samples=4, seconds=0.1))


def write_repeated_steps(runs: Path, *, reports_restore: bool = True) -> WrittenRun:
    """Four steps and an evaluation, then steps 3 and 4 once more."""
    run = WrittenRun(runs)
    run.start()
    run.write_steps(0, 1, [5.0, 4.0, 3.0, 2.0])
    write_evaluation(run, 4, 0.5)
    run.write_memory(0, 4, {0: {"activations": 900 * MIB}})
    run.start(attempt=1)
    if reports_restore:
        write_restored(run, 0, 2, 1)
    run.write_steps(0, 3, [30.0, 20.0], attempt=1)
    return run


def test_a_problem_has_the_host_of_its_rank(tmp_path: Path) -> None:
    run, lost = WrittenRun(tmp_path / "runs"), Problem("x", "It went away.", rank=1)
    for attempt, hosts in enumerate((("a", "b", "c"), ("a", "c"))):
        devices = device_infos(len(hosts))
        for device, host in zip(devices, hosts, strict=True):
            device.host = host
        run.start(len(hosts), devices, attempt=attempt)
        run.writer("supervisor", attempt).write(events.ProblemRaised(problem=lost))
    state = read_run_state(run.dir)
    assert [problem.headline() for problem in state.problems] == [
        "rank 1 on b: It went away.",
        "rank 1 on c: It went away.",
    ]
    assert [problem.severity for problem in state.problems] == ["warning", "error"]
    assert state.with_host(lost).host == "c" and state.with_host(lost.replace_fields(rank=None)).host == ""
    assert [device.label for device in state.devices.values()] == ["a Virtual 0", "c Virtual 1"]


@pytest.mark.parametrize(
    ("host", "label"),
    [
        ("box2.cluster.example", "box2 Virtual 0"),
        ("10.77.0.2", "10.77.0.2 Virtual 0"),
        ("a-name-that-is-very-long", "a-name-that-is… Virtual 0"),
    ],
)
def test_a_device_label_has_the_short_host_name(tmp_path: Path, host: str, label: str) -> None:
    run, (device,) = WrittenRun(tmp_path / "runs"), device_infos(1)
    device.host = host
    run.start(1, [device])
    assert read_run_state(run.dir).devices[0].label == label


@pytest.mark.parametrize("reports_restore", [True, False], ids=["restored event", "from its first steps"])
def test_steps_trained_again_replace_older_steps(tmp_path: Path, reports_restore: bool) -> None:
    run = write_repeated_steps(tmp_path / "runs", reports_restore=reports_restore)
    state = read_run_state(run.dir)
    assert state.column("loss").tolist() == [5.0, 4.0, 30.0, 20.0]
    assert state.evaluation is None and state.devices[0].peak_bytes is None
    run.end()
    facts = summarize(run.dir).facts()
    assert (facts["loss"], facts["evaluation"], facts["steps"]) == ({"first": 5.0, "last": 20.0}, None, 4)
    before = summarize(run.dir, attempt=0).facts()
    assert (before["loss"]["last"], before["evaluation"]["loss"]) == (2.0, 0.5)
    assert before["devices"][0]["peak_bytes"] == 900 * MIB and before["outcome"] == "lost"


def test_a_later_attempt_replaces_steps_before_it_trains(tmp_path: Path) -> None:
    run = write_repeated_steps(tmp_path / "runs")
    run.start(attempt=2)
    write_restored(run, 0, 1, 2)
    state = read_run_state(run.dir)
    assert state.column("loss").tolist() == [5.0]
    assert (state.num_measured_steps, state.devices[0].num_sampled) == (1, 0)
    run.lose()


def test_the_largest_peak_is_of_any_attempt_and_live_bytes_of_the_last(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    for attempt, (step, peak_bytes) in enumerate([(2, 900), (3, 70)]):
        run.start(attempt=attempt)
        write_restored(run, 0, step - 1, attempt)
        run.write_memory(0, step, {0: {"activations": peak_bytes}}, attempt=attempt)
    device = read_run_state(run.dir).devices[0]
    assert (device.peak_bytes, device.live_bytes, device.memory_step) == (900, 35, 3)
    run.lose()


def test_an_attempt_that_ended_before_restoring_replaces_nothing(tmp_path: Path) -> None:
    run = write_repeated_steps(tmp_path / "runs")
    run.write_memory(0, 4, {0: {"activations": 70}}, attempt=1)
    write_evaluation(run, 4, 0.25, attempt=1)
    run.start(2, device_infos(2), strategy="ddp", attempt=2)
    run.writer("rank-0", 2).write(events.RankStarted(rank=0, pid=1, devices=[0]))
    problem = Problem("out-of-memory", "Too large.", rank=0)
    run.writer("rank-0", 2).write(events.RankFailed(rank=0, problem=problem))
    state = read_run_state(run.dir)
    assert state.column("loss").tolist() == [5.0, 4.0, 30.0, 20.0]
    assert state.evaluation is not None and state.evaluation.loss == 0.25
    assert state.devices[0].peak_bytes == 70
    assert state.rank_failures == [problem] and state.num_attempts == 3
    run.lose()


def test_errors_of_an_earlier_attempt_become_warnings(tmp_path: Path) -> None:
    run = write_repeated_steps(tmp_path / "runs")
    for attempt in (0, 1):
        problem = Problem("rank-killed", "It was killed.", rank=0)
        run.writer("supervisor", attempt).write(events.ProblemRaised(problem=problem))
    assert [problem.severity for problem in read_run_state(run.dir).problems] == ["warning", "error"]
    run.lose()


def test_sampled_steps_of_two_attempts_are_not_mixed(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    for attempt, ranks in ((0, [0]), (1, [1])):
        run.start(2, device_infos(2), attempt=attempt)
        for rank in ranks:
            run.writer(f"rank-{rank}", attempt).write(make_spans(rank, 4))
    assert read_run_state(run.dir).anatomy is None
    run.writer("rank-0", 1).write(make_spans(0, 4))
    assert read_run_state(run.dir).anatomy is not None
    run.lose()


def make_spans(rank: int, step: int) -> events.Spans:
    return events.Spans(
        rank=rank,
        step=step,
        began=100.0 + step,
        seconds=1.0,
        names=["forward"],
        name=[0],
        device=[rank],
        start_us=[0],
        duration_us=[1000],
        microbatch=[0],
    )


def test_invalid_numbers_are_rejected_and_counted(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.start(10**9)
    run.start(1)
    writer = run.writer("rank-0")
    for event in (
        events.Steps(rank=0, first=400_000_000, samples=[1], ended=[run.started + 1.0], step_s=[0.1]),
        events.Steps(rank=10**9, first=1, ended=[1.0]),
        events.Comm(rank=10**9, step=1, algorithm="ring", sent_bytes=5),
        events.Spans(**{**spans_fields(make_spans(0, 4)), "name": [0, 7]}),
    ):
        writer.write(event)
    state = read_run_state(run.dir)
    assert (state.step, len(state.column("step")), state.num_rejected) == (400_000_000, 1, 4)
    run.end()
    facts = summarize(run.dir).facts()
    assert facts["unreadable"] == 4 and facts["problems"][-1]["code"] == "unreadable-events"


def spans_fields(event: events.Spans) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__struct_fields__}


def test_events_of_a_newer_version_are_skipped_and_reported_once(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.start()
    run.write_steps(0, 1, [1.0])
    for event in ({"kind": "steps", "v": 99, "first": "one"}, {"kind": "weather", "rain": True}):
        with (run.path / "events" / "rank-0.0.jsonl").open("a") as file:
            file.write(json.dumps({**event, "seq": 1}) + "\n")
    run.end()
    facts = summarize(run.dir).facts()
    assert (facts["steps"], facts["newer_events"], facts["unreadable"]) == (1, 2, 0)
    assert [problem["code"] for problem in facts["problems"]] == ["newer-events"]


def test_rates_exclude_the_time_between_attempts(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.start()
    run.write_steps(0, 1, [1.0] * 5, step_s=0.5)
    run.started += 1000.0
    run.start(attempt=1)
    run.write_steps(0, 6, [1.0] * 5, step_s=0.5, attempt=1)
    state = read_run_state(run.dir)
    assert state.samples_per_s() == pytest.approx(16 / 0.5)
    assert state.step_times() == {"median": pytest.approx(0.5), "p99": pytest.approx(0.5)}
    run.lose()


def test_statistics_of_a_long_run_are_within_their_bounds(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.start(steps=20_000)
    choose = random.Random(0)
    ended = run.started
    for first in range(1, 20_001, 500):
        times = [choose.uniform(0.01, 0.02) for _ in range(500)]
        ends = (ended + np.cumsum(times)).tolist()
        ended = ends[-1]
        columns = {"loss_sum": [8.0] * 500, "count": [8.0] * 500, "samples": [16] * 500, "lr": [0.1] * 500}
        run.writer("rank-0").write(events.Steps(rank=0, first=first, step_s=times, ended=ends, **columns))
    exact, reduced = read_run_state(run.dir, max_rows=None), read_run_state(run.dir, max_rows=1000)
    assert exact.is_exact() and not reduced.is_exact()
    assert len(reduced.column("loss")) == 1000 and reduced.step == exact.step == 20_000
    assert reduced.first_row() == exact.first_row() and reduced.first_loss() == exact.first_loss()
    assert reduced.samples_per_s() == pytest.approx(exact.samples_per_s(), rel=1e-3)
    for name, value in exact.step_times().items():
        assert reduced.step_times()[name] == pytest.approx(value, rel=0.01), name
    run.lose()


# Any run, any split, any interleaving.


def random_run(folder: Path, choose: random.Random) -> tuple[WrittenRun, int]:
    """A run of one to four attempts on one to three ranks, some of which die at any moment; written by the
    real writer."""
    run = WrittenRun(folder)
    num_attempts = choose.randint(1, 4)
    reached = 0
    for attempt in range(num_attempts):
        if choose.random() < 0.1:
            continue  # its supervisor never came up
        world_size = choose.randint(1, 3)
        infos = device_infos(choose.choice([1, world_size]))
        run.start(world_size, infos, strategy=choose.choice(["ddp", "fsdp"]), attempt=attempt)
        run.started += choose.uniform(1, 50)
        if choose.random() < 0.15:
            continue  # it died before it restored anything
        after = choose.randint(0, reached)
        reports_restore = choose.random() < 0.7
        ends = [after + choose.randint(0, 12) for _ in range(world_size)]
        for rank in range(world_size):
            if reports_restore:
                write_restored(run, rank, after, attempt)
            _write_steps(run, choose, rank, after + 1, ends[rank], attempt, world_size)
        reached = max(reached, min(ends))
    return run, num_attempts


def _write_steps(
    run: WrittenRun, choose: random.Random, rank: int, first: int, last: int, attempt: int, world_size: int
) -> None:
    """The lines of one rank; the first rank of a longer chain is silent about losses at times."""
    is_silent = rank == 0 and world_size > 1 and choose.random() < 0.2
    writer = run.writer(f"rank-{rank}", attempt)
    while first <= last:
        num_steps = 1 if is_silent else min(choose.randint(1, 5), last - first + 1)
        losses = [choose.choice([None, choose.uniform(1, 9)]) for _ in range(num_steps)]
        if choose.random() < 0.1:
            writer._seq += 1  # a line that could not be written
        else:
            run.write_steps(rank, first, None if is_silent else losses, attempt=attempt)
        first += num_steps
        step = first - 1
        if choose.random() < 0.3:
            run.write_memory(rank, step, {rank: {"activations": choose.randint(1, 99)}}, attempt=attempt)
        if choose.random() < 0.3:
            writer.write(make_spans(rank, step))
        if choose.random() < 0.2:
            sample = events.DeviceSample(rank, utilisation=choose.random(), used_bytes=choose.randint(1, 99))
            writer.write(events.Sample(devices=[sample], interval_s=0.5, rank=rank))
        if rank == 0 and choose.random() < 0.3:
            write_evaluation(run, step, choose.uniform(1, 9), attempt)
        if choose.random() < 0.1:
            problem = Problem("checkpoint", f"of step {step}", rank=rank)
            writer.write(events.ProblemRaised(problem=problem))
        if choose.random() < 0.2:
            writer.write(events.Comm(rank=rank, step=step, algorithm="ring", sent_bytes=step, sync_s=0.1))


def state_fields(state: RunState, run: RunDir) -> dict[str, Any]:
    """Everything that is shown of a state."""
    curves = {name: getattr(state, name).points() for name in ("losses", "rates", "held_out")}
    return {
        "summary": summarize(run, state).facts(),
        "rows": list(state.rows()),
        "phases": state.phases,
        "devices": {index: fields_without_curves(device) for index, device in state.devices.items()},
        "histories": {
            index: [history.points() for history in (device.peak_history, device.utilisation_history)]
            for index, device in state.devices.items()
        },
        "curves": curves,
        "averages": [np.round(state.loss_ema.points()[1].astype(float), 4).tolist()],
    }


def fields_without_curves(device: Any) -> dict[str, Any]:
    fields = {name: value for name, value in vars(device).items() if name != "histories"}
    return {name: repr(value) for name, value in fields.items()}


def read_in_random_order(run: RunDir, choose: random.Random) -> RunState:
    """Files grow by any number of bytes at a time, in any order, and are folded in batches of any size."""
    state, batch = RunState(), Batch()
    contents = {path: path.read_bytes() for path in sorted(run.events_folder.iterdir())}
    offsets = dict.fromkeys(contents, 0)
    readers = {path: EventReader(run) for path in contents}
    while waiting := [path for path, data in contents.items() if offsets[path] < len(data)]:
        path = choose.choice(waiting)
        offsets[path] += choose.randint(1, 900)
        path.write_bytes(contents[path][: offsets[path]])
        for name, new_events in list(readers[path].batches()):
            if name == path.name:
                batch.add(name, new_events)
        if choose.random() < 0.5:
            state.apply(batch)
            batch = Batch()
    state.apply(batch)
    return state


def test_reading_in_any_order_gives_the_same_state(tmp_path: Path) -> None:
    for seed in range(NUM_RUNS):
        choose = random.Random(seed)
        run, _ = random_run(tmp_path / str(seed), choose)
        state = RunState()
        batch = Batch()
        for name, new_events in EventReader(run.dir).batches():
            batch.add(name, new_events)
        state.apply(batch)
        again = read_in_random_order(run.dir, choose)
        expected, actual = state_fields(state, run.dir), state_fields(again, run.dir)
        for key in expected:
            np.testing.assert_equal(actual[key], expected[key], err_msg=f"{key} of seed {seed}")
        row = row_json(read_info(run.dir))
        assert row["steps"] == (state.step or 0), seed
        assert row["strategy"] == (state.started.strategy if state.started else "single")
        run.lose()


def test_without_the_resume_rule_the_order_matters(tmp_path: Path) -> None:
    """The negative control: attempts are put one behind the other, and nothing becomes history."""
    num_wrong = 0
    for seed in range(20):
        run, _ = random_run(tmp_path / str(seed), random.Random(seed))
        right = read_run_state(run.dir).column("step").tolist()
        with mock.patch.object(Attempt, "cut", return_value=False):
            wrong = read_run_state(run.dir).column("step").tolist()
        assert right == sorted(set(right))
        num_wrong += wrong != right
        run.lose()
    assert num_wrong > 5


def test_a_batch_returns_its_changes(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.start()
    state, reader = RunState(), EventReader(run.dir)

    def changed() -> RunChange:
        batch = Batch()
        for name, new_events in reader.batches():
            batch.add(name, new_events)
        return state.apply(batch)

    assert changed() == RunChange.STATE
    run.write_steps(0, 1, [1.0])
    assert RunChange.STEPS in changed()
    run.write_memory(0, 1, {0: {"activations": 1}})
    assert changed() == RunChange.MEMORY
    write_evaluation(run, 1, 0.5)
    assert changed() == RunChange.EVALUATION
    assert changed() == RunChange.NOTHING
    run.lose()


def test_the_smoothed_loss_of_a_resumed_run_is_continuous(
    tmp_path: Path,
) -> None:
    """Also where steps are trained again, and whichever attempt is read first."""
    losses = [9.0 - 0.02 * step + 0.5 * (step % 7) for step in range(200)]
    reference, resumed = WrittenRun(tmp_path / "whole"), WrittenRun(tmp_path / "resumed")
    reference.start(steps=200)
    reference.write_steps(0, 1, losses)
    loss_chunks = [losses[:60] + [50.0] * 20, losses[60:100] + [-50.0] * 20, losses[100:]]
    for attempt, (after, chunk) in enumerate(zip((0, 60, 100), loss_chunks, strict=True)):
        resumed.start(steps=200, attempt=attempt)
        write_restored(resumed, 0, after, attempt)
        resumed.write_steps(0, after + 1, chunk, attempt=attempt)
    expected = smoothed_loss(reference.dir, [0])
    assert len(expected) == 200
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        np.testing.assert_allclose(smoothed_loss(resumed.dir, order), expected, rtol=1e-5, err_msg=str(order))
    with mock.patch.object(curves.Ema, "resume_from"):
        assert abs(smoothed_loss(resumed.dir, [0, 1, 2]) - expected).max() > 0.1
    for run in (reference, resumed):
        run.lose()


def smoothed_loss(run: RunDir, order: list[int]) -> np.ndarray:
    """The smoothed loss, after the files of each attempt were read on their own, in this order."""
    state = RunState()
    chunks = list(EventReader(run).batches())
    for attempt in order:
        for name, new_events in chunks:
            if name.endswith(f".{attempt}.jsonl"):
                batch = Batch()
                batch.add(name, new_events)
                state.apply(batch)
    x, y = state.loss_ema.points()
    assert x.tolist() == state.column("step").tolist()
    return y.astype(float)
