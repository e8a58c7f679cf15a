"""Where ranks stand is told at any time, of a configuration and of a script, and nobody is harmed by it."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankdeck.launch.control import request_stop
from rankdeck.launch.processes import is_suspended, is_traced
from rankdeck.launch.stacks import read_stacks
from tests.helpers import launching
from tests.helpers.cli import rankdeck_in_process
from tests.helpers.launching import launch, wait_for_ranks
from tests.helpers.scripts import launch_script
from tests.helpers.waiting import wait_until

_OBSERVED = str(Path(__file__).parents[2] / "helpers" / "observed.py")
_SEIZE, _DETACH = 0x4206, 17


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process.pid
        process.kill()


def ptrace(request: int, pid: int) -> int:
    return int(ctypes.CDLL(None, use_errno=True).ptrace(request, pid, None, None))


def test_an_attached_debugger_is_detected(sleeper: int) -> None:
    assert not is_traced(sleeper)
    if ptrace(_SEIZE, sleeper):
        pytest.skip("this machine lets nobody trace a process")
    assert is_traced(sleeper)
    os.kill(sleeper, signal.SIGSTOP)  # a tracer lets go of what it has stopped
    os.waitpid(sleeper, os.WUNTRACED)
    ptrace(_DETACH, sleeper)
    assert not is_traced(sleeper)


def test_stacks_of_running_ranks_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_STEPS", "1000000")
    run = launch(tmp_path / "runs")
    pids = wait_for_ranks(run)
    os.kill(pids[1], signal.SIGSTOP)
    wait_until(lambda: is_suspended(pids[1]), what="the stop of rank 1")
    first, second = read_stacks(run)
    assert (first.rank, first.pid, first.skip_reason) == (0, pids[0], None)
    assert any("fake_worker.py" in frame.file for frame in first.report.frames)
    assert (second.rank, second.skip_reason, second.report.text) == (1, "suspended", "")
    result: dict[str, Any] = json.loads(rankdeck_in_process("stacks", run.path, "--json", exit_code=0).out)
    assert [rank["why"] for rank in result["ranks"]] == [None, "suspended"]
    assert result["ranks"][0]["frames"][0].keys() == {"file", "line", "function"}
    output = rankdeck_in_process("stacks", run.path, exit_code=0).out
    assert f"rank 0 ({pids[0]}): " in output and "fake_worker.py, line " in output
    assert f"rank 1 ({pids[1]}): suspended by a signal" in output
    assert "Current thread" in rankdeck_in_process("stacks", run.path, "--all", exit_code=0).out
    os.kill(pids[1], signal.SIGCONT)
    wait_until(lambda: read_stacks(run)[1].report.frames, what="the stack of rank 1")
    request_stop(run, now=True)
    assert launching.wait_for_exit_record(run).outcome == "stopped"
    refused = rankdeck_in_process("stacks", run.path, exit_code=2)
    assert f"{run.name} is not running: stopped." in refused.err


def test_stacks_of_a_script_use_the_signal_of_each_rank(tmp_path: Path) -> None:
    run = launch_script(tmp_path, "", run=_OBSERVED, args=["0:5:sleeps"], ranks=1)
    (stack,) = wait_until(lambda: read_stacks(run), what="the first rank")
    if not stack.report.frames:
        (stack,) = read_stacks(run)
    assert any("observed.py" in frame.file for frame in stack.report.frames)
    request_stop(run, now=True)
    assert launching.wait_for_exit_record(run).outcome == "stopped"
