"""A run of several hosts that goes on by itself: with all of them, or with those that are left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rankdeck.checkpoint_files import newest_whole
from rankdeck.run.fold import read_fold
from rankdeck.rundir import RunDir, list_folder
from tests.helpers import launching
from tests.helpers.cli import rankdeck, rankdeck_here
from tests.helpers.host_network import Host, HostNetwork
from tests.helpers.host_runs import differences, kill, processes
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.slow  # tests/e2e/test_parts.py has a shorter one, of two names of one host
_JOB = ("digits-mlp", "--strategy", "ddp", "--set", "train.evaluate_every=0", "--set", "train.steps=400")
_JOB = (*_JOB, "--set", "train.checkpoint_every=50", "--set", "train.global_batch=48")
_AGAIN = ("--set", "launch.max_restarts=1")


def begin(network: HostNetwork, *more: str) -> RunDir:
    """The head's run, with a checkpoint."""
    first = next(iter(network.hosts.values()))
    asked = ("train", *_JOB, "--devices", "cpu:1", "--hosts", ",".join(network.hosts), *more)
    rankdeck(*asked, "--detach", code=0)
    (head,) = list_folder(first.runs)
    wait_until(lambda: newest_whole(head.checkpoints_folder)[0], deadline_s=60)
    return head


def ended(head: RunDir) -> str:
    wait_until(lambda: head.end() is not None and not head.is_alive(), deadline_s=90)
    return head.outcome()


def undisturbed(folder: Path, devices: int) -> RunDir:
    rankdeck_here("train", *_JOB, "--devices", f"cpu:{devices}", "--runs", folder, code=0)
    (run,) = list_folder(folder)
    return run


FAULTS: dict[str, Callable[[Host], None]] = {
    "a rank": kill("rankdeck rank"),
    "the supervisor": kill("supervisor"),
}


@pytest.mark.parametrize("at", [0, 1], ids=["head", "other"])
@pytest.mark.parametrize("what", FAULTS)
def test_after_a_death_all_hosts_go_on_to_the_bit(
    network: HostNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, at: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    head = begin(network, *_AGAIN)
    FAULTS[what]([*network.hosts.values()][at])
    assert ended(head) == "completed"
    (restarted,) = [one for one in launching.problems(head, "warning") if one.code == "restarted"]
    assert "The run goes on with 2 hosts" in restarted.message and not launching.problems(head)
    whole = undisturbed(tmp_path / "whole", 2)
    assert differences(head, whole) == (0, 0) and read_fold(whole).step == 400
    assert [processes(host) for host in network.hosts.values()] == [[], []]


@pytest.mark.parametrize(
    "how", ["its cable is pulled", pytest.param("its power goes", marks=pytest.mark.slow)]
)
def test_a_host_that_is_gone_is_left_behind_where_fewer_will_do(
    network_of_three: HostNetwork, how: str
) -> None:
    network = network_of_three
    lost = network.hosts["box3"]
    head = begin(network, *_AGAIN, "--set", "hosts.min=2")
    lost.cut_off() if "cable" in how else lost.kill()
    assert ended(head) == "completed"
    (restarted,) = [one for one in launching.problems(head, "warning") if one.code == "restarted"]
    assert restarted.message.startswith("box3 (10.77.0.4) has ")
    assert "The run goes on with 2 hosts" in restarted.message and not launching.problems(head)
    fold = read_fold(head)
    assert fold.step == 400 and len(fold.devices) == 2
    assert [processes(network.hosts[name]) for name in ("box1", "box2")] == [[], []]


def test_what_would_come_again_or_needs_all_hosts_is_final(network: HostNetwork) -> None:
    head = begin(network, *_AGAIN)
    network.hosts["box2"].cut_off()
    assert ended(head) == "failed"
    assert [one.code for one in launching.problems(head)] == ["host-lost"]
    assert processes(network.hosts["box1"]) == []
    network.hosts["box2"].plug_back()
    wait_until(lambda: processes(network.hosts["box2"]) == [], deadline_s=20)
    again = rankdeck(
        "train", *_JOB, "--devices", "cpu:1", "--hosts", "box1,box2", *_AGAIN,
        "--set", "train.optimizer.lr=1e30", "--json",
    )  # fmt: skip
    assert again.json["outcome"] == "failed"
    (run,) = [run for run in list_folder(network.hosts["box1"].runs) if run.name != head.name]
    assert not [one for one in launching.problems(run, "warning") if one.code == "restarted"]
