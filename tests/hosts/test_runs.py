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

from rankdeck.run.fold import read_fold
from rankdeck.rundir import list_folder
from tests.helpers import launching
from tests.helpers.cli import rankdeck_here
from tests.helpers.host_network import Host, HostNetwork
from tests.helpers.host_runs import HostRun, differences, kill, processes
from tests.helpers.waiting import wait_until, with_load

_JOB = ("digits-mlp", "--set", "train.evaluate_every=0")
_DDP = (*_JOB, "--strategy", "ddp")
_LONG = (*_DDP, "--devices", "cpu:1", "--set", "train.steps=1000000", "--set", "train.checkpoint_every=0")
_GONE_S = 15.0


@pytest.mark.slow
def test_a_network_that_loses_large_packets_is_the_cause(bare_network: HostNetwork) -> None:
    bare_network.hosts["box2"].lose_large()
    run = HostRun([*bare_network.hosts.values()], *_LONG, "--set", "launch.timeout_s=8")
    try:
        assert run.codes(240) == [1, 1]
        (problem,) = launching.problems(run.part(0))
        assert problem.code == "hang" and problem.rank is None
        assert "every rank has come to " in problem.message
        assert "the network between box1 and box2 does not bring" in problem.message
        assert "MTU" in str(problem.advice) and "doctor --hosts box1,box2" in str(problem.advice)
        ends = [run.part(index).end() for index in (0, 1)]
        reasons = [None if end is None else end.reason for end in ends]
        assert reasons == [problem.headline(), f"box1: {problem.headline()}"]
    finally:
        run.end()


@pytest.fixture
def begin(network: HostNetwork) -> Iterator[Callable[..., HostRun]]:
    begun: list[HostRun] = []

    def make(*arguments: str, **more: Any) -> HostRun:
        begun.append(HostRun([*network.hosts.values()], *arguments, **more))
        return begun[-1]

    yield make
    for run in begun:
        run.end()


