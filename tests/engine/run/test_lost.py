"""A run whose guard is gone and whose last word cannot be read is lost, and commands say so in words."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rankdeck.base.errors import MachineError
from rankdeck.launch.under_guard import start_guard
from tests.helpers.cli import rankdeck_here
from tests.helpers.written_run import WrittenRun


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    written = WrittenRun(tmp_path / "rankdeck-runs")
    written.begin()
    written.steps(0, 1, [1.0])
    written.lose()
    return written


def to_itself(file: Path) -> None:
    file.symlink_to(file)


@pytest.mark.parametrize(
    "put",
    [
        Path.touch,
        lambda file: file.write_text('{"outcome": "completed"'),
        lambda file: file.write_text('{"outcome": "flying", "exit_code": 0, "ended": 1.0}'),
        lambda file: file.write_bytes(b"\xff" * 5000),
        Path.mkdir,
        os.mkfifo,
        to_itself,
    ],
)
def test_a_last_word_that_cannot_be_read_is_told_of(run: WrittenRun, put: Callable[[Path], object]) -> None:
    put(run.path / "end.json")
    name = run.dir.name
    shown = rankdeck_here("show", name, code=0)
    assert "its last word cannot be read" in " ".join(shown.err.split()) and "lost" in shown.out
    (problem,) = rankdeck_here("show", name, "--json", code=0).json["problems"]
    assert problem["code"] == "lost" and str(run.path / "end.json") in problem["message"]
    (row,) = rankdeck_here("runs", "--json", code=0).json
    assert row["outcome"] == "lost"
    assert name in rankdeck_here("resume", name, code=2).err


def test_one_that_left_none_was_killed(run: WrittenRun) -> None:
    assert "it left no last word" in " ".join(rankdeck_here("show", run.dir.name, code=0).err.split())


def test_what_is_no_file_in_the_place_of_a_last_word_stops_a_resume_in_words(run: WrittenRun) -> None:
    (run.path / "end.json").mkdir()
    (run.path / "logs").mkdir(exist_ok=True)
    with pytest.raises(MachineError, match=r"could not be started: .*end\.json: Is a directory"):
        start_guard(run.dir, [], detach=True, attempt=1)
