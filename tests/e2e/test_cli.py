"""The command line with real runs: real guards, real ranks, real signals."""

from __future__ import annotations

import csv
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rankdeck.run_dir import RunDir, find_run, list_runs
from tests.helpers import launching
from tests.helpers.cli import FinishedCommand, rankdeck, rankdeck_in_process, start_rankdeck
from tests.helpers.waiting import scale_timeout, wait_until

LONG = ("train", "digits-mlp", "--devices", "cpu:1", "--set", "train.steps=1000000")


def train(preset: str, devices: str, steps: int, *more: str, code: int = 0) -> FinishedCommand:
    return rankdeck(
        "train", preset, "--devices", devices, "--set", f"train.steps={steps}", *more, exit_code=code
    )


def has_stepped(run: RunDir) -> bool:
    return any(b'"kind":"steps"' in file.read_bytes() for file in run.events_folder.glob("rank-*.jsonl"))


def wait_for_run(tmp_path: Path) -> RunDir:
    """The only run of this test's folder, once it is up and has trained a step."""
    folder = tmp_path / "rankdeck-runs"
    wait_until(
        lambda: folder.is_dir() and any(not p.name.startswith(".") for p in folder.iterdir()), deadline_s=30
    )
    run = find_run("last", folder)
    wait_until(lambda: has_stepped(run), deadline_s=60, what="the first step")
    return run


def test_train_json_has_the_keys_of_show_json(tmp_path: Path) -> None:
    facts = train("digits-ddp", "cpu:2", 60, "--json").json
    assert (facts["outcome"], facts["strategy"], facts["steps"]) == ("completed", "ddp", 60)
    assert facts["loss"]["last"] < facts["loss"]["first"]
    assert facts["evaluation"]["accuracy"] > 0.5
    assert facts["samples_per_s"] > 0 and facts["step_s"]["median"] > 0
    assert 0 < facts["first_step_s"] < 60
    assert len(facts["devices"]) == 2 and len(facts["comm"]["sent_bytes_per_step"]) == 2
    for device in facts["devices"]:
        assert device["kind"] == "virtual"
        assert sum(device["peak_by_kind"].values()) == device["peak_bytes"] > 0
    assert facts["problems"] == [] and facts["source"] == "measured in rehearsal"
    assert rankdeck_in_process("show", "last", "--json", exit_code=0).json == {**facts, "findings": []}
    leaving_s = launching.exit_delay_s(find_run("last", tmp_path / "rankdeck-runs"))
    assert leaving_s < launching.stop_timeout_s(1)


def test_a_finished_run_can_be_shown_listed_watched_and_exported(
    tmp_path: Path,
) -> None:
    """The preset's own steps, after which it reads digits right: see test_presets.py."""
    done = rankdeck("train", "digits-mlp", "--devices", "cpu:1", "--name", "my run", exit_code=0)
    lines = done.out.splitlines()
    assert lines[0] == "starting 1 rank"
    left_out = '2 of 1442 samples left out of each epoch (data.last = "drop")'
    assert f"training, {left_out}" in lines and any(line == f"data           {left_out}" for line in lines)
    assert any(line.startswith("step 1500/1500  loss ") for line in lines)
    assert any(line.startswith("step 1500: held-out loss ") for line in lines)
    assert any(line.startswith("completed  1500/1500 steps") for line in lines)
    assert lines[-1].split()[0] == "run" and "my-run" in lines[-1]
    assert "\x1b" not in done.out and done.err == ""
    (row,) = rankdeck_in_process("runs", "--json", exit_code=0).json
    assert (row["outcome"], row["steps"], row["strategy"]) == ("completed", 1500, "single")
    assert "measured in rehearsal" in rankdeck_in_process("show", "my-run", exit_code=0).out
    facts = rankdeck_in_process("show", "my-run", "--json", exit_code=0).json
    assert facts["evaluation"]["accuracy"] >= 0.95 and facts["steps"] == facts["steps_planned"]
    kinds = {line["kind"] for line in rankdeck_in_process("watch", "last", "--json", exit_code=0).lines}
    assert {"run_started", "rank_started", "steps", "memory", "evaluation", "run_ended"} <= kinds
    for kind in ("safetensors", "csv", "json"):
        rankdeck_in_process("export", "last", "--to", kind, tmp_path / f"out.{kind}", exit_code=0)
    from safetensors.numpy import load_file

    weights = load_file(tmp_path / "out.safetensors")
    assert weights["head.weight"].shape == (10, 256)
    with open(tmp_path / "out.csv", newline="") as file:
        assert [row["step"] for row in csv.DictReader(file)] == [str(step) for step in range(1, 1501)]
    assert json.loads((tmp_path / "out.json").read_text())["summary"]["steps"] == 1500


