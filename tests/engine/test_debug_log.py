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


@pytest.mark.parametrize("level", [None, "info"])
def test_the_processes_of_a_run_log_to_one_file(tmp_path: Path, level: str | None) -> None:
    options = [] if level is None else ["--log-level", level]
    job = ["--strategy", "single", "--devices", "cpu:1", "--set", "train.steps=2", "--runs", tmp_path]
    rankdeck(*options, "train", "digits-mlp", *job, exit_code=0)
    (run,) = list_folder(tmp_path)
    log = run.logs_folder / "rankdeck.log"
    if level is None:
        assert not log.exists()
        return
    text = log.read_text(encoding="utf-8")
    for expected in (
        "I rankdeck.launch.guard: attempt 0: supervisor",
        "I rankdeck.telemetry.sampler: reading 1 devices",
        "I rankdeck.launch.supervisor: attempt 0: starting",
        "I rankdeck.launch.guard: run ended: completed, exit code 0",
    ):
        assert expected in text
