"""The times of hosts whose clocks differ: files keep what each host wrote, readers tell them by one clock."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankdeck import events
from rankdeck.run.row import read_info
from rankdeck.run.run_state import read_run_state
from rankdeck.run_dir import ORIGIN_FILE, EventReader, RunDir, RunOrigin
from tests.helpers.written_run import WrittenRun, device_infos

AHEAD_S = {0: 0.0, 1: 60.0, 2: -300.0}
"""Of the hosts of ranks 0, 1 and 2."""


@pytest.fixture
def written(tmp_path: Path) -> Iterator[WrittenRun]:
    run = WrittenRun(tmp_path / "runs")
    yield run
    run.end()


def report_clock(run: RunDir, *lines: dict[str, Any] | str, attempt: int = 0) -> None:
    defaults = {"attempt": attempt, "since": 0.0, "within_s": 0.001}
    with open(run.path / "clocks.jsonl", "a") as file:
        for line in lines:
            file.write(line if isinstance(line, str) else json.dumps({**defaults, **line}) + "\n")


def write_events(run: WrittenRun) -> None:
    """Three hosts with a rank each, that did everything at the same moments."""
    run.start(3, device_infos(3))
    for rank, ahead_s in AHEAD_S.items():
        start_time = 2_000_000.0 + ahead_s
        path = run.dir.events_folder / f"rank-{rank}.0.jsonl"
        new_events: list[events.Event] = [
            events.Steps(
                rank=rank, first=1, loss_sum=[1.0, 1.0], count=[1.0, 1.0], lr=[0.1, 0.1], samples=[1, 1],
                step_s=[1.0, 1.0], ended=[start_time + 1.0, start_time + 2.0],
            ),
            events.Spans(
                rank=rank, step=2, began=start_time + 1.0, seconds=1.0, names=["forward"], name=[0],
                device=[rank], start_us=[0], duration_us=[500_000],
            ),
            events.Metrics(
                rank=rank, through="rankdeck", steps=[1], times=[start_time + 2.5], after=[1],
                values={"a": [0.5]},
            ),
        ]  # fmt: skip
        for seq, event in enumerate(new_events):
            event.seq, event.t = seq, start_time + 3.0
        path.write_bytes(b"".join(map(events.encode, new_events)))


def event_times(run: RunDir) -> dict[str, list[float]]:
    """All of a rank's, by its file."""
    times: dict[str, list[float]] = {}
    for writer, event in EventReader(run).read():
        if writer.startswith("rank-"):
            more = {
                events.Steps: lambda event: event.ended,
                events.Spans: lambda event: [event.began],
                events.Metrics: lambda event: event.times,
            }[type(event)](event)
            times.setdefault(writer, []).extend([event.t, *more])
    return times


def report_all_clocks(run: RunDir) -> None:
    report_clock(
        run,
        {"host": "box2", "ranks": [1, 2], "ahead_s": 60.0},
        {"host": "box3", "ranks": [2, 3], "ahead_s": -300.0},
    )


def test_times_of_all_hosts_are_converted_to_the_first_host(written: WrittenRun) -> None:
    write_events(written)
    before = {file.name: file.read_bytes() for file in written.dir.events_folder.iterdir()}
    apart = event_times(written.dir)
    assert [row[0] - apart["rank-0"][0] for row in apart.values()] == [0.0, 60.0, -300.0]
    report_all_clocks(written.dir)
    times = event_times(written.dir)
    assert times["rank-0"] == times["rank-1"] == times["rank-2"] == apart["rank-0"]
    state = read_run_state(written.dir)
    assert state.last_row is not None and state.last_row.ended == 2_000_002.0
    assert before == {file.name: file.read_bytes() for file in written.dir.events_folder.iterdir()}


@pytest.mark.parametrize("is_told", [True, False])
def test_the_spans_of_a_step_use_one_clock(written: WrittenRun, is_told: bool) -> None:
    write_events(written)
    if is_told:
        report_all_clocks(written.dir)
    anatomy = read_run_state(written.dir).anatomy
    assert anatomy is not None
    starts = [span.start_s for row in anatomy.rows for span in row.spans]
    assert len(starts) == 3 and (max(starts) - min(starts) < 1e-3) == is_told


