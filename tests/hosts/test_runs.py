"""One run over two hosts: it computes what one host does, and whatever goes is told and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rankdeck.run.run_state import read_run_state
from rankdeck.run_dir import list_folder
from tests.helpers import launching
from tests.helpers.cli import rankdeck_in_process
from tests.helpers.host_network import HostNetwork, NetworkHost
from tests.helpers.host_runs import HostRun, kill_by_title, process_titles, weight_and_loss_difference
from tests.helpers.waiting import scale_timeout, wait_until

_JOB = ("digits-mlp", "--set", "train.evaluate_every=0")
_DDP = (*_JOB, "--strategy", "ddp")
_LONG = (*_DDP, "--devices", "cpu:1", "--set", "train.steps=1000000", "--set", "train.checkpoint_every=0")
_EXIT_TIMEOUT_S = 15.0


@pytest.mark.slow
def test_lost_large_packets_are_reported_as_the_cause_of_a_hang(bare_network: HostNetwork) -> None:
    bare_network.hosts["box2"].drop_large_packets()
    run = HostRun([*bare_network.hosts.values()], *_LONG, "--set", "launch.timeout_s=8")
    try:
        assert run.exit_codes(240) == [1, 1]
        (problem,) = launching.read_problems(run.run_on(0))
        assert problem.code == "hang" and problem.rank is None
        assert "every rank has reached " in problem.message
        assert "the network between box1 and box2 does not deliver" in problem.message
        assert "MTU" in str(problem.advice) and "doctor --hosts box1,box2" in str(problem.advice)
        ends = [run.run_on(index).exit_record() for index in (0, 1)]
        reasons = [None if end is None else end.reason for end in ends]
        assert reasons == [problem.headline(), f"box1: {problem.headline()}"]
    finally:
        run.end()


@pytest.fixture
def start_run(network: HostNetwork) -> Iterator[Callable[..., HostRun]]:
    runs: list[HostRun] = []

    def make(*arguments: str, **more: Any) -> HostRun:
        runs.append(HostRun([*network.hosts.values()], *arguments, **more))
        return runs[-1]

    yield make
    for run in runs:
        run.end()


def test_the_coordinator_has_all_events_of_a_run_equal_to_a_local_one(
    start_run: Callable[..., HostRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("--set", "train.steps=30", "--set", "train.checkpoint_every=10")
    run = start_run(*_DDP, "--devices", "cpu:1", *few)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name, seed in (("same", 0), ("other", 1)):
        rankdeck_in_process(
            "train", *_DDP, "--devices", "cpu:2", *few, "--set", f"train.seed={seed}",
            "--runs", tmp_path / name, exit_code=0,
        )  # fmt: skip
    assert run.exit_codes() == [0, 0], (run.output_of(0), run.output_of(1))
    coordinator_run = run.run_on(0)
    (same,), (other,) = list_folder(tmp_path / "same"), list_folder(tmp_path / "other")
    assert max(weight_and_loss_difference(coordinator_run, same)) <= 2e-6
    assert min(weight_and_loss_difference(coordinator_run, other)) > 1e-3
    state = read_run_state(coordinator_run)
    assert state.step == 30 and not state.counts.missing and not state.counts.unreadable
    assert [device.label for device in state.devices.values()] == ["box1 Virtual 0", "box2 Virtual 1"]
    assert all(device.peak_bytes for device in state.devices.values())
    assert not launching.read_problems(coordinator_run) and not launching.read_problems(
        coordinator_run, "warning"
    )
    shards = [
        sorted(file.name for file in run.run_on(at).checkpoints_folder.glob("30/shard-*")) for at in (0, 1)
    ]
    assert len(shards[0]) == 2 and shards[0] == shards[1]  # each host could go on alone
    assert [process_titles(host) for host in run.hosts] == [[], []]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fsdp", "tensor"])
def test_other_strategies_train_the_same_on_two_hosts(
    start_run: Callable[..., HostRun], tmp_path: Path, strategy: str
) -> None:
    few = ("--strategy", strategy, "--set", "train.steps=30", "--set", "train.checkpoint_every=10")
    few = (*few, "--set", 'hosts.across=["tensor"]')
    run = start_run(*_JOB, *few, "--devices", "cpu:1")
    rankdeck_in_process("train", *_JOB, *few, "--devices", "cpu:2", "--runs", tmp_path / "one", exit_code=0)
    assert run.exit_codes() == [0, 0], (run.output_of(0), run.output_of(1))
    (local_run,) = list_folder(tmp_path / "one")
    assert max(weight_and_loss_difference(run.run_on(0), local_run)) <= 2e-6


_FAULTS: dict[str, tuple[Callable[[NetworkHost], None], str, str]] = {
    "its rank is killed": (
        kill_by_title("rankdeck rank"),
        "rank-killed",
        "rank 1: The process was killed by SIGKILL",
    ),
    "its supervisor is killed": (
        kill_by_title("supervisor"),
        "supervisor-lost",
        "box2: The run's supervisor was killed",
    ),
    "its guard is killed": (
        kill_by_title("rankdeck guard"),
        "host-lost",
        "box2 (10.77.0.3) closed its connection",
    ),
    "its power goes": (NetworkHost.power_off, "host-lost", "box2 (10.77.0.3) closed"),
    "its cable is pulled": (NetworkHost.unplug, "host-lost", "box2 (10.77.0.3) has not responded for 5 s"),
    "its part of the run is removed": (
        lambda host: host.execute("rm", "-rf", str(host.runs)),
        "run-folder",
        "box2: The run's folder was removed",
    ),
}


@pytest.mark.parametrize(
    "fault",
    [
        name if name == "its cable is pulled" else pytest.param(name, marks=pytest.mark.slow)
        for name in _FAULTS
    ],
)
def test_a_lost_host_is_reported_and_the_others_exit(start_run: Callable[..., HostRun], fault: str) -> None:
    act, code, message = _FAULTS[fault]
    run = start_run(*_LONG)
    run.wait_for_steps()
    coordinator_run, box2 = run.run_on(0), run.hosts[1]
    began_s = time.monotonic()
    act(box2)
    wait_until(lambda: coordinator_run.exit_record() is not None, deadline_s=_EXIT_TIMEOUT_S + 10)
    assert time.monotonic() - began_s < scale_timeout(_EXIT_TIMEOUT_S)
    (problem,) = launching.read_problems(coordinator_run)
    assert problem.code == code and problem.headline().startswith(message)
    assert run.commands[0].wait(30) == 1 and not process_titles(run.hosts[0])
    if act is not NetworkHost.power_off:
        wait_until(lambda: not process_titles(box2), deadline_s=_EXIT_TIMEOUT_S)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["its guard is killed", "its cable is pulled"])
def test_losing_the_coordinator_ends_the_run_on_all_hosts(
    start_run: Callable[..., HostRun], what: str
) -> None:
    run = start_run(*_LONG)
    run.wait_for_steps()
    _FAULTS[what][0](run.hosts[0])
    node_run = run.run_on(1)
    wait_until(lambda: node_run.exit_record() is not None, deadline_s=_EXIT_TIMEOUT_S + 10)
    (problem,) = launching.read_problems(node_run)
    assert problem.code == "host-lost" and problem.message.startswith("The coordinator (10.77.0.2)")
    if what == "its cable is pulled":
        (coordinator_problem,) = launching.read_problems(run.run_on(0))
        assert coordinator_problem.message.startswith("box1 lost its connection to the other hosts")
    for host in run.hosts:
        wait_until(lambda host=host: not process_titles(host), deadline_s=_EXIT_TIMEOUT_S)


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 1])
def test_a_stop_on_any_host_stops_all_at_the_same_step(start_run: Callable[..., HostRun], at: int) -> None:
    run = start_run(*_LONG)
    run.wait_for_steps()
    os.kill(_rankdeck_pid(run.commands[at].pid), signal.SIGINT)
    assert run.exit_codes() == [130, 130]
    assert [run.run_on(index).outcome() for index in (0, 1)] == ["stopped", "stopped"]
    saved = [sorted(file.name for file in run.run_on(index).checkpoints_folder.iterdir()) for index in (0, 1)]
    assert saved[0] == saved[1] and len(saved[0]) == 1
    assert not launching.read_problems(run.run_on(0))


def _rankdeck_pid(pid: int) -> int:
    """nsenter forks where it enters the processes of another host."""
    import psutil

    return next((child.pid for child in psutil.Process(pid).children()), pid)


def test_hosts_with_different_configurations_do_not_start(start_run: Callable[..., HostRun]) -> None:
    run = start_run(*_LONG, others=("--set", "train.seed=7"))
    assert run.exit_codes() == [1, 1]
    assert "box2 was started with a different configuration." in run.output_of(0)
    assert not list(run.run_on(0).events_folder.glob("rank-*"))


def listen_addresses(host: NetworkHost) -> set[str]:
    """The addresses that something but sshd listens at, in hexadecimal as the kernel tells them."""
    output = "".join(host.execute("cat", f"/proc/net/{kind}") for kind in ("tcp", "tcp6"))
    rows = [line.split() for line in output.splitlines() if ":" in line and "local_address" not in line]
    at = [row[1].split(":") for row in rows if row[3] == "0A"]
    return {address for address, port in at if port != f"{22:04X}"}


_LISTEN_SCRIPT = """
import socket, time
server = socket.create_server(("", 0))
print("up", flush=True)
time.sleep(60)
"""


def test_ranks_listen_only_on_the_address_of_their_host(start_run: Callable[..., HostRun]) -> None:
    run = start_run(*_LONG)
    run.wait_for_steps()
    for host in run.hosts:
        address = "".join(f"{int(octet):02X}" for octet in reversed(host.address.split(".")))
        assert listen_addresses(host) <= {address, "0100007F"} and address in listen_addresses(host)
    enter = ["nsenter", "-t", str(run.hosts[1].pid), "-n", sys.executable, "-c", _LISTEN_SCRIPT]
    with subprocess.Popen(enter, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"up\n"
        assert "00000000" in listen_addresses(run.hosts[1]), "this test would see it"
        other.kill()
    os.kill(_rankdeck_pid(run.commands[0].pid), signal.SIGINT)
    assert run.exit_codes() == [130, 130]
