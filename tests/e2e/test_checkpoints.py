"""Checkpoints of real runs: on demand, at a stop, after damage, on a full disk; restarts by themselves."""

from __future__ import annotations

import json
import resource
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load_file

from rankdeck import events
from rankdeck.checkpoint_files import list_checkpoints
from rankdeck.launch.control import request_stop, wait_for_end
from rankdeck.run.run_state import read_run_state
from rankdeck.run.summary_builder import summarize
from rankdeck.run_dir import EventReader, RunDir, default_runs_folder, list_runs
from tests.helpers import killed_runs
from tests.helpers.cli import rankdeck_in_process
from tests.helpers.launching import read_problems, wait_until_gone
from tests.helpers.waiting import scale_timeout, wait_until

USER_CODE = """
import os, resource, time
from pathlib import Path
from torch import nn

calls = 0

class Counting(nn.Linear):
    calls = 0

    def forward(self, inputs):
        self.calls += self.training
        return super().forward(inputs)

    def get_extra_state(self):
        if Path(__file__).with_name("slow").exists() and self.calls > 3:
            time.sleep(2)  # asked for several times: longer than a stop waits for a step
        return {"calls": self.calls}

    def set_extra_state(self, state):
        self.calls = state["calls"]

def model():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 512), Counting(512, 10))

def loss(outputs, targets):
    global calls
    calls += 1
    fault = os.environ.get("FAULT")
    if fault == "full" and calls in (8, 18):
        # What a full disk does to a writer, for this process alone.
        limit = 50_000 if calls == 8 else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    if fault == "once" and calls == 13 and not Path(__file__).with_name("failed").exists():
        Path(__file__).with_name("failed").touch()
        raise ValueError("bad batch 17")
    if fault == "always" and calls == 3:
        raise ValueError("bad batch 18")
    return nn.functional.cross_entropy(outputs, targets, reduction="sum"), len(targets)
"""
CONFIG = """
name = "saved"
model = { use = "mine.py:model" }
data = { use = "digits" }
loss = { use = "mine.py:loss" }
train = { steps = 20, global_batch = 16, evaluate_every = 0, checkpoint_every = 5 }
strategy = { use = "single" }
devices = { use = "cpu:1" }
"""


def _write_job(folder: Path) -> Path:
    (folder / "mine.py").write_text(USER_CODE)
    path = folder / "saved.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return _write_job(tmp_path)


@dataclass(frozen=True)
class RestartedRun:
    """A run that failed once, went on by itself and is at its last step."""

    run: RunDir
    facts: dict[str, Any]


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> RestartedRun:
    folder = tmp_path_factory.mktemp("restarted")
    changes = ["--set", "launch.max_restarts=2", "--runs", folder / "runs"]
    facts = rankdeck_in_process(
        "train", _write_job(folder), *changes, "--json", exit_code=0, env={"FAULT": "once"}
    ).json
    run = RunDir(Path(facts["path"]))
    wait_until_gone(run)
    return RestartedRun(run, facts)


@pytest.fixture
def finished(restarted: RestartedRun) -> RunDir:
    """A copy of a run at its last step, with checkpoints of steps 10, 15 and 20; the only run here, and a
    stranger's to this home."""
    return RunDir(shutil.copytree(restarted.run.path, default_runs_folder() / restarted.run.name))


def only_run() -> RunDir:
    (run,) = list_runs()
    return run


def list_saved_steps(run: RunDir) -> list[int]:
    return sorted(checkpoint.step for checkpoint in list_checkpoints(run.checkpoints_folder))


def read_saves(run: RunDir) -> list[tuple[int, str]]:
    saves = [event for _, event in EventReader(run).read() if isinstance(event, events.CheckpointSaved)]
    return [(event.step, event.reason) for event in saves]


