"""Faults that really happen, in real training: each ends in one clear problem and the right exit code.

What goes wrong is in the code of the person who trains: a model, a loss or a data factory beside their
configuration. FAULT names it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rankdeck import events
from rankdeck.checkpoint_files import list_checkpoints
from rankdeck.launch.control import request_stop
from rankdeck.run_dir import RunDir, list_runs
from tests.helpers import launching
from tests.helpers.cli import rankdeck_in_process, start_rankdeck
from tests.helpers.processes import processes_of_run
from tests.helpers.waiting import scale_timeout, wait_until

USER_CODE = """
import os, signal, time
from pathlib import Path
import torch
from torch import nn

calls = 0

def model():
    fault, rank = os.environ["FAULT"], int(os.environ["RANK"])
    if fault == "factory":
        time.sleep(0.6 * rank)
        raise KeyError("no such layer")
    if fault == "factory of 1" and rank == 1:
        raise KeyError("no such layer")
    made = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    if fault == "spare":
        made.register_module("spare", nn.Linear(2, 2))
        made.forward = lambda inputs: made[1](made[0](inputs))
    if fault == "slow save":
        made.register_state_dict_pre_hook(lambda *_: time.sleep(0 if rank else 1.5))
    return made

def wait_for(sign):
    here = Path(__file__).parent
    (here / f"{sign}-{os.environ['RANK']}").touch()
    while not (here / sign).exists():
        time.sleep(0.01)

def loss(outputs, targets):
    global calls
    calls += torch.is_grad_enabled()
    fault = os.environ["FAULT"]
    if fault == "disk" and calls in (20, 140):
        wait_for("filled" if calls == 20 else "freed")
    if calls == 20 and fault == "leave alone":
        os._exit(0)
    if calls == 20 and fault == "hang alone":
        time.sleep(1000)
    if calls == 20 and os.environ["RANK"] == "1":
        if fault == "barrier":
            torch.distributed.barrier()
        if fault == "leave":
            os._exit(0)
        if fault == "raise":
            raise ValueError("bad batch 17")
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if fault == "nan":
            outputs = outputs * float("nan")
        if fault == "suspend":
            os.kill(os.getpid(), signal.SIGSTOP)
        if fault == "hang":
            time.sleep(1000)
    return nn.functional.cross_entropy(outputs, targets, reduction="sum"), len(targets)
