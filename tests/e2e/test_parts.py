"""A run of several hosts begun from a desk: two names of this host, and hosts that cannot do their part."""

from __future__ import annotations

import json
import os
import platform
import signal
from pathlib import Path

import pytest

from rankdeck.checkpoint_files import newest_intact
from rankdeck.run.run_state import read_run_state
from rankdeck.run_dir import list_folder
from tests.helpers import launching
from tests.helpers.checkout import PRODUCT
from tests.helpers.cli import rankdeck, rankdeck_in_process
from tests.helpers.fake_ssh_hosts import FakeSshHosts
from tests.helpers.waiting import wait_until

_CHECKPOINT_OPTIONS = ("--set", "train.checkpoint_every=20")
_LOCAL_HOSTS = ("localhost", platform.node())
_USER_MODEL = """\
import torch

def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
"""


def write_job(folder: Path, *more: str, hosts: tuple[str, ...] = _LOCAL_HOSTS) -> Path:
    folder.mkdir()
    (folder / "net.py").write_text(_USER_MODEL)
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


def test_a_multi_host_run_outlives_the_client_and_a_killed_rank(
    tmp_path: Path,
) -> None:
    """The first shows all. A run of parts that is waited for is below."""
    file = write_job(tmp_path / "job")
    asked = (
        "--set",
        "launch.max_restarts=1",
        "--set",
        "train.steps=300",
        *_CHECKPOINT_OPTIONS,
        "--detach",
        "--json",
    )
    begun = rankdeck("train", file, "--runs", tmp_path / "runs", *asked, exit_code=0).json
    assert begun["host"] == "localhost" and "place" not in begun
    head, other = sorted(list_folder(tmp_path / "runs"), key=lambda run: len(run.name))
    assert head.name == begun["run"] and other.name.startswith(head.name)
    line = json.dumps([run.environment().get("command_line") for run in (head, other)])
    assert "secret" not in line and "--join" not in line
    wait_until(lambda: newest_intact(head.checkpoints_folder)[0], deadline_s=60)
    os.kill(launching.rank_pids(other)[1], signal.SIGKILL)
    wait_until(lambda: not head.is_alive() and not other.is_alive(), deadline_s=60)
    assert [run.outcome() for run in (head, other)] == ["completed", "completed"]
    (restarted,) = [one for one in launching.read_problems(head, "warning") if one.code == "restarted"]
    assert "rank 1: The process was ended by SIGKILL" in restarted.message
    assert "with 2 hosts" in restarted.message
    fold = read_run_state(head)
    assert not launching.read_problems(head) and (fold.step, len(fold.devices)) == (300, 2)


@pytest.mark.parametrize(
    ("more", "hosts", "words"),
    [
        pytest.param(
            ('data = { use = "text", args = { path = "no.txt" } }',),
            _LOCAL_HOSTS,
            "no.txt does not exist",
            marks=pytest.mark.slow,
        ),
        ((), ("localhost", "-nowhere"), "'-nowhere' is no name of a host"),
        (('devices = { use = "gpu:7" }',), _LOCAL_HOSTS, "localhost: "),
    ],
)
def test_an_error_of_one_host_leaves_no_runs(
    tmp_path: Path, more: tuple[str, ...], hosts: tuple[str, ...], words: str
) -> None:
    file = write_job(tmp_path / "job", *more, hosts=hosts)
    told = rankdeck_in_process("train", file, "--runs", tmp_path / "runs")
    assert told.exit_code in (2, 3) and words in told.err and "Traceback" not in told.err, told
    assert not (tmp_path / "runs").exists() or not list_folder(tmp_path / "runs")


def test_a_failed_launch_on_a_host_stops_the_first_host(tmp_path: Path) -> None:
    file = write_job(tmp_path / "job")
    odd = f'hosts.devices={{ "{_LOCAL_HOSTS[1]}" = "gpu:7" }}'
    told = rankdeck_in_process("train", file, "--runs", tmp_path / "runs", "--devices", "auto", "--set", odd)
    assert told.exit_code in (2, 3) and told.err.startswith(f"{_LOCAL_HOSTS[1]}: "), told
    (head,) = list_folder(tmp_path / "runs")
    wait_until(lambda: not head.is_alive())
    assert head.outcome() == "stopped"


def test_hosts_need_equal_versions_of_locked_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = FakeSshHosts(tmp_path / "near", monkeypatch)
    package = tmp_path / "site" / "numpy-0.0.1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Name: numpy\nVersion: 0.0.1\n")
    near.set_environment("box2", {"PYTHONPATH": f"{PRODUCT}:{package.parent}"})
    file = write_job(tmp_path / "job", hosts=("box1", "box2"))
    lock = file.with_name("uv.lock")
    lock.write_text('[[package]]\nname = "numpy"\nversion = "2.0"\n')
    told = rankdeck_in_process("train", file, exit_code=3)
    assert "Hosts have other versions of what uv.lock names. box2 has numpy 0.0.1, box1 has " in told.err
    assert "Install what uv.lock says" in told.err
    assert not near.runs("box1").exists() and not near.runs("box2").exists()
    lock.write_text('[[package]]\nname = "torch"\nversion = "2.0"\n')
    told = rankdeck_in_process("train", file, "--json", exit_code=0)
    assert (told.json["outcome"], told.json["steps"], told.json["strategy"]) == ("completed", 20, "ddp")
    assert "numpy" not in told.err
    (head,) = list_folder(near.runs("box1"))
    assert told.json["run"] == head.name and len(list_folder(near.runs("box2"))) == 1
    (code,) = (tmp_path / "near" / "box2" / "rankdeck" / "state" / "code").iterdir()
    assert (code / "uv.lock").read_text() == lock.read_text()


@pytest.mark.parametrize("command", ["train", "resume"])
def test_fewer_than_two_hosts_are_refused(tmp_path: Path, command: str) -> None:
    file = write_job(tmp_path / "job")
    for named, words in (
        ("box1", "rankdeck --host box1 train"),
        (",", "names no host"),
        ("", "names no host"),
    ):
        told = rankdeck_in_process(command, file, "--hosts", named, exit_code=2)
        assert words in told.err and "Traceback" not in told.err, told
    file.write_text(file.read_text().replace(json.dumps(_LOCAL_HOSTS), '["box1"]'))
    if command == "train":
        assert "box1 alone is not several hosts" in rankdeck_in_process("train", file, exit_code=2).err


def test_a_joining_host_with_the_coordinators_name_is_refused(tmp_path: Path) -> None:
    asked = ("train", "digits-mlp", "--strategy", "ddp", "--devices", "cpu:1", "--hosts", "2", "--json")
    head = rankdeck_in_process(
        *asked, "--runs", tmp_path / "one", "--listen", "127.0.0.1", "--detach", exit_code=0
    ).json
    told = rankdeck(*asked, "--runs", tmp_path / "two", "--join", head["place"], exit_code=1)
    (other,) = list_folder(tmp_path / "two")
    end = other.exit_record()
    assert end is not None and "RANKDECK_HOST=NAME" in str(end.reason), told
    assert f"did not take {platform.node()}: a host of that name is there" in str(end.reason)
    rankdeck_in_process("stop", head["path"], exit_code=0)


def test_race_refuses_a_multi_host_configuration(tmp_path: Path) -> None:
    file = write_job(tmp_path / "job")
    told = rankdeck_in_process("race", file, "--runs", tmp_path / "runs")
    assert told.exit_code == 2 and "hosts.use names 2 hosts, and a race is of one." in told.err, told
