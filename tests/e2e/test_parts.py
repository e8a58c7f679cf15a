"""A run of several hosts begun from a desk: two names of this host, and hosts that cannot do their part."""

from __future__ import annotations

import json
import os
import platform
import signal
from pathlib import Path

import pytest

from rankdeck.checkpoint_files import newest_whole
from rankdeck.run.fold import read_fold
from rankdeck.rundir import list_folder
from tests.helpers import launching
from tests.helpers.cli import rankdeck, rankdeck_here
from tests.helpers.near_hosts import NearHosts
from tests.helpers.tree import PRODUCT
from tests.helpers.waiting import wait_until

_SAVED = ("--set", "train.checkpoint_every=20")
_HERE = ("localhost", platform.node())
_OWN = """\
import torch

def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
"""


def job(folder: Path, *more: str, hosts: tuple[str, ...] = _HERE) -> Path:
    folder.mkdir()
    (folder / "net.py").write_text(_OWN)
    file = folder / "job.toml"
    file.write_text(
        "\n".join(
            (
                'model = { use = "net.py:make" }',
                'strategy = { use = "ddp" }',
                "train = { steps = 20, evaluate_every = 0 }",
                f"hosts = {{ use = {json.dumps(hosts)} }}",
                *(more or ('devices = { use = "cpu:1" }',)),
            )
        )
    )
    return file


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


def test_parts_go_on_without_whoever_began_them_and_a_killed_rank_costs_some_steps_alone(
    tmp_path: Path,
) -> None:
    """The first shows all. A run of parts that is waited for is below."""
    file = job(tmp_path / "job")
    asked = ("--set", "launch.max_restarts=1", "--set", "train.steps=300", *_SAVED, "--detach", "--json")
    begun = rankdeck("train", file, "--runs", tmp_path / "runs", *asked, code=0).json
    assert begun["host"] == "localhost" and "place" not in begun
    head, other = sorted(list_folder(tmp_path / "runs"), key=lambda run: len(run.name))
    assert head.name == begun["run"] and other.name.startswith(head.name)
    line = json.dumps([run.environment().get("command_line") for run in (head, other)])
    assert "secret" not in line and "--join" not in line
    wait_until(lambda: newest_whole(head.checkpoints_folder)[0], deadline_s=60)
    os.kill(launching.rank_pids(other)[1], signal.SIGKILL)
    wait_until(lambda: not head.is_alive() and not other.is_alive(), deadline_s=60)
    assert [run.outcome() for run in (head, other)] == ["completed", "completed"]
    (restarted,) = [one for one in launching.problems(head, "warning") if one.code == "restarted"]
    assert "rank 1: The process was ended by SIGKILL" in restarted.message
    assert "with 2 hosts" in restarted.message
    fold = read_fold(head)
    assert not launching.problems(head) and (fold.step, len(fold.devices)) == (300, 2)


@pytest.mark.parametrize(
    ("more", "hosts", "words"),
    [
        pytest.param(
            ('data = { use = "text", args = { path = "no.txt" } }',),
            _HERE,
            "no.txt does not exist",
            marks=pytest.mark.slow,
        ),
        ((), ("localhost", "-nowhere"), "'-nowhere' is no name of a host"),
        (('devices = { use = "gpu:7" }',), _HERE, "localhost: "),
    ],
)
def test_what_a_host_cannot_do_is_told_and_nothing_is_left(
    tmp_path: Path, more: tuple[str, ...], hosts: tuple[str, ...], words: str
) -> None:
    file = job(tmp_path / "job", *more, hosts=hosts)
    told = rankdeck_here("train", file, "--runs", tmp_path / "runs")
    assert told.code in (2, 3) and words in told.err and "Traceback" not in told.err, told
    assert not (tmp_path / "runs").exists() or not list_folder(tmp_path / "runs")


def test_a_part_that_cannot_be_begun_ends_the_first(tmp_path: Path) -> None:
    file = job(tmp_path / "job")
    odd = f'hosts.devices={{ "{_HERE[1]}" = "gpu:7" }}'
    told = rankdeck_here("train", file, "--runs", tmp_path / "runs", "--devices", "auto", "--set", odd)
    assert told.code in (2, 3) and told.err.startswith(f"{_HERE[1]}: "), told
    (head,) = list_folder(tmp_path / "runs")
    wait_until(lambda: not head.is_alive())
    assert head.outcome() == "stopped"


def test_hosts_have_the_same_versions_of_what_the_lock_file_beside_own_code_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = NearHosts(tmp_path / "near", monkeypatch)
    package = tmp_path / "site" / "numpy-0.0.1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Name: numpy\nVersion: 0.0.1\n")
    near.give("box2", {"PYTHONPATH": f"{PRODUCT}:{package.parent}"})
    file = job(tmp_path / "job", hosts=("box1", "box2"))
    lock = file.with_name("uv.lock")
    lock.write_text('[[package]]\nname = "numpy"\nversion = "2.0"\n')
    told = rankdeck_here("train", file, code=3)
    assert "Hosts have other versions of what uv.lock names. box2 has numpy 0.0.1, box1 has " in told.err
    assert "Install what uv.lock says" in told.err
    assert not near.runs("box1").exists() and not near.runs("box2").exists()
    lock.write_text('[[package]]\nname = "torch"\nversion = "2.0"\n')
    told = rankdeck_here("train", file, "--json", code=0)
    assert (told.json["outcome"], told.json["steps"], told.json["strategy"]) == ("completed", 20, "ddp")
    assert "numpy" not in told.err
    (head,) = list_folder(near.runs("box1"))
    assert told.json["run"] == head.name and len(list_folder(near.runs("box2"))) == 1
    (code,) = (tmp_path / "near" / "box2" / "rankdeck" / "state" / "code").iterdir()
    assert (code / "uv.lock").read_text() == lock.read_text()


@pytest.mark.parametrize("command", ["train", "resume"])
def test_one_host_or_none_is_refused_at_once(tmp_path: Path, command: str) -> None:
    file = job(tmp_path / "job")
    for named, words in (
        ("box1", "rankdeck --host box1 train"),
        (",", "names no host"),
        ("", "names no host"),
    ):
        told = rankdeck_here(command, file, "--hosts", named, code=2)
        assert words in told.err and "Traceback" not in told.err, told
    file.write_text(file.read_text().replace(json.dumps(_HERE), '["box1"]'))
    if command == "train":
        assert "box1 alone is not several hosts" in rankdeck_here("train", file, code=2).err


def test_by_hand_a_host_of_the_heads_name_is_refused_with_the_reason(tmp_path: Path) -> None:
    asked = ("train", "digits-mlp", "--strategy", "ddp", "--devices", "cpu:1", "--hosts", "2", "--json")
    head = rankdeck_here(*asked, "--runs", tmp_path / "one", "--listen", "127.0.0.1", "--detach", code=0).json
    told = rankdeck(*asked, "--runs", tmp_path / "two", "--join", head["place"], code=1)
    (other,) = list_folder(tmp_path / "two")
    end = other.end()
    assert end is not None and "RANKDECK_HOST=NAME" in str(end.reason), told
    assert f"did not take {platform.node()}: a host of that name is there" in str(end.reason)
    rankdeck_here("stop", head["path"], code=0)


def test_elsewhere_than_with_train_such_a_configuration_is_refused(tmp_path: Path) -> None:
    file = job(tmp_path / "job")
    told = rankdeck_here("race", file, "--runs", tmp_path / "runs")
    assert told.code == 2 and "hosts.use names 2 hosts, and a race is of one." in told.err, told
