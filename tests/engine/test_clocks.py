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
from rankdeck.run.fold import read_fold
from rankdeck.run.row import read_info
from rankdeck.rundir import ORIGIN, EventReader, HostedRun, RunDir
from tests.helpers.written_run import WrittenRun, device_infos

AHEAD_S = {0: 0.0, 1: 60.0, 2: -300.0}
"""Of the hosts of ranks 0, 1 and 2."""


@pytest.fixture
def written(tmp_path: Path) -> Iterator[WrittenRun]:
    made = WrittenRun(tmp_path / "runs")
    yield made
    made.end()


def tell(run: RunDir, *lines: dict[str, Any] | str, attempt: int = 0) -> None:
    usual = {"attempt": attempt, "since": 0.0, "within_s": 0.001}
    with open(run.path / "clocks.jsonl", "a") as file:
        for line in lines:
            file.write(line if isinstance(line, str) else json.dumps({**usual, **line}) + "\n")


def write(made: WrittenRun) -> None:
    """Three hosts with a rank each, that did everything at the same moments."""
    made.begin(3, device_infos(3))
    for rank, ahead_s in AHEAD_S.items():
        began = 2_000_000.0 + ahead_s
        path = made.dir.events_folder / f"rank-{rank}.0.jsonl"
        told: list[events.Event] = [
            events.Steps(
                rank=rank, first=1, loss_sum=[1.0, 1.0], count=[1.0, 1.0], lr=[0.1, 0.1], samples=[1, 1],
                step_s=[1.0, 1.0], ended=[began + 1.0, began + 2.0],
            ),
            events.Spans(
                rank=rank, step=2, began=began + 1.0, seconds=1.0, names=["forward"], name=[0],
                device=[rank], start_us=[0], duration_us=[500_000],
            ),
            events.Metrics(
                rank=rank, through="rankdeck", steps=[1], times=[began + 2.5], after=[1], values={"a": [0.5]}
            ),
        ]  # fmt: skip
        for seq, event in enumerate(told):
            event.seq, event.t = seq, began + 3.0
        path.write_bytes(b"".join(map(events.encode, told)))


def times(run: RunDir) -> dict[str, list[float]]:
    """All of a rank's, by its file."""
    found: dict[str, list[float]] = {}
    for writer, event in EventReader(run).read():
        if writer.startswith("rank-"):
            more = {
                events.Steps: lambda event: event.ended,
                events.Spans: lambda event: [event.began],
                events.Metrics: lambda event: event.times,
            }[type(event)](event)
            found.setdefault(writer, []).extend([event.t, *more])
    return found


def tell_all(run: RunDir) -> None:
    tell(
        run,
        {"host": "box2", "ranks": [1, 2], "ahead_s": 60.0},
        {"host": "box3", "ranks": [2, 3], "ahead_s": -300.0},
    )


def test_times_of_all_hosts_are_those_of_the_first(written: WrittenRun) -> None:
    write(written)
    before = {file.name: file.read_bytes() for file in written.dir.events_folder.iterdir()}
    apart = times(written.dir)
    assert [row[0] - apart["rank-0"][0] for row in apart.values()] == [0.0, 60.0, -300.0]
    tell_all(written.dir)
    told = times(written.dir)
    assert told["rank-0"] == told["rank-1"] == told["rank-2"] == apart["rank-0"]
    fold = read_fold(written.dir)
    assert fold.last is not None and fold.last.ended == 2_000_002.0
    assert before == {file.name: file.read_bytes() for file in written.dir.events_folder.iterdir()}


@pytest.mark.parametrize("is_told", [True, False])
def test_the_anatomy_of_a_step_lies_under_one_ruler(written: WrittenRun, is_told: bool) -> None:
    write(written)
    if is_told:
        tell_all(written.dir)
    anatomy = read_fold(written.dir).anatomy
    assert anatomy is not None
    begins = [span.start_s for row in anatomy.rows for span in row.spans]
    assert len(begins) == 3 and (max(begins) - min(begins) < 1e-3) == is_told


def test_an_attempt_has_its_own_ranks_and_a_clock_may_go_on_drifting(written: WrittenRun) -> None:
    write(written)
    tell(written.dir, {"host": "box2", "ranks": [1, 2], "ahead_s": 60.0})
    tell(written.dir, {"host": "box3", "ranks": [1, 2], "ahead_s": 5.0}, attempt=1)
    tell(written.dir, {"host": "box2", "ranks": [1, 2], "ahead_s": 61.0, "since": 2_000_064.0})
    assert times(written.dir)["rank-1"][0] == 2_000_003.0, "told at 2,000,063 by its own clock"
    path = written.dir.events_folder / "rank-1.0.jsonl"
    late = events.Phase(rank=1, phase="saving")
    late.seq, late.t = 3, 2_000_064.5
    with open(path, "ab") as file:
        file.write(events.encode(late))
    told = [event for _, event in EventReader(written.dir).read() if isinstance(event, events.Phase)]
    assert [event.t for event in told] == [2_000_003.5]


def test_a_host_that_tells_late_counts_from_then_on_and_by_its_own_files_too(written: WrittenRun) -> None:
    write(written)
    reader = EventReader(written.dir)
    assert reader.read()
    sampler = written.dir.writer("sampler-box2")
    sampler.write(events.Sample(devices=[], interval_s=1.0))
    (_, first), *_ = reader.read()
    tell(written.dir, {"host": "box2", "ranks": [1, 2], "ahead_s": 60.0})
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
def test_what_makes_no_sense_changes_nothing(written: WrittenRun, line: dict[str, Any] | str) -> None:
    write(written)
    apart = times(written.dir)
    tell(written.dir, line)
    assert times(written.dir) == apart
    tell_all(written.dir)
    right = times(written.dir)
    assert right["rank-0"] == right["rank-1"]


def test_a_file_that_is_none_and_a_time_before_all_times(written: WrittenRun) -> None:
    write(written)
    (written.dir.path / "clocks.jsonl").mkdir()
    assert times(written.dir)
    (written.dir.path / "clocks.jsonl").rmdir()
    tell(written.dir, {"host": "box2", "ranks": [1, 2], "ahead_s": 3_000_000_000.0})
    told = {event.t for writer, event in EventReader(written.dir).read() if writer == "rank-1"}
    assert told == {events.EARLIEST}


def test_a_copy_is_told_by_the_clock_of_who_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKDECK_HOME", str(tmp_path / "home"))
    from rankdeck.base.home import copies_dir

    made = WrittenRun(copies_dir() / "box1" / "runs")
    write(made)
    tell_all(made.dir)
    end = {"outcome": "completed", "exit_code": 0, "ended": 2_000_010.0, "reason": None}
    (made.dir.path / "end.json").write_text(json.dumps(end))
    before, began = times(made.dir)["rank-0"], read_info(made.dir).started
    origin = HostedRun("box1", "/runs/there", ahead_s=3600.0)
    (made.dir.path / ORIGIN).write_bytes(msgspec.json.encode(dataclasses.asdict(origin)))
    assert times(made.dir)["rank-1"] == [t - 3600.0 for t in before]
    last, info = made.dir.end(), read_info(made.dir)
    assert last is not None and last.ended == 1_996_410.0 and began is not None
    assert info.started == began - 3600.0 == info.spells[0].began
