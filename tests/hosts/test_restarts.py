"""A run of several hosts that goes on by itself: with all of them, or with those that are left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rankdeck.checkpoint_files import newest_intact
from rankdeck.run.run_state import read_run_state
from rankdeck.run_dir import RunDir, list_folder
from tests.helpers import launching
from tests.helpers.cli import rankdeck, rankdeck_in_process
from tests.helpers.host_network import HostNetwork, NetworkHost
from tests.helpers.host_runs import kill_by_title, process_titles, weight_and_loss_difference
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.slow  # tests/e2e/test_parts.py has a shorter one, of two names of one host
_JOB = ("digits-mlp", "--strategy", "ddp", "--set", "train.evaluate_every=0", "--set", "train.steps=400")
_JOB = (*_JOB, "--set", "train.checkpoint_every=50", "--set", "train.global_batch=48")
_RESTART_OPTIONS = ("--set", "launch.max_restarts=1")


def start_with_checkpoint(network: HostNetwork, *more: str) -> RunDir:
    """The head's run, with a checkpoint."""
    first = next(iter(network.hosts.values()))
    command = ("train", *_JOB, "--devices", "cpu:1", "--hosts", ",".join(network.hosts), *more)
    rankdeck(*command, "--detach", exit_code=0)
    (coordinator_run,) = list_folder(first.runs)
    wait_until(lambda: newest_intact(coordinator_run.checkpoints_folder)[0], deadline_s=60)
    return coordinator_run


def wait_for_outcome(run: RunDir) -> str:
    wait_until(lambda: run.exit_record() is not None and not run.is_alive(), deadline_s=90)
    return run.outcome()


def run_without_fault(folder: Path, devices: int) -> RunDir:
    rankdeck_in_process("train", *_JOB, "--devices", f"cpu:{devices}", "--runs", folder, exit_code=0)
    (run,) = list_folder(folder)
    return run


FAULTS: dict[str, Callable[[NetworkHost], None]] = {
    "a rank": kill_by_title("rankdeck rank"),
    "the supervisor": kill_by_title("supervisor"),
}


@pytest.mark.parametrize("at", [0, 1], ids=["head", "other"])
@pytest.mark.parametrize("what", FAULTS)
def test_all_hosts_restart_bit_exactly_after_a_killed_process(
    network: HostNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, at: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    coordinator_run = start_with_checkpoint(network, *_RESTART_OPTIONS)
    FAULTS[what]([*network.hosts.values()][at])
    assert wait_for_outcome(coordinator_run) == "completed"
    (restarted,) = [
        problem
        for problem in launching.read_problems(coordinator_run, "warning")
        if problem.code == "restarted"
    ]
    assert "The run continues with 2 hosts" in restarted.message and not launching.read_problems(
        coordinator_run
    )
    reference = run_without_fault(tmp_path / "whole", 2)
    assert (
        weight_and_loss_difference(coordinator_run, reference) == (0, 0)
        and read_run_state(reference).step == 400
    )
    assert [process_titles(host) for host in network.hosts.values()] == [[], []]


@pytest.mark.parametrize(
    "how", ["its cable is pulled", pytest.param("its power goes", marks=pytest.mark.slow)]
)
def test_a_run_continues_without_a_lost_host_down_to_hosts_min(
    network_of_three: HostNetwork, how: str
) -> None:
    network = network_of_three
    lost = network.hosts["box3"]
    coordinator_run = start_with_checkpoint(network, *_RESTART_OPTIONS, "--set", "hosts.min=2")
    lost.unplug() if "cable" in how else lost.power_off()
    assert wait_for_outcome(coordinator_run) == "completed"
    (restarted,) = [
        problem
        for problem in launching.read_problems(coordinator_run, "warning")
        if problem.code == "restarted"
    ]
    assert restarted.message.startswith("box3 (10.77.0.4) has ")
    assert "The run continues with 2 hosts" in restarted.message and not launching.read_problems(
        coordinator_run
    )
    state = read_run_state(coordinator_run)
    assert state.step == 400 and len(state.devices) == 2
    assert [process_titles(network.hosts[name]) for name in ("box1", "box2")] == [[], []]


def test_deterministic_failures_and_missing_hosts_are_final(network: HostNetwork) -> None:
    coordinator_run = start_with_checkpoint(network, *_RESTART_OPTIONS)
    network.hosts["box2"].unplug()
    assert wait_for_outcome(coordinator_run) == "failed"
    assert [problem.code for problem in launching.read_problems(coordinator_run)] == ["host-lost"]
    assert process_titles(network.hosts["box1"]) == []
    network.hosts["box2"].plug_in()
    wait_until(lambda: process_titles(network.hosts["box2"]) == [], deadline_s=20)
    again = rankdeck(
        "train", *_JOB, "--devices", "cpu:1", "--hosts", "box1,box2", *_RESTART_OPTIONS,
        "--set", "train.optimizer.lr=1e30", "--json",
    )  # fmt: skip
    assert again.json["outcome"] == "failed"
    (run,) = [run for run in list_folder(network.hosts["box1"].runs) if run.name != coordinator_run.name]
    assert not [problem for problem in launching.read_problems(run, "warning") if problem.code == "restarted"]
