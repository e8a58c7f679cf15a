"""What a run leaves to other programs: its weights and its figures, whole or not at all."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from rankdeck import events
from rankdeck.base.errors import ConfigError
from rankdeck.run import export as exporting
from tests.helpers.written_run import WrittenRun


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    run = WrittenRun(tmp_path / "runs")
    run.start(1, steps=3)
    run.write_steps(0, 1, [3.0, None, 1.0])
    run.end()
    return run


def test_weights_are_copied_unchanged(run: WrittenRun, tmp_path: Path) -> None:
    run.dir.weights.write_bytes(b"weights")
    exporting.export_weights(run.dir, tmp_path / "w.safetensors")
    assert (tmp_path / "w.safetensors").read_bytes() == b"weights"


def test_a_run_without_weights_gives_the_reason(run: WrittenRun, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no weights: it ended"):
        exporting.export_weights(run.dir, tmp_path / "w")
    running = WrittenRun(tmp_path / "runs", "other")
    with pytest.raises(ConfigError, match="no weights yet") as caught:
        exporting.export_weights(running.dir, tmp_path / "w")
    running.lose()
    assert caught.value.advice and "watch" in caught.value.advice
    assert not (tmp_path / "w").exists()


def test_weights_older_than_the_last_checkpoint_are_detected(run: WrittenRun) -> None:
    assert not exporting.are_weights_outdated(run.dir)
    saved = run.dir.checkpoints_folder / "150"
    saved.mkdir(parents=True)
    (saved / "COMMIT").write_text("{}")
    assert exporting.are_weights_outdated(run.dir)
    for step, behind in (("100", True), ("150", False)):
        data = safetensors.numpy.save({"w": np.zeros(2)}, metadata={"run": "r", "step": step})
        run.dir.weights.write_bytes(data)
        assert exporting.are_weights_outdated(run.dir) == behind
    run.dir.weights.write_bytes(b"damaged")
    assert exporting.are_weights_outdated(run.dir)


def test_the_csv_has_a_row_per_step_and_empty_unknown_cells(run: WrittenRun, tmp_path: Path) -> None:
    exporting.export_csv(run.dir, tmp_path / "steps.csv")
    with open(tmp_path / "steps.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["1", "2", "3"]
    assert [row["loss"] for row in rows] == ["3.0", "", "1.0"]
    assert rows[0]["samples"] == "16"
    assert list(rows[0]) == ["step", "loss", "lr", "samples", "step_s", "ended"]


def test_evaluations_and_logged_metrics_are_columns(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.start(1, steps=3)
    run.write_steps(0, 1, [3.0, 2.0, 1.0])
    writer = run.writer("rank-0")
    writer.write(events.Evaluation(step=2, loss=2.5, samples=8, seconds=0.1, accuracy=0.5))
    logged = {"margin": [7.0, 8.0], "loss": [0.25, 0.5]}
    columns = {"steps": [1, 5], "times": [1.0, 2.0], "after": [1, 5], "values": logged}
    writer.write(events.Metrics(rank=0, through="rankdeck", **columns))
    run.end()
    exporting.export_csv(run.dir, tmp_path / "steps.csv")
    with open(tmp_path / "steps.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["1", "2", "3", "5"]
    assert [row["loss"] for row in rows] == ["3.0", "2.0", "1.0", ""]
    assert [row["held_out/loss"] for row in rows] == ["", "2.5", "", ""]
    assert [row["held_out/accuracy"] for row in rows] == ["", "0.5", "", ""]
    assert [row["margin"] for row in rows] == ["7.0", "", "", "8.0"]
    assert [row["logged/loss"] for row in rows] == ["0.25", "", "", "0.5"]
    exporting.export_json(run.dir, tmp_path / "run.json")
    document = json.loads((tmp_path / "run.json").read_text())
    assert [entry["value"] for entry in document["metrics"]["margin"]] == [7.0, 8.0]
    assert [(entry["step"], entry["loss"]) for entry in document["held_out"]] == [(2, 2.5)]


def test_json_has_the_summary_and_every_step(run: WrittenRun, tmp_path: Path) -> None:
    exporting.export_json(run.dir, tmp_path / "run.json")
    document = json.loads((tmp_path / "run.json").read_text())
    assert document["summary"]["run"] == run.dir.name
    assert [step["loss"] for step in document["steps"]] == [3.0, None, 1.0]


def test_a_failed_export_is_reported_and_leaves_no_file(run: WrittenRun, tmp_path: Path) -> None:
    for file in (tmp_path / "none" / "a.csv", tmp_path):
        with pytest.raises(ConfigError) as caught:
            exporting.export_csv(run.dir, file)
        assert caught.value.code == "unwritable" and caught.value.advice
    assert not list(tmp_path.glob("*.new"))


def test_an_export_replaces_an_existing_file(run: WrittenRun, tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text("old")
    exporting.export_csv(run.dir, tmp_path / "steps.csv")
    assert (tmp_path / "steps.csv").read_text().startswith("step,")


def test_the_current_folder_is_refused_as_a_file(
    run: WrittenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="is a folder"):
        exporting.export_csv(run.dir, Path())


def test_an_export_writes_through_pipes_and_links(run: WrittenRun, tmp_path: Path) -> None:
    pipe, link, target = tmp_path / "pipe", tmp_path / "link.csv", tmp_path / "target.csv"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        exporting.export_csv(run.dir, pipe)
        assert os.read(reader, 65536).startswith(b"step,loss")
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    link.symlink_to(target)
    exporting.export_csv(run.dir, link)
    assert link.is_symlink() and target.read_text().startswith("step,loss")
