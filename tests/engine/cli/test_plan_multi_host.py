"""What a plan over several hosts is for: the devices of all of them, as each host tells them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankdeck.base.errors import ConfigError, DeviceError, MachineError
from rankdeck.cli.plan_target import resolve_target
from rankdeck.config import RunConfig, from_dict
from rankdeck.planner.candidates import Candidate
from tests.helpers.fake_ssh_hosts import FakeSshHosts
from tests.helpers.nvmlsim import GIB, SimulatedGpus, build


@pytest.fixture
def near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSshHosts:
    return FakeSshHosts(tmp_path / "hosts", monkeypatch)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def with_gpus(near: FakeSshHosts, library: Path, tmp_path: Path) -> FakeSshHosts:
    """Two on box1, of which one is half full, and four on box2."""
    for host, count in (("box1", 2), ("box2", 4)):
        gpus = SimulatedGpus(tmp_path / host, count, library)
        near.set_environment(host, gpus.driver_environment)
        if host == "box1":
            gpus.device(1).used = 40 * GIB
    return near


def multi_host_config(
    devices: str, *, hosts: tuple[str, ...] = ("box1", "box2"), **of_hosts: str
) -> RunConfig:
    named: dict[str, Any] = {"use": list(hosts), "devices": of_hosts}
    tables = {"devices": {"use": devices}, "strategy": {"use": "ddp"}, "train": {"global_batch": 60}}
    return from_dict({**tables, "hosts": named}, folder=Path())


def test_virtual_devices_are_planned_without_asking_hosts() -> None:
    target = resolve_target(
        multi_host_config("cpu:2", gone1="cpu:3", hosts=("localhost", "gone1")), None, None
    )
    assert target.name == "localhost: 2 virtual devices, gone1: 3 virtual devices"
    assert target.num_devices == 5 and not target.like_cuda and target.host_bytes is None


def test_the_target_has_the_gpus_of_each_host(with_gpus: FakeSshHosts) -> None:
    target = resolve_target(multi_host_config("gpu:all", box2="gpu:0,2,3"), None, None)
    assert target.by_host == {"box1": 2, "box2": 3} and target.like_cuda
    assert [device.others_bytes // GIB for device in target.devices] == [0, 40, 0, 0, 0]
    assert resolve_target(multi_host_config("gpu:all"), None, "10GiB").devices[5].total_bytes == 10 * GIB


def test_candidates_keep_the_hosts_of_the_configuration(with_gpus: FakeSshHosts) -> None:
    base = multi_host_config("gpu:all", box1="gpu:0,1", box2="gpu:0,1")
    target = resolve_target(base, None, None)
    inside = Candidate("hybrid", {"data": 2, "tensor": 2}).make_config(base, target)
    assert inside.hosts.use == ["box1", "box2"] and inside.known_count == 4
    with pytest.raises(ConfigError, match="hosts have 2, 2"):
        Candidate("tensor", {}).make_config(base, target)
    alone = resolve_target(base, "4xA100-80GB", None)
    assert not Candidate("tensor", {}).make_config(base, alone).hosts.use, "who names devices means one host"


def test_a_host_without_gpus_is_an_error_or_uses_virtual_devices(near: FakeSshHosts) -> None:
    with pytest.raises(MachineError, match=r"box1: No NVIDIA driver found\."):
        resolve_target(multi_host_config("gpu:all"), None, None)
    assert resolve_target(multi_host_config("auto"), None, None).by_host == {"box1": 2, "box2": 2}


def test_a_missing_gpu_is_reported_with_its_host(with_gpus: FakeSshHosts) -> None:
    with pytest.raises(DeviceError, match="box1: There is no GPU 3"):
        resolve_target(multi_host_config("gpu:3"), None, None)


def test_an_unknown_host_is_reported_by_name(near: FakeSshHosts) -> None:
    with pytest.raises(MachineError, match="host name gone1 cannot be resolved"):
        resolve_target(multi_host_config("gpu:all", hosts=("localhost", "gone1")), None, None)
