"""What a plan over several hosts is for: the devices of all of them, as each host tells them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankdeck.base.errors import ConfigError, DeviceError, MachineError
from rankdeck.cli.plan_target import target_of
from rankdeck.config import RunConfig, from_dict
from rankdeck.planner.candidates import Candidate
from tests.helpers.near_hosts import NearHosts
from tests.helpers.nvmlsim import GIB, SimulatedGpus, build


@pytest.fixture
def near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NearHosts:
    return NearHosts(tmp_path / "hosts", monkeypatch)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def with_gpus(near: NearHosts, library: Path, tmp_path: Path) -> NearHosts:
    """Two on box1, of which one is half full, and four on box2."""
    for host, count in (("box1", 2), ("box2", 4)):
        gpus = SimulatedGpus(tmp_path / host, count, library)
        near.give(host, gpus.as_installed)
        if host == "box1":
            gpus.device(1).used = 40 * GIB
    return near


def over(devices: str, *, hosts: tuple[str, ...] = ("box1", "box2"), **of_hosts: str) -> RunConfig:
    named: dict[str, Any] = {"use": list(hosts), "devices": of_hosts}
    tables = {"devices": {"use": devices}, "strategy": {"use": "ddp"}, "train": {"global_batch": 60}}
    return from_dict({**tables, "hosts": named}, folder=Path())


def test_virtual_devices_need_no_host_to_answer() -> None:
    target = target_of(over("cpu:2", gone1="cpu:3", hosts=("localhost", "gone1")), None, None)
    assert target.words == "localhost: 2 virtual devices, gone1: 3 virtual devices"
    assert target.num_devices == 5 and not target.like_cuda and target.host_bytes is None


def test_gpus_are_those_that_each_host_has_now(with_gpus: NearHosts) -> None:
    target = target_of(over("gpu:all", box2="gpu:0,2,3"), None, None)
    assert target.by_host == {"box1": 2, "box2": 3} and target.like_cuda
    assert [device.others_bytes // GIB for device in target.devices] == [0, 40, 0, 0, 0]
    assert target_of(over("gpu:all"), None, "10GiB").devices[5].total_bytes == 10 * GIB


def test_candidates_lie_over_the_same_hosts(with_gpus: NearHosts) -> None:
    base = over("gpu:all", box1="gpu:0,1", box2="gpu:0,1")
    target = target_of(base, None, None)
    inside = Candidate("hybrid", {"data": 2, "tensor": 2}).config(base, target)
    assert inside.hosts.use == ["box1", "box2"] and inside.known_count == 4
    with pytest.raises(ConfigError, match="hosts have 2, 2"):
        Candidate("tensor", {}).config(base, target)
    alone = target_of(base, "4xA100-80GB", None)
    assert not Candidate("tensor", {}).config(base, alone).hosts.use, "who names devices means one host"


def test_a_host_without_gpus_is_named_or_rehearses(near: NearHosts) -> None:
    with pytest.raises(MachineError, match=r"box1: No NVIDIA driver found\."):
        target_of(over("gpu:all"), None, None)
    assert target_of(over("auto"), None, None).by_host == {"box1": 2, "box2": 2}


def test_a_gpu_that_a_host_does_not_have_is_named_with_it(with_gpus: NearHosts) -> None:
    with pytest.raises(DeviceError, match="box1: There is no GPU 3"):
        target_of(over("gpu:3"), None, None)


def test_a_host_that_is_not_there_is_named(near: NearHosts) -> None:
    with pytest.raises(MachineError, match="no host called gone1"):
        target_of(over("gpu:all", hosts=("localhost", "gone1")), None, None)
