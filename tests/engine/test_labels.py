"""What a person says of a run is kept beside it, whole, and changes nothing else of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rankdeck import run_dir
from rankdeck.base.errors import ConfigError
from rankdeck.run.row import read_info
from rankdeck.run_dir import Labels, labels_stamp, read_labels, write_labels
from tests.helpers.written_run import WrittenRun


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    run = WrittenRun(tmp_path / "runs", "first name")
    run.start()
    run.end("completed")
    return run


def test_renaming_a_run_keeps_its_folder(run: WrittenRun) -> None:
    assert (run.dir.title, read_info(run.dir).title, labels_stamp(run.path)) == (*["first name"] * 2, None)
    labels = Labels().with_changes(name=" The\nnight ", tags=("hot", " hot ", "", "lr sweep"), note=" why \n")
    write_labels(run.path, labels)
    assert read_labels(run.path) == labels == Labels("The night", ("hot", "lr sweep"), "why")
    info = read_info(run.dir)
    assert (info.title, info.labels, info.name) == ("The night", labels, run.dir.name)
    for text in ("The night", "first name", "first-name", run.dir.name):
        assert run_dir.find_run(text, run.path.parent).path == run.path
    write_labels(run.path, Labels())
    assert run.dir.title == "first name" and not (run.path / "labels.json").exists()


@pytest.mark.parametrize(
    "written",
    [b"", b"[" * 100_000, b"[]", b'{"name": 3, "tags": "x", "note": [], "archived": 1}', b"\xff{}"],
)
def test_damaged_labels_are_ignored(run: WrittenRun, written: bytes) -> None:
    (run.path / "labels.json").write_bytes(written)
    assert read_labels(run.path) == Labels() and run.dir.title == "first name"


def test_labels_that_are_no_regular_file_are_ignored(run: WrittenRun, tmp_path: Path) -> None:
    file, foreign = run.path / "labels.json", tmp_path / "foreign"
    os.mkfifo(file)
    assert read_labels(run.path) == Labels(), "it does not wait for a writer"
    file.unlink()
    foreign.write_text("precious")
    file.symlink_to(foreign)
    write_labels(run.path, Labels(name="x"))
    assert foreign.read_text() == "precious" and json.loads(file.read_text())["name"] == "x"


def test_a_run_cannot_be_named_last() -> None:
    with pytest.raises(ConfigError, match="newest run"):
        Labels().with_changes(name=" Last ")


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"name": "x" * 121}, 120),
        ({"tags": ("x" * 41,)}, 40),
        ({"note": "x" * 20_001}, 20_000),
        ({"tags": tuple(map(str, range(51)))}, 50),
    ],
)
def test_labels_are_limited(changes: dict[str, object], limit: int) -> None:
    with pytest.raises(ConfigError, match=rf"but the limit is {limit}\."):
        Labels().with_changes(**changes)
