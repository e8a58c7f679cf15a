"""A run whose guard is gone and whose last word cannot be read is lost, and commands say so in words."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rankdeck.base.errors import MachineError
from rankdeck.launch.guard_launcher import start_guard
from tests.helpers.cli import rankdeck_in_process
from tests.helpers.written_run import WrittenRun


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    written = WrittenRun(tmp_path / "rankdeck-runs")
    written.start()
    written.write_steps(0, 1, [1.0])
    written.lose()
    return written


def link_to_itself(file: Path) -> None:
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
        link_to_itself,
    ],
)
def test_an_unreadable_exit_record_means_lost(run: WrittenRun, put: Callable[[Path], object]) -> None:
    put(run.path / "end.json")
    name = run.dir.name
    result = rankdeck_in_process("show", name, exit_code=0)
    assert "its exit record cannot be read" in " ".join(result.err.split()) and "lost" in result.out
    (problem,) = rankdeck_in_process("show", name, "--json", exit_code=0).json["problems"]
    assert problem["code"] == "lost" and str(run.path / "end.json") in problem["message"]
    (row,) = rankdeck_in_process("runs", "--json", exit_code=0).json
    assert row["outcome"] == "lost"
    assert name in rankdeck_in_process("resume", name, exit_code=2).err


def test_a_run_without_an_exit_record_was_killed(run: WrittenRun) -> None:
    assert "its guard process ended without writing an exit record" in " ".join(
        rankdeck_in_process("show", run.dir.name, exit_code=0).err.split()
    )


def test_an_exit_record_that_is_no_file_refuses_a_resume(run: WrittenRun) -> None:
    (run.path / "end.json").mkdir()
    (run.path / "logs").mkdir(exist_ok=True)
    with pytest.raises(MachineError, match=r"could not be started: .*end\.json: Is a directory"):
        start_guard(run.dir, [], detach=True, attempt=1)
