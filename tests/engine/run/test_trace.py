"""A trace has what the Perfetto viewer asks for: complete events, names of processes and tracks, counters."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rankdeck import events
from rankdeck.base.errors import ConfigError
from rankdeck.run import export as exporting
from tests.helpers.written_run import WrittenRun, device_infos


@pytest.fixture
def trace(tmp_path: Path) -> dict[str, Any]:
    """Two ranks of ddp: an all-reduce that begins under backward and ends after it."""
    run = WrittenRun(tmp_path / "runs")
    run.start(2, device_infos(2), strategy="ddp")
    for rank in (0, 1):
        run.writer(f"rank-{rank}").write(
            events.Spans(
                rank=rank,
                step=4,
                began=run.started + 2.0,
                seconds=0.001,
                names=["forward", "backward", "all-reduce"],
                name=[0, 1, 2],
                device=[rank] * 3,
                start_us=[0, 300, 500],
                duration_us=[200, 400, 300],
                num_bytes=[None, None, 4096],
                simulated=True,
            )
        )
        run.write_memory(rank, 4, {rank: {"parameters": 64}})
    run.end()
    file = tmp_path / "trace.json"
    exporting.export_trace(run.dir, file)
    document: dict[str, Any] = json.loads(file.read_text())
    return document


def events_of_type(trace: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == kind]


def test_every_phase_is_a_complete_event_of_its_rank_and_device(trace: dict[str, Any]) -> None:
    spans = events_of_type(trace, "X")
    assert all(event.keys() >= {"name", "ts", "dur", "pid", "tid", "args"} for event in spans)
    forward = next(event for event in spans if event["name"] == "forward" and event["pid"] == 1)
    assert forward["ts"] == pytest.approx(2e6, abs=1.0) and forward["dur"] == pytest.approx(200)
    assert forward["args"] == {"step": 4, "time": "simulated time"}
    reduce = next(event for event in spans if event["name"] == "all-reduce")
    assert reduce["args"]["bytes"] == 4096


def test_phases_of_one_track_do_not_overlap(trace: dict[str, Any]) -> None:
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events_of_type(trace, "X"):
        where = tracks.setdefault((event["pid"], event["tid"]), [])
        where.append((event["ts"], event["ts"] + event["dur"]))
    assert len(tracks) == 4
    for spans in tracks.values():
        ordered = sorted(spans)
        assert all(end <= start + 1 for (_, end), (start, _) in pairwise(ordered))


def test_ranks_and_devices_are_named_and_memory_is_a_counter(trace: dict[str, Any]) -> None:
    names = {(event["name"], event["args"].get("name")) for event in events_of_type(trace, "M")}
    assert {("process_name", "rank 0 (ddp)"), ("thread_name", "Virtual 1")} <= names
    (first, _) = events_of_type(trace, "C")
    assert first["args"]["peak_bytes"] == 64


def test_gaps_are_idle_phases(trace: dict[str, Any]) -> None:
    idle = [event for event in events_of_type(trace, "X") if event["name"] == "idle" and event["pid"] == 0]
    assert [round(event["dur"]) for event in idle] == [100, 200]


def test_a_trace_without_sampled_steps_is_refused(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.start(1, steps=3)
    run.end()
    with pytest.raises(ConfigError, match="no sampled step"):
        exporting.export_trace(run.dir, tmp_path / "trace.json")
    assert not (tmp_path / "trace.json").exists()