@pytest.mark.parametrize(
    ("strategy", "devices"), [("single", "cpu:1"), pytest.param("ddp", "cpu:2", marks=pytest.mark.slow)]
)
def test_a_run_is_saved_on_request_and_at_a_stop_and_resumes(job: Path, strategy: str, devices: str) -> None:
    """A stop's save takes longer than a stop waits for a step."""
    of = ("--strategy", strategy, "--devices", devices)
    endless = ("--set", "train.steps=1000000", "--set", "train.checkpoint_every=0")
    started = rankdeck_in_process("train", job, *endless, *of, "--detach", "--json", exit_code=0)
    assert set(started.json) == {"run", "path"}
    run = RunDir(Path(started.json["path"]))
    assert run.is_alive() and run.name == started.json["run"]
    try:
        killed_runs.wait_for_step(run, 5)
        as_json = rankdeck_in_process("checkpoint", run.path, "--json", exit_code=0).json
        assert set(as_json) == {"step", "bytes", "seconds", "path"} and Path(as_json["path"]).is_dir()
        result = rankdeck_in_process("checkpoint", run.path, exit_code=0)
        assert Path(result.out.strip()).is_dir() and result.err.startswith("step ")
        assert rankdeck_in_process("resume", run.path, exit_code=2).err.startswith(f"{run.name} is running.")
    finally:
        job.with_name("slow").touch()
        stopped = rankdeck_in_process("stop", run.path, "--json", exit_code=0).json
    assert stopped == {"run": run.name, "outcome": "stopped"}
    stopped_at = list_saved_steps(run)[-1]
    assert [reason for _, reason in read_saves(run)] == ["request", "request", "stop"]
    assert rankdeck_in_process("checkpoint", run.path, exit_code=2).err.startswith(
        f"{run.name} is not running: stopped."
    )
    assert read_problems(run, "warning") == []

    lost_at = _stop_during_a_save(run)
    job.with_name("slow").unlink()
    assert list_saved_steps(run)[-1] == stopped_at < lost_at
    again = rankdeck_in_process("resume", run.path, "--set", f"train.steps={stopped_at + 4}",
                                "--strategy", "ddp", "--devices", "cpu:2", "--json",
                                exit_code=0).json  # fmt: skip
    assert again["attempts"] == 3 and again["steps"] == stopped_at + 4 and again["outcome"] == "completed"
    assert again["strategy"] == run.config().strategy.use == "ddp"
    assert len(run.environment()["devices"]) == 2
    second = EventReader(run)
    firsts = [
        event.first
        for name, batch in second.batches()
        for event in batch
        if isinstance(event, events.Steps) and ".2." in name
    ]
    assert min(firsts) == stopped_at + 1


def _stop_during_a_save(run: RunDir) -> int:
    """Resume it and end it in the middle of the save of its stop; the step that it had come to at least."""
    before = list_saved_steps(run)
    rankdeck_in_process("resume", run.path, "--detach", exit_code=0)
    step = before[-1] + 5
    killed_runs.wait_for_step(run, step)
    request_stop(run)
    wait_until((run.requests_folder / "saving").exists)
    start_s = time.monotonic()
    request_stop(run, now=True)
    assert wait_for_end(run, scale_timeout(20)) and time.monotonic() - start_s < scale_timeout(4)
    (lost,) = read_problems(run, "warning")
    assert lost.code == "save-lost" and run.outcome() == "stopped"
    assert not (run.requests_folder / "saving").exists(), "nobody waits for it once more"
    assert list_saved_steps(run) == before
    return step


@pytest.mark.usefixtures("finished")
def test_resuming_a_finished_run_advises_more_steps() -> None:
    refused = rankdeck_in_process("resume", "last", "--trust", "--json", exit_code=2).json["problems"][0]
    assert refused["code"] == "nothing-left" and "--set train.steps=40" in refused["advice"]


def test_resuming_to_an_earlier_step_is_refused(finished: RunDir) -> None:
    finished.weights.unlink()
    before = sorted(finished.path.rglob("*"))
    refused = rankdeck_in_process(
        "resume", "last", "--trust", "--set", "train.steps=12", "--json", exit_code=2
    )
    assert refused.json["problems"][0]["code"] == "nothing-left"
    assert sorted(finished.path.rglob("*")) == before and finished.outcome() == "completed"


