"""`rankdeck --host NAME COMMAND`: what is said there is said here, and a run there is followed here."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from rankdeck.rundir import RunDir, list_folder
from tests.helpers.cli import RANKDECK, rankdeck, rankdeck_here
from tests.helpers.far_host import FarHost
from tests.helpers.waiting import wait_until
from tests.helpers.written_run import WrittenRun


@pytest.fixture
def host(tmp_path: Path) -> FarHost:
    return FarHost(tmp_path)


def test_a_command_speaks_and_ends_as_it_does_there(host: FarHost) -> None:
    WrittenRun(host.runs, "there").end()
    (row,) = rankdeck_here("--host", "box1", "runs", "--json", env=host.environment, code=0).json
    assert "there" in row["run"]
    unknown = rankdeck_here("--host=box1", "shw", env=host.environment, code=2)
    assert "Did you mean 'show'?" in unknown.err and unknown.out == ""
    (host.home / "elsewhere").mkdir()
    empty = rankdeck_here(
        "--host", "box1", "-C", host.home / "elsewhere", "validate", "x.toml", env=host.environment
    )
    assert empty.code == 2 and "x.toml" in empty.err


def test_wherever_a_host_is_named_nothing_runs_here(host: FarHost, tmp_path: Path) -> None:
    WrittenRun(tmp_path / "rankdeck-runs", "here").end()
    for words in (["-C", "/"], ["-C/"]):
        asked = [*words, "--host", "box1", "runs", "--json"]
        assert rankdeck_here(*asked, env=host.environment, code=0).json == []
    assert "is no name of a host" in rankdeck_here("--host", "", "runs", code=2).err
    assert "Usage" in rankdeck_here("--host", "box1", "train", "-h", env=host.environment, code=0).out


@pytest.mark.parametrize("words", [["--host", "box1"], ["--host", "box1", "--json"]])
def test_a_host_without_a_command_is_asked_for_one(words: list[str]) -> None:
    assert "Name a command for box1." in (done := rankdeck_here(*words, code=2)).err + done.out


def test_signs_that_act_on_a_terminal_do_not_come_from_a_host(host: FarHost) -> None:
    run = WrittenRun(host.runs, "there")
    run.end()
    (run.path / "labels.json").write_text('{"name": "evil\\u001b]0;owned\\u0007"}')
    shown = rankdeck_here("--host", "box1", "watch", "last", env=host.environment, code=0)
    assert "\x1b" not in shown.out + shown.err


def begun(host: FarHost, *, ranks: bool = True) -> tuple[subprocess.Popen[str], RunDir, RunDir]:
    """A command that trains there, its copy here, and the run; with its ranks, or as soon as it is copied."""
    command = [*RANKDECK, "--host", "box1", "train", "digits-mlp", "--devices", "cpu:1", "--json"]
    command += ["--set", "train.steps=1000000", "--set", "train.evaluate_every=0"]
    process = subprocess.Popen(
        command,
        env={**os.environ, **host.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    copies = Path(os.environ["RANKDECK_HOME"]) / "state" / "hosts" / "box1" / "runs"
    (copy,) = wait_until(lambda: list_folder(copies), deadline_s=60)
    there = RunDir(host.runs / copy.name)
    wait_until(lambda: not ranks or (copy.events_folder / "rank-0.0.jsonl").exists(), deadline_s=60)
    return process, copy, there


# Three beside a host that does not answer, and one beside a host that does, are below.
@pytest.mark.slow
def test_three_quick_ctrl_c_leave_once_the_run_there_has_stopped(host: FarHost) -> None:
    process, _, there = begun(host)
    for _ in range(3):
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.1)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130 and '"outcome": "stopped"' in out, (out, err)
    assert there.outcome() == "stopped"


def test_a_host_that_does_not_answer_ctrl_c_is_left_with_what_to_do(host: FarHost) -> None:
    process, _, there = begun(host, ranks=False)
    host.refuse("No route to host")  # nor does a second connection come about
    host.cut()
    for _ in range(3):
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.1)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130 and there.is_alive()
    assert f"To stop it: rankdeck --host box1 stop {there.path}" in err
    rankdeck("stop", there.path, "--now", code=0)


def test_a_run_there_is_begun_followed_and_stopped_by_ctrl_c(host: FarHost) -> None:
    process, copy, there = begun(host)
    host.end()  # the view alone breaks
    assert there.is_alive()
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130 and '"outcome": "stopped"' in out, (out, err)
    assert there.outcome() == copy.outcome() == "stopped"


def test_what_is_wrong_with_a_configuration_there_is_said_as_here(host: FarHost) -> None:
    done = rankdeck_here("--host", "box1", "train", "digits-mlpx", env=host.environment, code=2)
    assert 'neither a file nor a preset called "digits-mlpx"' in done.err and done.out == ""
    told = rankdeck_here("--host", "box1", "train", "digits-mlpx", "--json", env=host.environment, code=2)
    assert told.json["problems"][0]["code"] == "unknown-config"
    assert rankdeck_here("serve", code=2).err.startswith("Nothing is served over a port")
