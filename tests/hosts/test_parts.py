"""A run that a desk begins on hosts of its configuration, over ssh: what it computes, and what is told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rankdeck.checkpoint_files import Checkpoint, newest_intact
from rankdeck.run.run_state import read_run_state
from rankdeck.run_dir import RunDir, list_folder
from tests.helpers.cli import rankdeck, rankdeck_in_process
from tests.helpers.host_network import HostNetwork
from tests.helpers.host_runs import process_titles, weight_and_loss_difference, weight_difference
from tests.helpers.waiting import wait_until

_DIGITS = ("digits-mlp", "--set", "train.evaluate_every=0", "--set", "train.steps=20")
_GPT = (
    "gpt-stdlib",
    "--set",
    "train.evaluate_every=0",
    "--set",
    "train.steps=6",
    "--set",
    "train.global_batch=12",
)
_TINY = ("--set", "model.args={ layers = 4, width = 16, heads = 2, context = 16 }")


def hosts_override(network: HostNetwork) -> tuple[str, ...]:
    return ("--set", f"hosts.use={[*network.hosts]}")


def check_same_as_local(network: HostNetwork, here: Path, devices: int, *job: str) -> None:
    """Trained on the hosts with a rank each, or more, and on so many devices of this one."""
    each = devices // len(network.hosts)
    facts = rankdeck("train", *job, "--devices", f"cpu:{each}", *hosts_override(network), "--json").json
    assert facts["outcome"] == "completed", facts
    rankdeck_in_process("train", *job, "--devices", f"cpu:{devices}", "--runs", here, exit_code=0)
    coordinator = next(iter(network.hosts.values()))
    (there,), (run,) = list_folder(coordinator.runs), list_folder(here)
    assert max(weight_and_loss_difference(there, run)) <= 2e-6
    assert [process_titles(host) for host in network.hosts.values()] == [[]] * len(network.hosts)


def test_two_hosts_train_the_same_as_one(network: HostNetwork, tmp_path: Path) -> None:
    check_same_as_local(network, tmp_path / "here", 2, *_DIGITS, "--strategy", "ddp")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "options", "devices"),
    [
        ("fsdp", (), 3),
        ("pipeline", (), 3),
        ("hybrid", ("strategy.data=3", "strategy.tensor=2"), 6),
        ("hybrid", ("strategy.stage=3", "strategy.tensor=2"), 6),
        ("hybrid", ("strategy.data=3", "strategy.shard=2"), 6),
    ],
)
def test_three_hosts_train_the_same_as_one(
    network_of_three: HostNetwork, tmp_path: Path, strategy: str, options: tuple[str, ...], devices: int
) -> None:
    job = [*_GPT, *_TINY, "--strategy", strategy]
    for option in options:
        job += ["--set", option]
    check_same_as_local(network_of_three, tmp_path / "here", devices, *job)


def test_a_host_without_rankdeck_is_reported_and_no_run_starts(network: HostNetwork) -> None:
    job = ("train", *_DIGITS, "--strategy", "ddp", *hosts_override(network))
    network.hosts["box2"].program.unlink()
    result = rankdeck(*job, "--devices", "cpu:1", exit_code=3)
    assert "rankdeck is not installed on box2." in result.err and "rankdeck --host box2 install" in result.err
    assert not network.hosts["box1"].runs.exists()


_FSDP = ("digits-mlp", "--strategy", "fsdp", "--set", "train.evaluate_every=0")
_LONG = (*_FSDP, "--set", "train.checkpoint_every=20", "--set", "train.steps=100")


def test_a_broken_run_resumes_on_its_hosts_and_on_one_host(
    network: HostNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    box1, box2 = network.hosts.values()
    few = (*_LONG, "--devices", "cpu:1")
    facts = rankdeck("train", *few, "--hosts", "box1,box2", "--detach", "--json", exit_code=0).json
    (coordinator_run,) = wait_until(lambda: list_folder(box1.runs))
    (node_run,) = wait_until(lambda: list_folder(box2.runs))
    assert coordinator_run.name == node_run.name == facts["run"]
    wait_until(lambda: newest_intact(coordinator_run.checkpoints_folder)[0], deadline_s=60)
    box2.execute("pkill", "-9", "-f", "rankdeck rank")
    wait_until(
        lambda: coordinator_run.exit_record() is not None and not coordinator_run.is_alive(), deadline_s=30
    )
    assert coordinator_run.outcome() == "failed"
    # Either host could go on alone: the other's shards are there.
    step = newest_intact(coordinator_run.checkpoints_folder)[0].step
    assert Checkpoint(node_run.checkpoints_folder / str(step)).find_damage() is None
    shutil.copytree(node_run.path, tmp_path / "alone" / node_run.name)
    alone = ("--devices", "cpu:2", "--set", "hosts.use=[]", "--trust")
    rankdeck_in_process("resume", tmp_path / "alone" / node_run.name, *alone, exit_code=0)
    # What a host has lost comes from the other one.
    min((node_run.checkpoints_folder / str(step)).glob("shard-00001*")).unlink()
    shard = min((coordinator_run.checkpoints_folder / str(step)).glob("shard-00002*"))
    shard.write_bytes(b"damaged")
    result = rankdeck("resume", coordinator_run.name, "--hosts", "box1,box2", exit_code=0)
    assert "completed  100/100 steps" in result.out and "SIGKILL" not in result.out + result.err
    rankdeck_in_process("train", *_LONG, "--devices", "cpu:2", "--runs", tmp_path / "whole", exit_code=0)
    (reference,) = list_folder(tmp_path / "whole")
    assert weight_and_loss_difference(reference, coordinator_run) == (0, 0)
    assert weight_difference(reference, RunDir(tmp_path / "alone" / node_run.name)) == 0
    state = read_run_state(coordinator_run)
    assert state.step == 100 and len(state.column("loss")) == 100
    assert [process_titles(host) for host in network.hosts.values()] == [[], []]
