"""Rankdeck's own log: off by default, and one file for all processes of a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankdeck.run_dir import list_folder
from tests.helpers.cli import rankdeck

_ENABLE = (
    "import logging, pathlib, sys; from rankdeck import debug_log; "
    "debug_log.enable(*map(pathlib.Path, sys.argv[1:])); "
    "logging.getLogger('rankdeck.test').info('hello')"
)


def log_line(level: str, *folder: Path) -> str:
    """Return the stderr of a process that logs one line at level info."""
    environment = {**os.environ, "RANKDECK_LOG": level}
    command = [sys.executable, "-c", _ENABLE, *folder]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr


@pytest.mark.parametrize(
    ("level", "is_logged"),
    [("", False), ("warning", False), ("loud", False), ("info", True), ("DEBUG", True)],
)
def test_the_variable_decides_what_is_logged(level: str, is_logged: bool) -> None:
    assert ("rankdeck.test: hello" in log_line(level)) is is_logged


def test_a_folder_that_cannot_be_written_leaves_logging_off(tmp_path: Path) -> None:
    assert log_line("info", tmp_path / "gone") == ""


_EXPECTED_LINES = (
    "I rankdeck.launch.guard: attempt 0: supervisor",
    "I rankdeck.telemetry.sampler: reading 1 devices",
    "I rankdeck.launch.supervisor: attempt 0: starting",
    "I rankdeck.launch.guard: run ended: completed, exit code 0",
)


# The sampler starts after the rank: without the wait, the run may end before the sampler reads a device.
_WAIT_FOR_SAMPLER = """
import pathlib, sys, time

until = time.monotonic() + 60
while time.monotonic() < until:
    logs = pathlib.Path(sys.argv[1]).glob("*/logs/rankdeck.log")
    if any(b"telemetry.sampler: reading" in log.read_bytes() for log in logs):
        break
    time.sleep(0.02)
"""


def test_the_processes_of_a_run_log_to_one_file(tmp_path: Path) -> None:
    script, runs = tmp_path / "wait.py", tmp_path / "runs"
    script.write_text(_WAIT_FOR_SAMPLER, encoding="utf-8")
    rankdeck("--log-level", "info", "run", "--runs", runs, script, runs, exit_code=0)
    (run,) = list_folder(runs)
    log = run.logs_folder / "rankdeck.log"
    text = log.read_text(encoding="utf-8")
    assert [line for line in _EXPECTED_LINES if line not in text] == []
    assert "not polled for" not in text


def test_a_run_writes_no_log_by_default(tmp_path: Path) -> None:
    job = ["--strategy", "single", "--devices", "cpu:1", "--set", "train.steps=2", "--runs", tmp_path]
    rankdeck("train", "digits-mlp", *job, exit_code=0)
    (run,) = list_folder(tmp_path)
    assert not (run.logs_folder / "rankdeck.log").exists()