def test_two_hosts_train_what_one_does_and_the_head_tells_all_of_it(
    begin: Callable[..., HostRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("--set", "train.steps=30", "--set", "train.checkpoint_every=10")
    run = begin(*_DDP, "--devices", "cpu:1", *few)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name, seed in (("same", 0), ("other", 1)):
        rankdeck_here(
            "train", *_DDP, "--devices", "cpu:2", *few, "--set", f"train.seed={seed}",
            "--runs", tmp_path / name, code=0,
        )  # fmt: skip
    assert run.codes() == [0, 0], (run.said(0), run.said(1))
    head = run.part(0)
    (same,), (other,) = list_folder(tmp_path / "same"), list_folder(tmp_path / "other")
    assert max(differences(head, same)) <= 2e-6
    assert min(differences(head, other)) > 1e-3
    fold = read_fold(head)
    assert fold.step == 30 and not fold.counts.missing and not fold.counts.unreadable
    assert [device.label for device in fold.devices.values()] == ["box1 Virtual 0", "box2 Virtual 1"]
    assert all(device.peak_bytes for device in fold.devices.values())
    assert not launching.problems(head) and not launching.problems(head, "warning")
    shards = [
        sorted(file.name for file in run.part(at).checkpoints_folder.glob("30/shard-*")) for at in (0, 1)
    ]
    assert len(shards[0]) == 2 and shards[0] == shards[1]  # each host could go on alone
    assert [processes(host) for host in run.hosts] == [[], []]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fsdp", "tensor"])
def test_other_strategies_train_the_same_over_hosts(
    begin: Callable[..., HostRun], tmp_path: Path, strategy: str
) -> None:
    few = ("--strategy", strategy, "--set", "train.steps=30", "--set", "train.checkpoint_every=10")
    few = (*few, "--set", 'hosts.across=["tensor"]')
    run = begin(*_JOB, *few, "--devices", "cpu:1")
    rankdeck_here("train", *_JOB, *few, "--devices", "cpu:2", "--runs", tmp_path / "one", code=0)
    assert run.codes() == [0, 0], (run.said(0), run.said(1))
    (one,) = list_folder(tmp_path / "one")
    assert max(differences(run.part(0), one)) <= 2e-6


_FAULTS: dict[str, tuple[Callable[[Host], None], str, str]] = {
    "its rank is killed": (kill("rankdeck rank"), "rank-killed", "rank 1: The process was ended by SIGKILL"),
    "its supervisor is killed": (
        kill("supervisor"),
        "supervisor-lost",
        "box2: The run's supervisor was ended",
    ),
    "its guard is killed": (
        kill("rankdeck guard"),
        "host-lost",
        "box2 (10.77.0.3) has closed its connection",
    ),
    "its power goes": (Host.kill, "host-lost", "box2 (10.77.0.3) has closed"),
    "its cable is pulled": (Host.cut_off, "host-lost", "box2 (10.77.0.3) has been silent for 5 s"),
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
def test_a_host_that_goes_is_named_and_the_others_end(begin: Callable[..., HostRun], fault: str) -> None:
    act, code, words = _FAULTS[fault]
    run = begin(*_LONG)
    run.wait_for_steps()
    head, box2 = run.part(0), run.hosts[1]
    began_s = time.monotonic()
    act(box2)
    wait_until(lambda: head.end() is not None, deadline_s=_GONE_S + 10)
    assert time.monotonic() - began_s < with_load(_GONE_S)
    (told,) = launching.problems(head)
    assert told.code == code and told.headline().startswith(words)
    assert run.commands[0].wait(30) == 1 and not processes(run.hosts[0])
    if act is not Host.kill:
        wait_until(lambda: not processes(box2), deadline_s=_GONE_S)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["its guard is killed", "its cable is pulled"])
def test_without_its_head_a_run_ends_everywhere(begin: Callable[..., HostRun], what: str) -> None:
    run = begin(*_LONG)
    run.wait_for_steps()
    _FAULTS[what][0](run.hosts[0])
    part = run.part(1)
    wait_until(lambda: part.end() is not None, deadline_s=_GONE_S + 10)
    (told,) = launching.problems(part)
    assert told.code == "host-lost" and told.message.startswith("the head (10.77.0.2)")
    if what == "its cable is pulled":
        (own,) = launching.problems(run.part(0))
        assert own.message.startswith("box1 has lost its own connection to the other hosts")
    for host in run.hosts:
        wait_until(lambda host=host: not processes(host), deadline_s=_GONE_S)


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 1])
def test_a_stop_on_any_host_stops_all_at_the_same_step(begin: Callable[..., HostRun], at: int) -> None:
    run = begin(*_LONG)
    run.wait_for_steps()
    os.kill(_python(run.commands[at].pid), signal.SIGINT)
    assert run.codes() == [130, 130]
    assert [run.part(index).outcome() for index in (0, 1)] == ["stopped", "stopped"]
    saved = [sorted(file.name for file in run.part(index).checkpoints_folder.iterdir()) for index in (0, 1)]
    assert saved[0] == saved[1] and len(saved[0]) == 1
    assert not launching.problems(run.part(0))


def _python(pid: int) -> int:
    """nsenter forks where it enters the processes of another host."""
    import psutil

    return next((child.pid for child in psutil.Process(pid).children()), pid)


def test_hosts_that_were_told_different_things_do_not_begin(begin: Callable[..., HostRun]) -> None:
    run = begin(*_LONG, others=("--set", "train.seed=7"))
    assert run.codes() == [1, 1]
    assert "box2 was started with another configuration." in run.said(0)
    assert not list(run.part(0).events_folder.glob("rank-*"))


def listening(host: Host) -> set[str]:
    """The addresses that something but sshd listens at, in hexadecimal as the kernel tells them."""
    told = "".join(host.execute("cat", f"/proc/net/{kind}") for kind in ("tcp", "tcp6"))
    rows = [line.split() for line in told.splitlines() if ":" in line and "local_address" not in line]
    at = [row[1].split(":") for row in rows if row[3] == "0A"]
    return {address for address, port in at if port != f"{22:04X}"}


_ANYWHERE = """
import socket, time
server = socket.create_server(("", 0))
print("up", flush=True)
time.sleep(60)
"""


def test_nothing_listens_but_at_the_address_that_the_others_reach(begin: Callable[..., HostRun]) -> None:
    run = begin(*_LONG)
    run.wait_for_steps()
    for host in run.hosts:
        own = "".join(f"{int(part):02X}" for part in reversed(host.address.split(".")))
        assert listening(host) <= {own, "0100007F"} and own in listening(host)
    enter = ["nsenter", "-t", str(run.hosts[1].pid), "-n", sys.executable, "-c", _ANYWHERE]
    with subprocess.Popen(enter, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"up\n"
        assert "00000000" in listening(run.hosts[1]), "this test would see it"
        other.kill()
    os.kill(_python(run.commands[0].pid), signal.SIGINT)
    assert run.codes() == [130, 130]