def test_clock_offsets_are_per_attempt_and_may_drift(written: WrittenRun) -> None:
    write_events(written)
    report_clock(written.dir, {"host": "box2", "ranks": [1, 2], "ahead_s": 60.0})
    report_clock(written.dir, {"host": "box3", "ranks": [1, 2], "ahead_s": 5.0}, attempt=1)
    report_clock(written.dir, {"host": "box2", "ranks": [1, 2], "ahead_s": 61.0, "since": 2_000_064.0})
    assert event_times(written.dir)["rank-1"][0] == 2_000_003.0, "told at 2,000,063 by its own clock"
    path = written.dir.events_folder / "rank-1.0.jsonl"
    late = events.Phase(rank=1, phase="saving")
    late.seq, late.t = 3, 2_000_064.5
    with open(path, "ab") as file:
        file.write(events.encode(late))
    phases = [event for _, event in EventReader(written.dir).read() if isinstance(event, events.Phase)]
    assert [event.t for event in phases] == [2_000_003.5]


def test_a_late_clock_report_counts_from_then_on(written: WrittenRun) -> None:
    write_events(written)
    reader = EventReader(written.dir)
    assert reader.read()
    sampler = written.dir.writer("sampler-box2")
    sampler.write(events.Sample(devices=[], interval_s=1.0))
    (_, first), *_ = reader.read()
    report_clock(written.dir, {"host": "box2", "ranks": [1, 2], "ahead_s": 60.0})
    sampler.write(events.Sample(devices=[], interval_s=1.0))
    (_, second), *_ = reader.read()
    assert -61.0 < second.t - first.t < -55.0
    sampler.close()


@pytest.mark.parametrize(
    "line",
    [
        "", "{}\n", "no json\n", "\xff\n", '{"attempt":0,"host":"box2"\n',
        {"host": "box2", "ranks": [1], "ahead_s": 60.0}, {"host": "box2", "ranks": [1, 2], "ahead_s": 1e300},
        {"host": "box2", "ranks": ["a", "b"], "ahead_s": 60.0},
        {"host": "box2", "ranks": [10**40, 10**41], "ahead_s": 60.0},
    ],
    ids=repr,
)  # fmt: skip
def test_invalid_clock_reports_are_ignored(written: WrittenRun, line: dict[str, Any] | str) -> None:
    write_events(written)
    apart = event_times(written.dir)
    report_clock(written.dir, line)
    assert event_times(written.dir) == apart
    report_all_clocks(written.dir)
    right = event_times(written.dir)
    assert right["rank-0"] == right["rank-1"]


def test_an_unreadable_clock_file_is_ignored_and_times_are_clamped(written: WrittenRun) -> None:
    write_events(written)
    (written.dir.path / "clocks.jsonl").mkdir()
    assert event_times(written.dir)
    (written.dir.path / "clocks.jsonl").rmdir()
    report_clock(written.dir, {"host": "box2", "ranks": [1, 2], "ahead_s": 3_000_000_000.0})
    times = {event.t for writer, event in EventReader(written.dir).read() if writer == "rank-1"}
    assert times == {events.EARLIEST}


def test_times_of_a_copied_run_use_the_local_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path / "home"))
    from rankdeck.base.home import copies_dir

    run = WrittenRun(copies_dir() / "box1" / "runs")
    write_events(run)
    report_all_clocks(run.dir)
    end = {"outcome": "completed", "exit_code": 0, "ended": 2_000_010.0, "reason": None}
    (run.dir.path / "end.json").write_text(json.dumps(end))
    before, start_time = event_times(run.dir)["rank-0"], read_info(run.dir).started
    origin = RunOrigin("box1", "/runs/there", ahead_s=3600.0)
    (run.dir.path / ORIGIN_FILE).write_bytes(msgspec.json.encode(dataclasses.asdict(origin)))
    assert event_times(run.dir)["rank-1"] == [t - 3600.0 for t in before]
    last, info = run.dir.exit_record(), read_info(run.dir)
    assert last is not None and last.ended == 1_996_410.0 and start_time is not None
    assert info.started == start_time - 3600.0 == info.intervals[0].started
