"""The figures of a run, from event files that the real writer wrote."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.run.batch import Batch
from rankdeck.run.imbalance import find_imbalance
from rankdeck.run.row import read_info, row_json
from rankdeck.run.run_state import RunState, read_run_state
from rankdeck.run.summary_builder import summarize
from rankdeck.run_dir import EventReader, events_from_end
from tests.helpers.written_run import MIB, WrittenRun, device_infos

SUMMARY_KEYS = {
    "run", "title", "tags", "note", "archived", "path", "outcome", "strategy", "options", "steps", "attempts",
    "loss", "evaluation",
    "samples_per_s", "step_s", "first_step_s", "devices", "imbalance", "comm", "bubble", "problems",
}  # fmt: skip
DEVICE_KEYS = {"device", "uuid", "kind", "peak_bytes", "peak_by_kind", "utilisation_mean"}


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    """Ten steps of 32 samples of a dp run on four devices, 0.5 s each, device 0 far ahead."""
    run = WrittenRun(tmp_path / "runs")
    run.start(1, device_infos(4), steps=10)
    run.write_steps(0, 1, [10.0 - step for step in range(10)], count=32.0, step_s=0.5)
    low = {"parameters": 10 * MIB, "activations": 20 * MIB}
    run.write_memory(0, 1, {0: {"parameters": 10 * MIB}, **dict.fromkeys((1, 2, 3), low)})
    run.write_memory(0, 2, {0: {"parameters": 10 * MIB, "gathered": 80 * MIB}})
    run.write_memory(0, 3, {0: {"parameters": 10 * MIB, "gathered": 50 * MIB}})
    return run


def test_the_summary_has_its_documented_keys(run: WrittenRun) -> None:
    run.end()
    facts = summarize(run.dir).facts()
    assert set(facts) >= SUMMARY_KEYS
    assert (facts["run"], facts["path"], facts["outcome"]) == (run.dir.name, str(run.path), "completed")
    assert (facts["strategy"], facts["steps"], facts["attempts"]) == ("dp", 10, 1)
    assert facts["loss"] == {"first": 10.0, "last": 1.0}
    assert facts["first_step_s"] == pytest.approx(0.5)
    assert facts["step_s"] == {"median": pytest.approx(0.5), "p99": pytest.approx(0.5)}
    assert all(set(device) >= DEVICE_KEYS for device in facts["devices"])
    json.dumps(facts, allow_nan=False)


def test_samples_per_second_exclude_the_first_fifth(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.start(1, steps=10)
    run.write_steps(0, 1, [1.0, 1.0], step_s=9.0)
    slow = run.started + 18.0
    run.started = slow - 0.5 * 2
    run.write_steps(0, 3, [1.0] * 8, step_s=0.5)
    run.end()
    # 8 steps of 16 samples in 8 x 0.5 s, after two slow ones.
    assert summarize(run.dir).facts()["samples_per_s"] == pytest.approx(32.0)


def test_the_peak_has_the_kinds_of_its_own_step(run: WrittenRun) -> None:
    run.end()
    facts = summarize(run.dir).facts()
    lead = facts["devices"][0]
    assert lead["peak_bytes"] == 90 * MIB
    assert (lead["sampled_steps"], facts["devices"][1]["sampled_steps"], facts["steps_measured"]) == (
        3,
        1,
        10,
    )
    assert lead["peak_by_kind"] == {"parameters": 10 * MIB, "gathered": 80 * MIB}
    assert sum(lead["peak_by_kind"].values()) == lead["peak_bytes"]


def test_imbalance_is_against_the_median_of_the_others(run: WrittenRun) -> None:
    run.end()
    assert summarize(run.dir).facts()["imbalance"] == {"device": 0, "excess_bytes": 60 * MIB, "ratio": 3.0}


@pytest.mark.parametrize(
    ("peaks", "device", "excess_bytes"),
    [([100, 100, 105], 2, 5), ([100, 98, 98], 0, 2), ([100, 100, 120], 2, 20), ([0, 0], 0, 0)],
)
def test_the_fullest_device_leads_and_ties_go_to_the_first(
    peaks: list[int], device: int, excess_bytes: int
) -> None:
    imbalance = find_imbalance(dict(enumerate(peaks)))
    assert imbalance is not None
    assert (imbalance.device, imbalance.excess_bytes) == (device, excess_bytes)


def test_imbalance_needs_two_known_peaks() -> None:
    assert find_imbalance({0: 5, 1: None}) is None


def test_unknown_is_none_and_not_zero(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs", config={"strategy": {"use": "ddp"}})
    run.end("failed", 2, reason="The machine said no.")
    facts = summarize(run.dir).facts()
    assert facts["strategy"] == "ddp"
    for key in ("samples_per_s", "first_step_s", "imbalance", "comm", "bubble", "evaluation", "source"):
        assert facts[key] is None, key
    assert facts["loss"] == {"first": None, "last": None}
    assert facts["step_s"] == {"median": None, "p99": None}
    assert [problem["message"] for problem in facts["problems"]] == ["The machine said no."]


def test_a_last_loss_of_nan_is_unknown(run: WrittenRun) -> None:
    run.write_steps(0, 11, [None])
    run.end()
    assert summarize(run.dir).facts()["loss"] == {"first": 10.0, "last": None}


def test_utilisation_is_a_time_mean_without_missing_readings(run: WrittenRun) -> None:
    for share, seconds in ((1.0, 3.0), (0.0, 1.0), (None, 100.0)):
        sample = events.DeviceSample(device=1, utilisation=share)
        run.writer("rank-0").write(events.Sample(devices=[sample], interval_s=seconds, rank=0))
    run.end()
    devices = summarize(run.dir).facts()["devices"]
    assert devices[1]["utilisation_mean"] == pytest.approx(0.75)
    assert devices[0]["utilisation_mean"] is None


def test_the_last_evaluation_and_bytes_of_every_rank_are_reported(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.start(2, device_infos(2), strategy="ddp")
    for rank in (0, 1):
        run.write_steps(rank, 1, [1.0])
        run.writer(f"rank-{rank}").write(
            events.Comm(
                rank=rank, step=3, algorithm="native", sent_bytes=100 + rank, sync_s=0.2, overlapped_s=0.1
            )
        )
    for step, accuracy in ((1, 0.5), (2, 0.75)):
        run.writer("rank-0").write(
            events.Evaluation(step=step, loss=1.0, samples=8, seconds=0.1, accuracy=accuracy)
        )
    run.end()
    facts = summarize(run.dir).facts()
    assert facts["comm"] == {
        "algorithm": "native",
        "sent_bytes_per_step": [100, 101],
        "sync_s": [0.2, 0.2],
        "overlapped_s": [0.1, 0.1],
    }
    assert (facts["evaluation"]["accuracy"], facts["evaluation"]["step"]) == (0.75, 2)


def test_problems_have_code_rank_message_and_advice(run: WrittenRun) -> None:
    problem = Problem("nan", "The loss is not finite.", rank=1, advice="Lower the rate.", last_lines=("a",))
    run.writer("supervisor").write(events.ProblemRaised(problem=problem))
    run.end("failed", 1)
    (facts,) = summarize(run.dir).facts()["problems"]
    expected = {"code": "nan", "rank": 1, "message": "The loss is not finite.", "advice": "Lower the rate."}
    assert {key: facts[key] for key in expected} == expected


def test_a_killed_run_is_reported_as_killed(run: WrittenRun) -> None:
    run.lose()
    facts = summarize(run.dir).facts()
    assert facts["outcome"] == "lost"
    assert facts["problems"][-1]["code"] == "lost"


def test_without_a_named_cause_rank_failures_are_reported(run: WrittenRun) -> None:
    failure = Problem("exception", "Rank 0 raised ValueError: no", rank=0)
    run.writer("rank-0").write(events.RankFailed(rank=0, problem=failure))
    run.end("failed", 1)
    assert [problem["code"] for problem in summarize(run.dir).facts()["problems"]] == ["exception"]


def apply_next(state: RunState, reader: EventReader, max_bytes: int = 16 << 20) -> None:
    batch = Batch()
    for name, new_events in reader.batches(max_bytes, max_bytes):
        batch.add(name, new_events)
    state.apply(batch)


def test_a_live_state_equals_that_of_the_finished_run(run: WrittenRun) -> None:
    state, reader = RunState(), EventReader(run.dir)
    for step in range(11, 31):
        run.write_steps(0, step, [1.0], step_s=0.5)
        apply_next(state, reader, max_bytes=300)
    run.end()
    apply_next(state, reader)
    assert summarize(run.dir, state).facts() == summarize(run.dir, read_run_state(run.dir)).facts()


def test_rate_and_remaining_time_use_the_last_steps(run: WrittenRun) -> None:
    state = read_run_state(run.dir)
    assert state.recent_samples_per_s() == pytest.approx(32.0)
    assert state.remaining_s() == 0.0
    assert state.started is not None
    state.started.steps = 20
    assert state.remaining_s() == pytest.approx(10 * 0.5)
    run.end()
    assert RunState().remaining_s() is None and RunState().recent_samples_per_s() is None


def test_epochs_become_steps_once_ranks_have_counted_them(run: WrittenRun) -> None:
    state = RunState()
    batch = Batch()
    batch.add("rank-0.0.jsonl", [events.Phase(rank=0, phase="training", steps=90)])
    state.apply(batch)
    assert state.num_steps_planned == 90
    apply_next(state, EventReader(run.dir))
    run.end()
    assert state.num_steps_planned == 10


def test_dropped_lines_are_counted(run: WrittenRun) -> None:
    run.writer("rank-0").write(events.Dropped(lines=7, reason="full"))
    state = read_run_state(run.dir)
    run.end()
    assert sum(event.lines for event in state.dropped) == 7
    assert not math.isnan(state.column("loss")[0])


def test_a_row_is_read_from_the_ends_of_files(run: WrittenRun) -> None:
    run.end()
    assert row_json(read_info(run.dir)) == {
        "run": run.dir.name,
        "path": str(run.path),
        "title": "gpt-dp",
        "tags": [],
        "archived": False,
        "outcome": "completed",
        "reason": None,
        "strategy": "dp",
        "started": run.started,
        "steps": 10,
        "steps_planned": 10,
    }


def test_the_row_of_a_pending_run_uses_its_configuration(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs", config={"strategy": {"use": "ddp"}})
    run.end("failed", 2)
    row = row_json(read_info(run.dir))
    assert (row["strategy"], row["steps"], row["started"]) == ("ddp", 0, None)


def test_the_last_event_is_found_before_an_unfinished_line(run: WrittenRun) -> None:
    for _ in range(4000):
        run.writer("rank-0").write(events.Sample(devices=[events.DeviceSample(0)], interval_s=0.25, rank=0))
    run.end()
    with open(run.path / "events" / "rank-0.0.jsonl", "a") as file:
        file.write('{"kind":"st')
    last_events = events_from_end(run.path / "events" / "rank-0.0.jsonl")
    assert next(event for event in last_events if isinstance(event, events.Steps)).first == 1
    assert row_json(read_info(run.dir))["steps"] == 10
