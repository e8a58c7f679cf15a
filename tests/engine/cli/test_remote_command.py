"""`rankdeck --host NAME COMMAND`: what is said there is said here, and a run there is followed here."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from rankdeck.run_dir import RunDir, list_folder
from tests.helpers.cli import RANKDECK, rankdeck, rankdeck_in_process
from tests.helpers.fake_remote_host import FakeRemoteHost
from tests.helpers.waiting import wait_until
from tests.helpers.written_run import WrittenRun


@pytest.fixture
def host(tmp_path: Path) -> FakeRemoteHost:
    return FakeRemoteHost(tmp_path)


def test_a_remote_command_has_the_output_and_exit_code_of_the_host(host: FakeRemoteHost) -> None:
    WrittenRun(host.runs, "there").end()
    (row,) = rankdeck_in_process("--host", "box1", "runs", "--json", env=host.environment, exit_code=0).json
    assert "there" in row["run"]
    unknown = rankdeck_in_process("--host=box1", "shw", env=host.environment, exit_code=2)
    assert "Did you mean 'show'?" in unknown.err and unknown.out == ""
    (host.home / "elsewhere").mkdir()
    empty = rankdeck_in_process(
        "--host", "box1", "-C", host.home / "elsewhere", "validate", "x.toml", env=host.environment
    )
    assert empty.exit_code == 2 and "x.toml" in empty.err


def test_a_command_with_host_does_not_run_locally(host: FakeRemoteHost, tmp_path: Path) -> None:
    WrittenRun(tmp_path / "rankdeck-runs", "here").end()
    for options in (["-C", "/"], ["-C/"]):
        command = [*options, "--host", "box1", "runs", "--json"]
        assert rankdeck_in_process(*command, env=host.environment, exit_code=0).json == []
    assert "is not a host name" in rankdeck_in_process("--host", "", "runs", exit_code=2).err
    assert (
        "Usage" in rankdeck_in_process("--host", "box1", "train", "-h", env=host.environment, exit_code=0).out
    )


@pytest.mark.parametrize("words", [["--host", "box1"], ["--host", "box1", "--json"]])
def test_host_without_a_command_is_refused(words: list[str]) -> None:
    assert (
        "The option --host box1 needs a command."
        in (done := rankdeck_in_process(*words, exit_code=2)).err + done.out
    )


def test_control_characters_from_a_host_are_not_printed(host: FakeRemoteHost) -> None:
    run = WrittenRun(host.runs, "there")
    run.end()
    (run.path / "labels.json").write_text('{"name": "evil\\u001b]0;owned\\u0007"}')
    result = rankdeck_in_process("--host", "box1", "watch", "last", env=host.environment, exit_code=0)
    assert "\x1b" not in result.out + result.err


def start_remote_training(
    host: FakeRemoteHost, *, ranks: bool = True
) -> tuple[subprocess.Popen[str], RunDir, RunDir]:
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


# Three beside a host that not responding, and one beside a host that does, are below.
@pytest.mark.slow
def test_three_ctrl_c_wait_until_the_remote_run_has_stopped(host: FakeRemoteHost) -> None:
    process, _, there = start_remote_training(host)
    for _ in range(3):
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.1)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130 and '"outcome": "stopped"' in out, (out, err)
    assert there.outcome() == "stopped"


def test_ctrl_c_without_an_answer_prints_how_to_stop_the_run(host: FakeRemoteHost) -> None:
    process, _, there = start_remote_training(host, ranks=False)
    host.refuse("No route to host")  # nor does a second connection come about
    host.cut()
    for _ in range(3):
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.1)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130 and there.is_alive()
    assert f"To stop it: rankdeck --host box1 stop {there.path}" in err
    rankdeck("stop", there.path, "--now", exit_code=0)


def test_ctrl_c_stops_a_remote_run_after_a_broken_connection(host: FakeRemoteHost) -> None:
    process, copy, there = start_remote_training(host)
    host.end()  # the view alone breaks
    assert there.is_alive()
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130 and '"outcome": "stopped"' in out, (out, err)
    assert there.outcome() == copy.outcome() == "stopped"


def test_configuration_errors_on_a_host_are_printed_as_local_ones(host: FakeRemoteHost) -> None:
    done = rankdeck_in_process("--host", "box1", "train", "digits-mlpx", env=host.environment, exit_code=2)
    assert 'neither a file nor a preset called "digits-mlpx"' in done.err and done.out == ""
    result = rankdeck_in_process(
        "--host", "box1", "train", "digits-mlpx", "--json", env=host.environment, exit_code=2
    )
    assert result.json["problems"][0]["code"] == "unknown-config"
    assert rankdeck_in_process("serve", exit_code=2).err.startswith(
        "rankdeck serve does not listen on a port"
    )
