"""Ranks of two hosts that stand still: whoever all wait for is named, with its host, wherever it is. And what
is final over hosts.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rankdeck.base.errors import Problem
from rankdeck.config.multi_host import HOST_NAME_ENV, JOIN_ENV
from rankdeck.run.run_state import read_run_state
from rankdeck.run_dir import RunDir, list_folder
from tests.helpers import launching
from tests.helpers.cli import rankdeck_in_process
from tests.helpers.waiting import wait_until

_USER_CODE = """\
import os, time
from pathlib import Path
import torch
from torch import nn

calls = 0

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

def loss(outputs, targets):
    global calls
    calls += torch.is_grad_enabled()
    fault, rank = os.environ.get("FAULT", ""), os.environ["RANK"]
    once = os.environ.get("ONCE")
    if calls == 20 and fault.endswith(rank) and not (once and Path(once).exists()):
        if once:
            Path(once).touch()
        if fault.startswith("barrier"):
            torch.distributed.barrier()
        while fault.startswith("busy"):
            pass
        if fault.startswith("asleep"):
            time.sleep(1000)
    return nn.functional.cross_entropy(outputs, targets, reduction="sum"), len(targets)
"""
_JOB = """\
name = "still"
model = { use = "mine.py:model" }
loss = { use = "mine.py:loss" }
strategy = { use = "ddp" }
train = { steps = 100000, evaluate_every = 0, global_batch = 48, checkpoint_every = 10, verify = "off" }
launch = { timeout_s = 6 }
hosts = { use = ["box1", "box2"] }
devices = { use = "cpu:1" }
"""


class ManualHosts:
    """Two, begun by hand, which are this machine with a home each; and a job of theirs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "mine.py").write_text(_USER_CODE)
        self._file = folder / "job.toml"
        self._file.write_text(_JOB)

    def start(self, fault: str, *more: str, **environment: str) -> list[RunDir]:
        """The parts of the run, the first host's first."""
        command, address = ("train", self._file, "--hosts", "2", *more, "--detach", "--json"), ""
        for host in ("box1", "box2"):
            home = self._folder / host
            env = {
                "FAULT": fault,
                "OMP_NUM_THREADS": "1",
                HOST_NAME_ENV: host,
                "HOME": str(home),
                **environment,
            }
            env |= {"RANKDECK_HOME": str(home / "home"), "RANKDECK_RUNS": str(home / "runs")}
            joins = {JOIN_ENV: address} if address else {}
            listens = () if address else ("--listen", "127.0.0.1")
            address = rankdeck_in_process(*command, *listens, env={**env, **joins}, exit_code=0).json.get(
                "place", ""
            )
        return [list_folder(self._folder / host / "runs")[0] for host in ("box1", "box2")]


@pytest.fixture
def hosts(tmp_path: Path) -> ManualHosts:
    return ManualHosts(tmp_path)


def problems_with_severity(run: RunDir, severity: str = "error") -> list[Problem]:
    return [problem for problem in read_run_state(run).problems if problem.severity == severity]


def relevant_warnings(run: RunDir) -> list[Problem]:
    """But for the connections that are lost when one ends."""
    return [warning for warning in problems_with_severity(run, "warning") if warning.code != "communication"]


@pytest.mark.parametrize(
    ("fault", "rank"),
    [
        ("asleep 1", 1),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("busy 0", 0), ("busy 1", 1))),
    ],
)
def test_a_rank_missing_in_a_collective_is_reported_with_its_host(
    hosts: ManualHosts, fault: str, rank: int
) -> None:
    coordinator_run, other = hosts.start(fault)
    wait_until(lambda: coordinator_run.exit_record() and other.exit_record(), deadline_s=90)
    (warning,), (problem,) = relevant_warnings(coordinator_run), problems_with_severity(coordinator_run)
    assert (warning.code, problem.code) == ("hang-suspected", "hang")
    box = f"box{rank + 1}"
    for reported in (warning, problem):
        assert reported.headline().startswith(f"rank {rank} on {box}: ")
        assert (
            "are waiting in all_reduce" in reported.message
            or "waited for it in all_reduce" in reported.message
        )
        assert "in step 20, in loss (" in reported.message and "mine.py, line " in reported.message
    assert not problems_with_severity(other) and not relevant_warnings(other)
    ends = [run.exit_record() for run in (coordinator_run, other)]
    assert [end.outcome for end in ends if end is not None] == ["failed", "failed"]
    reasons = [str(end.reason) for end in ends if end is not None]
    assert "while the other ranks waited for it in " in reasons[0]
    assert reasons[0].startswith(f"{box}: rank 1: " if rank else "rank 0: ")
    assert reasons[1] == (reasons[0] if rank else f"{box}: {reasons[0]}")


def test_a_deterministic_failure_is_not_restarted(hosts: ManualHosts) -> None:
    sets = ("launch.max_restarts=3", "train.optimizer.lr=1e30")
    runs = hosts.start("", *(word for item in sets for word in ("--set", item)))
    wait_until(lambda: all(run.exit_record() for run in runs), deadline_s=90)
    assert [run.outcome() for run in runs] == ["failed", "failed"]
    assert "loss-not-finite" in {item.code for run in runs for item in problems_with_severity(run)}
    assert "restarted" not in {item.code for run in runs for item in problems_with_severity(run, "warning")}


@pytest.mark.slow
def test_ranks_in_different_collectives_are_reported(hosts: ManualHosts) -> None:
    coordinator_run, _ = hosts.start("barrier 1")
    wait_until(lambda: coordinator_run.exit_record(), deadline_s=90)
    (problem,) = problems_with_severity(coordinator_run)
    assert (problem.code, problem.rank) == ("hang", None)
    assert "different collectives, rank 0 in" in problem.message and "rank 1 in" in problem.message


@pytest.mark.slow
def test_a_suspended_rank_is_reported_and_waited_for(hosts: ManualHosts) -> None:
    sets = ("train.steps=600", "launch.timeout_s=4", "train.checkpoint_every=0")
    coordinator_run, other = hosts.start("", *(word for override in sets for word in ("--set", override)))
    wait_until(lambda: (read_run_state(coordinator_run).step or 0) > 5, deadline_s=60)
    pid = launching.rank_pids(other)[1]
    os.kill(pid, signal.SIGSTOP)
    (warning,) = wait_until(lambda: problems_with_severity(coordinator_run, "warning"), deadline_s=60)
    assert warning.code == "rank-suspended" and warning.headline().startswith("rank 1 on box2: ")
    assert f"kill -CONT {pid}" in (warning.advice or "")
    with pytest.raises(AssertionError):
        wait_until(lambda: coordinator_run.exit_record(), deadline_s=8)
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: coordinator_run.exit_record() and other.exit_record(), deadline_s=90)
    assert coordinator_run.outcome() == other.outcome() == "completed" and not problems_with_severity(
        coordinator_run
    )


@pytest.mark.slow
def test_all_hosts_restart_after_a_hang(hosts: ManualHosts, tmp_path: Path) -> None:
    more = ("--set", "launch.on_hang=restart", "--set", "train.steps=60")
    coordinator_run, other = hosts.start("asleep 1", *more, ONCE=str(tmp_path / "once"))
    wait_until(lambda: coordinator_run.exit_record() and other.exit_record(), deadline_s=120)
    assert (
        coordinator_run.outcome() == other.outcome() == "completed"
        and read_run_state(coordinator_run).step == 60
    )
    (restarted,) = [
        warning
        for warning in problems_with_severity(coordinator_run, "warning")
        if warning.code == "restarted"
    ]
    assert restarted.message.startswith("box2: rank 1: It made no progress for ")