def test_resuming_without_a_weights_file_saves_it(finished: RunDir) -> None:
    before, num_bytes = load_file(finished.weights), finished.weights.stat().st_size
    finished.weights.unlink()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes - 1, limits[1]))
    try:
        refused = rankdeck_in_process("resume", "last", "--trust", "--json", exit_code=3).json["problems"][-1]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert refused["code"] == "weights-not-saved" and "ulimit -f" in refused["advice"], refused
    assert "File too large" in refused["message"] and f"{num_bytes / 1024:.1f} KiB" in refused["advice"]
    assert (
        rankdeck_in_process("resume", "last", "--trust", "--json", exit_code=0).json["outcome"] == "completed"
    )
    after = load_file(finished.weights)
    assert after.keys() == before.keys() and all(after[name].equal(before[name]) for name in before)


def test_a_damaged_checkpoint_is_reported_and_the_previous_one_is_used(
    finished: RunDir,
) -> None:
    run = finished
    assert list_saved_steps(run) == [10, 15, 20]
    (shard,) = (run.checkpoints_folder / "20").glob("shard-*.safetensors")
    data = bytearray(shard.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 64] = bytes(64)
    shard.write_bytes(data)
    # The disk is full from step 23 to step 33.
    facts = rankdeck_in_process(
        "resume", "last", "--trust", "--set", "train.steps=40", "--json", exit_code=0, env={"FAULT": "full"}
    ).json
    (problem,) = [item for item in facts["problems"] if item["code"] == "checkpoint-damaged"]
    assert (
        problem["message"]
        == f"The checkpoint of step 20 is damaged: {shard.name} does not match its checksum."
    )
    assert facts["attempts"] == 3 and read_run_state(run).attempts[2].restored == 15
    assert (facts["outcome"], facts["steps"]) == ("completed", 40)
    assert list_saved_steps(run) == [20, 35, 40]
    expected_codes = ("restarted", "checkpoint-damaged")
    lost = [item["message"] for item in facts["problems"] if item["code"] not in expected_codes]
    assert lost == [
        f"The checkpoint of step {step} could not be written: File too large." for step in (25, 30)
    ]


def test_a_run_with_only_damaged_checkpoints_is_not_resumed(finished: RunDir) -> None:
    for step in ("10", "15", "20"):
        (finished.checkpoints_folder / step / "progress.json").write_text("{}")
    refused = rankdeck_in_process("resume", "last", "--trust", "--set", "train.steps=30", exit_code=2).err
    assert (
        "has no checkpoint to resume from. The checkpoint of step 20 is damaged: progress.json has" in refused
    )
    assert finished.exit_record() is not None and finished.next_attempt() == 2


def test_an_automatic_restart_is_reported_with_its_cause(restarted: RestartedRun) -> None:
    facts = restarted.facts
    assert (facts["outcome"], facts["attempts"], facts["steps"]) == ("completed", 2, 20)
    (problem,) = facts["problems"]
    assert problem["severity"] == "warning" and problem["code"] == "restarted"
    assert "bad batch 17" in problem["message"] and "after step 10 (restart 1 of 2)" in problem["message"]
    with safe_open(restarted.run.weights, framework="numpy") as weights:
        assert json.loads(weights.metadata()["extra_state"]) == {"2._extra_state": {"calls": 20}}


@pytest.mark.slow
def test_the_same_failure_twice_is_final(job: Path) -> None:
    facts = rankdeck_in_process(
        "train", job, "--set", "launch.max_restarts=5", "--json", exit_code=1, env={"FAULT": "always"}
    ).json
    assert (facts["outcome"], facts["attempts"]) == ("failed", 2)
    first, last = facts["problems"]
    assert "(restart 1 of 5)" in first["message"] and first["severity"] == "warning"
    assert (
        "bad batch 18" in last["message"] and "The same error occurred before the restart" in last["message"]
    )
    assert last["severity"] == "error"
    assert [item.code for item in read_problems(only_run())] == [last["code"]]
    assert summarize(only_run()).facts()["exit_code"] == 1
