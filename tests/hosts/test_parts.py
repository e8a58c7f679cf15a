"""A run that a desk begins on hosts of its configuration, over ssh: what it computes, and what is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.numpy import load_file

from rankdeck.run.fold import read_fold
from rankdeck.rundir import list_folder
from tests.helpers.cli import rankdeck, rankdeck_here
from tests.helpers.host_network import HostNetwork
from tests.helpers.host_runs import processes

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


def of_hosts(network: HostNetwork) -> tuple[str, ...]:
    return ("--set", f"hosts.use={[*network.hosts]}")


def same_as_here(network: HostNetwork, here: Path, devices: int, *job: str) -> None:
    """Trained on the hosts with a rank each, or more, and on so many devices of this one."""
    each = devices // len(network.hosts)
    told = rankdeck("train", *job, "--devices", f"cpu:{each}", *of_hosts(network), "--json").json
    assert told["outcome"] == "completed", told
    rankdeck_here("train", *job, "--devices", f"cpu:{devices}", "--runs", here, code=0)
    head = next(iter(network.hosts.values()))
    (there,), (run,) = list_folder(head.runs), list_folder(here)
    one, two = load_file(there.weights), load_file(run.weights)
    assert one.keys() == two.keys()
    assert max(float(abs(one[name] - two[name]).max()) for name in one) <= 2e-6
    assert float(abs(read_fold(there).column("loss") - read_fold(run).column("loss")).max()) <= 2e-6
    assert [processes(host) for host in network.hosts.values()] == [[]] * len(network.hosts)


def test_it_trains_what_one_host_does(network: HostNetwork, tmp_path: Path) -> None:
    same_as_here(network, tmp_path / "here", 2, *_DIGITS, "--strategy", "ddp")


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
def test_three_hosts_train_what_one_does(
    network_of_three: HostNetwork, tmp_path: Path, strategy: str, options: tuple[str, ...], devices: int
) -> None:
    job = [*_GPT, *_TINY, "--strategy", strategy]
    for option in options:
        job += ["--set", option]
    same_as_here(network_of_three, tmp_path / "here", devices, *job)


def test_a_host_that_cannot_do_its_part_is_named_and_nothing_is_left(network: HostNetwork) -> None:
    job = ("train", *_DIGITS, "--strategy", "ddp", *of_hosts(network))
    network.hosts["box2"].program.unlink()
    told = rankdeck(*job, "--devices", "cpu:1", code=3)
    assert "There is no rankdeck on box2." in told.err and "rankdeck --host box2 install" in told.err
    assert not network.hosts["box1"].runs.exists()
