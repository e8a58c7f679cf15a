"""What a run of a person's own script leaves to other programs."""

from __future__ import annotations

import csv
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankdeck import events
from rankdeck.base.errors import ConfigError
from rankdeck.run import export as exporting
from rankdeck.run.tensorboard import _masked_crc
from tests.helpers.written_run import WrittenRun
from tests.helpers.written_script import WrittenScript


@pytest.fixture
def run(tmp_path: Path) -> Iterator[WrittenScript]:
    run = WrittenScript(tmp_path / "runs")
    run.start_script(2)
    for rank in (0, 1):
        run.observe_rank(rank)
        run.write_step_line(rank, 1, [4.0, None], samples=8, wait_s=0.25, grad_norm=2.0)
    run.write_owner_memory(0, {"parameters": 64})
    run.write_logged(0, steps=[-7, 8], accuracy=[0.1, 0.7], **{"val/é": [None, 1e39]})
    yield run
    run.lose()


def test_the_csv_of_a_script_has_its_columns(run: WrittenScript, tmp_path: Path) -> None:
    exporting.export_csv(run.dir, tmp_path / "steps.csv")
    with open(tmp_path / "steps.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], row["loss"], row["samples"], row["wait_s"], row["grad_norm"]) for row in rows] == [
        ("-7", "", "", "", ""),
        ("1", "4.0", "16", "0.25", "2.0"),
        ("2", "", "16", "0.25", ""),
        ("8", "", "", "", ""),
    ]
    assert [row["accuracy"] for row in rows] == ["0.1", "", "", "0.7"]


def test_json_has_the_logged_metrics(run: WrittenScript, tmp_path: Path) -> None:
    exporting.export_json(run.dir, tmp_path / "all.json")
    document = json.loads((tmp_path / "all.json").read_text())
    assert document["summary"]["run_source"] == "script" and len(document["steps"]) == 2
    assert [(entry["step"], entry["value"]) for entry in document["metrics"]["accuracy"]] == [
        (-7, 0.1),
        (8, 0.7),
    ]
    assert [entry["value"] for entry in document["metrics"]["val/é"]] == [1e39]


def test_the_trace_has_an_event_per_step_and_rank(run: WrittenScript, tmp_path: Path) -> None:
    exporting.export_trace(run.dir, tmp_path / "trace.json")
    trace_events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    steps = [event for event in trace_events if event["ph"] == "X"]
    assert [(step["pid"], step["args"]["step"], round(step["ts"] / 1e5)) for step in steps] == [
        (0, 1, 0),
        (0, 2, 5),
        (1, 1, 0),
        (1, 2, 5),
    ]
    assert steps[0]["dur"] == 0.5e6 and steps[0]["args"]["loss"] == 4.0 and "loss" not in steps[1]["args"]
    counters = {event["name"]: event["args"] for event in trace_events if event["ph"] == "C"}
    assert counters["memory of device 0"] == {"live_bytes": 64} and counters["accuracy"] == {"value": 0.7}


def test_a_trace_of_a_script_without_steps_is_refused(tmp_path: Path) -> None:
    run = WrittenScript(tmp_path / "runs", "idle.py")
    run.start_script()
    with pytest.raises(ConfigError, match="has no step"):
        exporting.export_trace(run.dir, tmp_path / "trace.json")
    with pytest.raises(ConfigError, match="has no curve"):
        exporting.export_tensorboard(run.dir, tmp_path / "board")
    run.lose()
    assert not list(tmp_path.glob("board*"))


def test_weights_of_a_script_are_refused(run: WrittenScript, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.py is your own script") as caught:
        exporting.export_weights(run.dir, tmp_path / "w.safetensors")
    assert caught.value.advice == (
        f"Look for the weights in the folder in which the run was started: {tmp_path}"
    )


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, at


def read_fields(data: bytes) -> list[tuple[int, Any]]:
    """A protobuf message's fields: numbers with what stands there."""
    fields, at = [], 0
    while at < len(data):
        key, at = read_varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = read_varint(data, at)
            fields.append((number, value))
            continue
        length = {1: 8, 5: 4}.get(kind)
        if length is None:
            length, at = read_varint(data, at)
        payload, at = data[at : at + length], at + length
        fields.append((number, struct.unpack({1: "<d", 5: "<f"}[kind], payload)[0] if kind != 2 else payload))
    return fields


def read_scalars(file: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) by tag, each record checked as a reader of TensorFlow's does."""
    data, at = file.read_bytes(), 0
    scalars: dict[str, list[tuple[int, float]]] = {}
    versions = []
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        assert data[at + 8 : at + 12] == _masked_crc(data[at : at + 8])
        record = data[at + 12 : at + 12 + length]
        assert data[at + 12 + length : at + 16 + length] == _masked_crc(record)
        at += 16 + length
        event = dict(read_fields(record))
        versions.append(event.get(3))
        for _, value in read_fields(event.get(5, b"")):
            fields = dict(read_fields(value))
            step = event[2] - (1 << 64) if event[2] >> 63 else event[2]
            scalars.setdefault(fields[1].decode(), []).append((step, fields[2]))
    assert versions[0] == b"brain.Event:2"
    return scalars


def test_tensorboard_reads_logged_and_observed_values(run: WrittenScript, tmp_path: Path) -> None:
    file = exporting.export_tensorboard(run.dir, tmp_path / "board" / "mine")
    assert file.parent == tmp_path / "board" / "mine" and "tfevents" in file.name
    scalars = read_scalars(file)
    assert scalars["accuracy"] == [(-7, pytest.approx(0.1)), (8, pytest.approx(0.7))]
    assert scalars["val/é"] == [(8, pytest.approx(3.4e38))]
    assert scalars["rankdeck/loss"] == [(1, 4.0)] and scalars["rankdeck/grad_norm"] == [(1, 2.0)]
    assert scalars["rankdeck/steps_per_s"] == [(1, 2.0), (2, 2.0)]
    assert scalars["rankdeck/samples_per_s"] == [(1, 32.0), (2, 32.0)]
    again = exporting.export_tensorboard(run.dir, tmp_path / "board" / "mine")
    assert list(again.parent.iterdir()) == [file]
    named = exporting.export_tensorboard(run.dir, tmp_path / "run.tfevents")
    assert named == tmp_path / "run.tfevents" and read_scalars(named) == scalars


def test_tensorboard_reads_a_configured_run(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.start(1, steps=2)
    run.write_steps(0, 1, [2.0, 1.0])
    run.writer("rank-0").write(events.Evaluation(step=2, loss=0.5, samples=4, seconds=0.1, accuracy=0.75))
    run.end()
    scalars = read_scalars(exporting.export_tensorboard(run.dir, tmp_path / "board"))
    assert scalars["loss"] == [(1, 2.0), (2, 1.0)]
    assert (scalars["held_out/loss"], scalars["held_out/accuracy"]) == ([(2, 0.5)], [(2, 0.75)])


def test_the_checksum_is_crc_32c() -> None:
    (masked,) = struct.unpack("<I", _masked_crc(b"123456789"))
    rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
    assert (rotated << 15 | rotated >> 17) & 0xFFFFFFFF == 0xE3069283