def test_ctrl_c_on_watch_does_not_stop_a_detached_run(tmp_path: Path) -> None:
    path = Path(rankdeck_in_process(*LONG, "--detach", exit_code=0).out.strip())
    run = wait_for_run(tmp_path)
    assert run.path == path and run.is_alive()
    with start_rankdeck("watch", "last") as watcher:
        assert watcher.stdout is not None
        watcher.stdout.readline()
        watcher.send_signal(signal.SIGINT)
        _, err = watcher.communicate(timeout=scale_timeout(30))
    assert watcher.returncode == 130 and "Traceback" not in err
    assert run.is_alive()
    rankdeck_in_process("export", "last", "--to", "safetensors", tmp_path / "w", exit_code=2)
    assert rankdeck_in_process("stop", run.name, exit_code=0).out.strip() == f"{run.name}: stopped"
    assert not run.is_alive() and run.outcome() == "stopped"
    assert rankdeck_in_process("stop", "last", exit_code=0).err.strip().endswith("is not running: stopped.")
    assert rankdeck_in_process("stop", "last", "--json", exit_code=0).json["outcome"] == "stopped"
    stderr = rankdeck_in_process("export", "last", "--to", "safetensors", tmp_path / "w", exit_code=0).err
    from safetensors import safe_open

    with safe_open(tmp_path / "w", "numpy") as weights:
        assert f"after step {weights.metadata()['step']}, its newest checkpoint" in stderr
        assert weights.get_tensor("head.weight").shape == (10, 256)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "terminated"])
def test_interrupting_a_starting_run_stops_it_and_exits_with_130(
    tmp_path: Path, number: signal.Signals
) -> None:
    """While it trains: test_api.py."""
    with start_rankdeck(*LONG) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "starting 1 rank\n"
        run = find_run("last", tmp_path / "rankdeck-runs")
        command.send_signal(number)
        out, err = command.communicate(timeout=scale_timeout(60))
    assert command.returncode == 130, err
    assert "stopped" in out and "Traceback" not in err
    assert run.outcome() == "stopped" and not run.is_alive()


def test_a_closed_pipe_stops_the_run_silently(tmp_path: Path) -> None:
    with start_rankdeck(*LONG) as command:
        assert command.stdout is not None and command.stderr is not None
        command.stdout.readline()
        command.stdout.close()
        assert command.wait(60) == 141
        assert command.stderr.read() == ""
    assert find_run("last", tmp_path / "rankdeck-runs").outcome() == "stopped"


def test_a_terminal_shows_a_progress_bar_and_one_per_device() -> None:
    output = _run_in_terminal("train", "digits-ddp", "--devices", "cpu:2", "--set", "train.steps=150")
    assert "0 Virtual 0" in output and "1 Virtual 1" in output
    assert "━" in output and "samples/s" in output and "peak" in output
    assert "completed" in output
    assert "Traceback" not in output


def _run_in_terminal(*args: str) -> str:
    """What `rankdeck ARGS` writes to a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    command = subprocess.Popen(
        [sys.executable, "-P", "-m", "rankdeck", *args],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"},
    )
    os.close(theirs)
    output = b""
    end_s = time.monotonic() + 90
    try:
        while time.monotonic() < end_s:
            if not select.select([ours], [], [], 1.0)[0]:
                continue
            try:
                data = os.read(ours, 1 << 16)
            except OSError:  # the terminal's other end is closed
                break
            if not data:
                break
            output += data
        assert command.wait(10) == 0
    finally:
        command.kill()
        command.wait()
        os.close(ours)
    return output.decode()


# A loss that becomes NaN is in test_faults.py.
@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"data.args.path": "/nowhere", "data.use": "text"}, 2, "/nowhere"),
        ({"devices.use": "gpu:all"}, 3, "No NVIDIA driver found"),
    ],
)
def test_an_impossible_run_is_refused_with_its_exit_code(
    tmp_path: Path, changes: dict[str, Any], code: int, message: str
) -> None:
    if "gpu:all" in changes.values() and Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has a driver")
    file = tmp_path / "mine.toml"
    file.write_text('[train]\nsteps = 50\n[devices]\nuse = "cpu:1"\n')
    sets = [item for key, value in changes.items() for item in ("--set", f"{key}={value}")]
    done = rankdeck("train", file, *sets, exit_code=code)
    assert message in done.err, done.err
    assert "Traceback" not in done.out
    assert not list_runs(tmp_path / "rankdeck-runs")
    problems = rankdeck_in_process("train", file, *sets, "--json", exit_code=code).json["problems"]
    assert problems and message in problems[0]["message"] and problems[0]["advice"]
