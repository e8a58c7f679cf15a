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
    options = (
        "--set",
        "launch.max_restarts=1",
        "--set",
        "train.steps=300",
        *_CHECKPOINT_OPTIONS,
        "--detach",
        "--json",
    )
    facts = rankdeck("train", file, "--runs", tmp_path / "runs", *options, exit_code=0).json
    assert facts["host"] == "localhost" and "place" not in facts
    coordinator_run, other = sorted(list_folder(tmp_path / "runs"), key=lambda run: len(run.name))
    assert coordinator_run.name == facts["run"] and other.name.startswith(coordinator_run.name)
    line = json.dumps([run.environment().get("command_line") for run in (coordinator_run, other)])
    assert "secret" not in line and "--join" not in line
    wait_until(lambda: newest_intact(coordinator_run.checkpoints_folder)[0], deadline_s=60)
    os.kill(launching.rank_pids(other)[1], signal.SIGKILL)
    wait_until(lambda: not coordinator_run.is_alive() and not other.is_alive(), deadline_s=60)
    assert [run.outcome() for run in (coordinator_run, other)] == ["completed", "completed"]
    (restarted,) = [
        warning
        for warning in launching.read_problems(coordinator_run, "warning")
        if warning.code == "restarted"
    ]
    assert "rank 1: The process was killed by SIGKILL" in restarted.message
    assert "with 2 hosts" in restarted.message
    state = read_run_state(coordinator_run)
    assert not launching.read_problems(coordinator_run) and (state.step, len(state.devices)) == (300, 2)


@pytest.mark.parametrize(
    ("more", "hosts", "message"),
    [
        pytest.param(
            ('data = { use = "text", args = { path = "no.txt" } }',),
            _LOCAL_HOSTS,
            "no.txt does not exist",
            marks=pytest.mark.slow,
        ),
        ((), ("localhost", "-nowhere"), "'-nowhere' is not a host name"),
        (('devices = { use = "gpu:7" }',), _LOCAL_HOSTS, "localhost: "),
    ],
)
def test_an_error_of_one_host_leaves_no_runs(
    tmp_path: Path, more: tuple[str, ...], hosts: tuple[str, ...], message: str
) -> None:
    file = write_job(tmp_path / "job", *more, hosts=hosts)
    result = rankdeck_in_process("train", file, "--runs", tmp_path / "runs")
    assert result.exit_code in (2, 3) and message in result.err and "Traceback" not in result.err, result
    assert not (tmp_path / "runs").exists() or not list_folder(tmp_path / "runs")


def test_a_failed_launch_on_a_host_stops_the_first_host(tmp_path: Path) -> None:
    file = write_job(tmp_path / "job")
    odd = f'hosts.devices={{ "{_LOCAL_HOSTS[1]}" = "gpu:7" }}'
    result = rankdeck_in_process(
        "train", file, "--runs", tmp_path / "runs", "--devices", "auto", "--set", odd
    )
    assert result.exit_code in (2, 3) and result.err.startswith(f"{_LOCAL_HOSTS[1]}: "), result
    (coordinator_run,) = list_folder(tmp_path / "runs")
    wait_until(lambda: not coordinator_run.is_alive())
    assert coordinator_run.outcome() == "stopped"


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
    result = rankdeck_in_process("train", file, exit_code=3)
    assert (
        "Hosts have different versions of packages in uv.lock. box2 has numpy 0.0.1, box1 has " in result.err
    )
    assert "Install the versions from uv.lock" in result.err
    assert not near.runs("box1").exists() and not near.runs("box2").exists()
    lock.write_text('[[package]]\nname = "torch"\nversion = "2.0"\n')
    result = rankdeck_in_process("train", file, "--json", exit_code=0)
    assert (result.json["outcome"], result.json["steps"], result.json["strategy"]) == ("completed", 20, "ddp")
    assert "numpy" not in result.err
    (coordinator_run,) = list_folder(near.runs("box1"))
    assert result.json["run"] == coordinator_run.name and len(list_folder(near.runs("box2"))) == 1
    (code,) = (tmp_path / "near" / "box2" / "rankdeck" / "state" / "code").iterdir()
    assert (code / "uv.lock").read_text() == lock.read_text()


@pytest.mark.parametrize("command", ["train", "resume"])
def test_fewer_than_two_hosts_are_refused(tmp_path: Path, command: str) -> None:
    file = write_job(tmp_path / "job")
    for named, message in (
        ("box1", "rankdeck --host box1 train"),
        (",", "contains no host name"),
        ("", "contains no host name"),
    ):
        result = rankdeck_in_process(command, file, "--hosts", named, exit_code=2)
        assert message in result.err and "Traceback" not in result.err, result
    file.write_text(file.read_text().replace(json.dumps(_LOCAL_HOSTS), '["box1"]'))
    if command == "train":
        assert "Only one host is specified: box1" in rankdeck_in_process("train", file, exit_code=2).err


def test_a_joining_host_with_the_coordinators_name_is_refused(tmp_path: Path) -> None:
    command = ("train", "digits-mlp", "--strategy", "ddp", "--devices", "cpu:1", "--hosts", "2", "--json")
    coordinator = rankdeck_in_process(
        *command, "--runs", tmp_path / "one", "--listen", "127.0.0.1", "--detach", exit_code=0
    ).json
    result = rankdeck(*command, "--runs", tmp_path / "two", "--join", coordinator["place"], exit_code=1)
    (other,) = list_folder(tmp_path / "two")
    end = other.exit_record()
    assert end is not None and "RANKDECK_HOST=NAME" in str(end.reason), result
    assert f"rejected {platform.node()}: a host with that name has already joined" in str(end.reason)
    rankdeck_in_process("stop", coordinator["path"], exit_code=0)


def test_race_refuses_a_multi_host_configuration(tmp_path: Path) -> None:
    file = write_job(tmp_path / "job")
    result = rankdeck_in_process("race", file, "--runs", tmp_path / "runs")
    assert (
        result.exit_code == 2
        and "The key hosts.use lists 2 hosts, but a race runs only on this machine." in result.err
    ), result