"""

CONFIG = """
name = "faulty"
model = { use = "mine.py:model" }
data = { use = "digits" }
loss = { use = "mine.py:loss" }
train = { steps = 2000, global_batch = 48, evaluate_every = 0, verify = "off" }  # mine.py counts its calls
strategy = { use = "ddp" }
devices = { use = "cpu:3" }
launch = { timeout_s = 14 }
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A configuration whose code fails as FAULT says."""
    (tmp_path / "mine.py").write_text(USER_CODE, encoding="utf-8")
    path = tmp_path / "faulty.toml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def only_run(tmp_path: Path) -> RunDir:
    (run,) = list_runs(tmp_path / "rankdeck-runs")
    return run


def only_problem(run: RunDir) -> dict[str, Any]:
    """The only error that `show` tells of the run."""
    facts = rankdeck_in_process("show", run.path, "--json", exit_code=0).json
    (problem,) = [candidate for candidate in facts["problems"] if candidate.get("severity") != "warning"]
    assert problem["advice"]
    return dict(problem)


# Ranks that are killed, crash and leave: tests/faults and, without torch, tests/engine/launch try them too.
@pytest.mark.parametrize(
    ("fault", "code", "message"),
    [
        ("raise", "rank-exception", "ValueError: bad batch 17"),
        pytest.param("kill", "rank-killed", "SIGKILL in step 20", marks=pytest.mark.slow),
        pytest.param("crash", "rank-crashed", "SIGSEGV in step 20", marks=pytest.mark.slow),
        ("nan", "loss-not-finite", "NaN in step 20"),
        pytest.param("leave", "rank-exited", "left in step 20", marks=pytest.mark.slow),
    ],
)
def test_a_fault_of_one_rank_is_one_problem_with_that_rank(
    job: Path, tmp_path: Path, fault: str, code: str, message: str
) -> None:
    done = rankdeck_in_process("train", job, env={"FAULT": fault})
    assert done.exit_code == 1, done.err
    assert message in done.err and "Traceback" not in done.err.splitlines()
    run = only_run(tmp_path)
    problem = only_problem(run)
    assert (problem["code"], problem["rank"]) == (code, 1)
    assert message in problem["message"]
    launching.wait_until_gone(run)


def test_unused_parameters_are_reported_by_name(job: Path, tmp_path: Path) -> None:
    done = rankdeck_in_process("train", job, env={"FAULT": "spare"})
    assert done.exit_code == 2, done.err
    problem = only_problem(only_run(tmp_path))
    assert problem["code"] == "unused-parameters"
    assert problem["message"] == "These parameters did not contribute to the loss: spare.bias, spare.weight."
    assert problem["advice"].startswith("Set strategy.find_unused_parameters = true")


# In tests/engine/launch/test_supervisor.py a rank without torch leaves so.
@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "devices", "rank"), [("single", "cpu:1", 0), ("dp", "cpu:2", 0)])
def test_a_single_process_that_exits_early_fails_the_run(
    job: Path, tmp_path: Path, strategy: str, devices: str, rank: int
) -> None:
    options = ("--strategy", strategy, "--devices", devices)
    done = rankdeck_in_process("train", job, *options, env={"FAULT": "leave alone"})
    assert done.exit_code == 1 and "left in step 20" in done.err, done.err
    problem = only_problem(only_run(tmp_path))
    assert (problem["code"], problem["rank"]) == ("rank-exited", rank)


@pytest.mark.parametrize(
    ("fault", "rank"), [("factory", None), pytest.param("factory of 1", 1, marks=pytest.mark.slow)]
)
def test_an_exception_in_a_factory_is_reported_as_bad_input(
    job: Path, tmp_path: Path, fault: str, rank: int | None
) -> None:
    done = rankdeck_in_process("train", job, "--set", "train.verify=auto", env={"FAULT": fault})
    assert done.exit_code == 2, done.err
    assert "mine.py" in done.err and "Traceback" not in done.out
    problem = only_problem(only_run(tmp_path))
    assert (problem["code"], problem["rank"]) == ("model", rank)
    for word in ("mine.py", "KeyError", "no such layer"):
        assert word in problem["message"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("devices.use=gpu:97", "GPU"),
        ("train.global_batch=50", "does not divide"),
        ('data={use="text", args={path="/nowhere/at/all"}}', "/nowhere/at/all"),
    ],
)
def test_invalid_configurations_are_refused_before_a_run_exists(
    job: Path, tmp_path: Path, change: str, message: str
) -> None:
    done = rankdeck_in_process("train", job, "--set", change, env={"FAULT": ""})
    # Without a driver it is the machine that lacks something.
    assert done.exit_code in ((2, 3) if "gpu" in change else (2,)), done.err
    assert message in done.err and "Traceback" not in done.err
    assert not list_runs(tmp_path / "rankdeck-runs")


def _has_steps(run: RunDir) -> bool:
    return any(isinstance(event, events.Steps) for _, event in launching.all_events(run))


def wait_for_training(tmp_path: Path) -> RunDir:
    wait_until(lambda: list_runs(tmp_path / "rankdeck-runs"), deadline_s=30, what="the run")
    run = only_run(tmp_path)
    wait_until(lambda: _has_steps(run) or run.exit_record(), deadline_s=60, what="the first step")
    assert run.exit_record() is None
    return run


def listen_addresses(run: RunDir) -> set[str]:
    """The addresses at which processes of a run listen."""
    return {
        connection.laddr.ip
        for pid in processes_of_run(run.path)
        for connection in psutil.Process(pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }


# Ctrl-C is in test_cli.py and test_api.py.
@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_rank_stopped_from_outside_is_reported_and_saved(job: Path, tmp_path: Path, rank: int) -> None:
    changes = ("--set", "train.steps=100000", "--devices", "cpu:2")
    with start_rankdeck("train", job, *changes, env={"FAULT": ""}) as command:
        run = wait_for_training(tmp_path)
        assert (addresses := listen_addresses(run)) and addresses <= {"127.0.0.1", "::1"}
        os.kill(launching.rank_pids(run)[rank], signal.SIGTERM)
        command.communicate(timeout=scale_timeout(60))
    problem = only_problem(run)
    assert problem["rank"] == rank and "asked to stop (SIGTERM) by something outside" in problem["message"]
    assert list_checkpoints(run.checkpoints_folder)


# Without real ranks each of the three is tried in tests/engine/launch/test_guard.py.
@pytest.mark.usefixtures("short_tmpdir")
@pytest.mark.parametrize(
    "victim",
    ["guard", *(pytest.param(other, marks=pytest.mark.slow) for other in ("supervisor", "command"))],
)
def test_killing_a_parent_process_ends_ranks_and_data_loaders(job: Path, tmp_path: Path, victim: str) -> None:
    env = {"FAULT": ""}
    changes = ["--set", "train.steps=100000", "--set", "data.workers=2", "--devices", "cpu:2"]
    with start_rankdeck("train", job, *changes, env=env) as command:
        run = wait_for_training(tmp_path)
        assert len(processes_of_run(run.path)) >= 2 + 2 + 4
        pid = {
            "supervisor": launching.supervisor_pid(run),
            "guard": launching.guard_pid(run),
            "command": command.pid,
        }[victim]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        launching.wait_until_gone(run)
        out, err = command.communicate(timeout=scale_timeout(20))
    assert run.outcome() == {"supervisor": "failed", "guard": "lost", "command": "stopped"}[victim]
    if victim == "guard":
        assert command.returncode == 1
        assert "lost" in out and "killed from outside" in err and "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(20))
def test_ranks_exit_promptly(job: Path, tmp_path: Path, attempt: int) -> None:
    rankdeck_in_process("train", job, "--set", "train.steps=5", env={"FAULT": ""}, exit_code=0)
    assert launching.exit_delay_s(only_run(tmp_path)) < launching.stop_timeout_s(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "strategy", "rank", "fragments"),
    [
        ("hang", "ddp", 1, ("waited for it in all_reduce number", "in step 20, in loss (", "mine.py, line ")),
        (
            "barrier",
            "ddp",
            None,
            ("different collectives, with rank 0 in", "all_reduce number", "barrier number"),
        ),
        (
            "hang",
            "pipeline",
            1,
            ("other ranks waited for it", "in loss (", "after starting forward of microbatch "),
        ),
        ("hang alone", "single", 0, ("in step 20, in loss (", "mine.py, line ")),
        ("hang alone", "dp", 0, ("in step 20, in loss (", "mine.py, line ")),
    ],
)
def test_a_hanging_rank_is_suspected_and_then_reported(
    job: Path, tmp_path: Path, fault: str, strategy: str, rank: int | None, fragments: tuple[str, ...]
) -> None:
    model = "mlp" if strategy == "pipeline" else "mine.py:model"
    sets = ("--set", "launch.timeout_s=6", "--set", f'model={{use="{model}"}}')
    changes = ("--strategy", strategy, "--devices", "cpu:2", *sets)
    done = rankdeck_in_process("train", job, *changes, env={"FAULT": fault})
    assert done.exit_code == 1, done.err
    run = only_run(tmp_path)
    problem = only_problem(run)
    assert (problem["code"], problem["rank"]) == ("hang", rank)
    assert all(word in problem["message"] for word in fragments), problem["message"]
    warning = launching.read_problems(run, "warning")[-1]
    assert (warning.code, warning.rank) == ("hang-suspected", rank)
    assert warning.message.startswith("No progress for") and "Rankdeck will end the run in" in str(
        warning.advice
    )
    explained = rankdeck_in_process("why", run.path, exit_code=0).out
    assert warning.message in explained and "Rankdeck will end the run" not in explained


@pytest.mark.slow
def test_a_suspended_rank_is_reported_and_can_continue(job: Path, tmp_path: Path) -> None:
    sets = ("--set", "launch.timeout_s=2", "--set", "train.steps=30")
    with start_rankdeck("train", job, "--devices", "cpu:2", *sets, env={"FAULT": "suspend"}) as command:
        run = wait_for_training(tmp_path)
        (warning,) = wait_until(
            lambda: launching.read_problems(run, "warning"), deadline_s=60, what="the suspended rank"
        )
        assert (warning.code, warning.rank) == ("rank-suspended", 1)
        facts = rankdeck_in_process("stacks", run.path, "--json", exit_code=0).json
        assert [rank["why"] for rank in facts["ranks"]] == [None, "suspended"]
        time.sleep(4)  # longer than a hang would be allowed
        os.kill(facts["ranks"][1]["pid"], signal.SIGCONT)
        command.communicate(timeout=scale_timeout(60))
    assert command.returncode == 0 and run.outcome() == "completed"


@pytest.mark.slow
def test_a_slow_save_is_no_hang(job: Path, tmp_path: Path) -> None:
    changes = ("--devices", "cpu:2", "--set", "launch.timeout_s=1")
    changes += ("--set", "train.steps=3", "--set", "train.checkpoint_every=3")
    rankdeck_in_process("train", job, *changes, env={"FAULT": "slow save"}, exit_code=0)
    run = only_run(tmp_path)
    saved = [event for _, event in launching.all_events(run) if isinstance(event, events.CheckpointSaved)]
    assert saved and all(save.seconds > 1.5 for save in saved) and not launching.read_problems(run, "warning")


@pytest.mark.slow
def test_stacks_prints_the_location_of_every_rank(job: Path, tmp_path: Path) -> None:
    changes = ("--devices", "cpu:2", "--set", "launch.on_hang=wait", "--detach")
    rankdeck_in_process("train", job, *changes, env={"FAULT": "hang"}, exit_code=0)
    run = wait_for_training(tmp_path)

    def waiting_ranks() -> list[dict[str, Any]] | None:
        ranks = rankdeck_in_process("stacks", run.path, "--json", exit_code=0).json["ranks"]
        return ranks if ranks[0]["collective"] and ranks[1]["frames"][0]["function"] == "loss" else None

    ranks = wait_until(waiting_ranks, deadline_s=30, interval_s=0.5, what="rank 0 in its collective")
    assert ranks[0]["collective"]["kind"] == "all_reduce" and "Current thread" in ranks[0]["text"]
    output = rankdeck_in_process("stacks", run.path, exit_code=0).out
    assert "all_reduce number" in output.splitlines()[0] and "): loss (" in output
    request_stop(run, now=True)
    assert launching.wait_for_exit_record(run).outcome == "stopped"
    assert "is not running: stopped" in rankdeck_in_process("stacks", run.path, exit_code=2).err


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one mebibyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "rankdeck-test", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill_disk(disk: Path) -> Path:
    """Leave no room on a disk; the file that takes it."""
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            return filler


def wait_for_sign(job: Path, sign: str) -> None:
    """Until both ranks wait for this sign."""
    signs = [job.with_name(f"{sign}-{rank}") for rank in range(2)]
    wait_until(lambda: all(path.exists() for path in signs), deadline_s=60, what=f"both ranks at '{sign}'")


def _start_on_full_disk(disk: Path, job: Path, steps: int) -> tuple[RunDir, Path]:
    """A run on the small disk that found it full after 20 steps, and the file that takes the room; the run's
    weights have 340 KB. Should it come to step 140, it waits there for `freed`.
    """
    changes = [f"train.steps={steps}", 'model={use="mlp"}', "launch.timeout_s=60"]
    sets = [word for change in changes for word in ("--set", change)]
    env = {"FAULT": "disk"}
    rankdeck_in_process(
        "train", job, *sets, "--devices", "cpu:2", "--runs", disk, "--detach", env=env, exit_code=0
    )
    (run,) = list_runs(disk)
    wait_for_sign(job, "filled")
    filler = fill_disk(disk)
    job.with_name("filled").touch()
    return run, filler


def test_a_full_disk_fails_the_run_if_weights_cannot_be_saved(job: Path, small_disk: Path) -> None:
    run, _ = _start_on_full_disk(small_disk, job, steps=130)
    end = launching.wait_for_exit_record(run)
    assert (end.outcome, end.exit_code) == ("failed", 1)
    assert end.reason is not None and "o space" in end.reason


def test_a_temporarily_full_disk_loses_events_and_is_reported(job: Path, small_disk: Path) -> None:
    run, filler = _start_on_full_disk(small_disk, job, steps=150)
    wait_for_sign(job, "freed")
    filler.unlink()
    job.with_name("freed").touch()
    end = launching.wait_for_exit_record(run)
    assert (end.outcome, end.exit_code) == ("completed", 0)
    # Nor has this disk room for a checkpoint, which the first step finds.
    codes = [problem.code for problem in launching.read_problems(run, "warning")]
    assert sorted(codes) == ["checkpoint-would-fail", "disk-full"]
    assert not launching.read_problems(run)
