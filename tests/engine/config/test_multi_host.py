"""A run over several hosts: whose devices are counted, which axes stay inside a host, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankdeck.base.errors import ConfigError
from rankdeck.config import RunConfig, from_dict, on_devices
from rankdeck.config.multi_host import portable_tables
from rankdeck.config.naming import title_of


def config_over_hosts(use: str, devices: str = "cpu:2", *, hosts: Any = None, **options: Any) -> RunConfig:
    hosts = {"use": ["box1", "box2"]} | (hosts or {})
    tables = {"hosts": hosts, "devices": {"use": devices}, "strategy": {"use": use, **options}}
    return from_dict({**tables, "train": {"global_batch": 48}}, folder=Path("/somewhere"), stem="")


@pytest.mark.parametrize(
    ("use", "options"),
    [
        ("ddp", {}),
        ("fsdp", {}),
        ("pipeline", {}),
        ("hybrid", {"data": 2, "tensor": 2}),
        ("hybrid", {"data": 2, "shard": 2}),
        ("hybrid", {"stage": 2, "tensor": 2}),
        ("hybrid", {}),
        ("tensor", {"hosts": {"across": ["tensor"]}}),
        ("hybrid", {"stage": 2, "shard": 2, "hosts": {"across": ["shard"]}}),
    ],
)
def test_devices_of_all_hosts_are_one_run(use: str, options: dict[str, Any]) -> None:
    config = config_over_hosts(use, **options)
    assert config.known_count == 4
    assert title_of(config).endswith("· 4")


@pytest.mark.parametrize(
    ("use", "options", "path", "message"),
    [
        ("single", {}, "strategy.use", "single uses a single process"),
        ("dp", {"devices": "auto"}, "strategy.use", "dp uses a single process"),
        (
            "tensor",
            {},
            "strategy.use",
            "Every tensor group needs 4 consecutive ranks, but the hosts have 2, 2",
        ),
        ("hybrid", {"tensor": 4}, "strategy.tensor", "Every tensor group needs 4 consecutive ranks"),
        ("hybrid", {"stage": 2, "shard": 2}, "strategy.shard", "Every shard group needs 4 consecutive ranks"),
        ("ddp", {"hosts": {"use": ["a", "b", "a"]}}, "hosts.use", "lists a twice"),
        ("ddp", {"hosts": {"devices": {"c": "cpu:1"}}}, "hosts.devices.c", "hosts.use does not"),
        (
            "ddp",
            {"hosts": {"devices": {"box1": "tpu"}}},
            "hosts.devices.box1",
            '"tpu" is not a valid device selection',
        ),
        (
            "ddp",
            {"hosts": {"devices": {"box1": "gpu:0"}}},
            "hosts.devices.box1",
            "box2 has virtual devices",
        ),
        ("ddp", {"hosts": {"use": "box1"}}, "hosts.use", "is not a list"),
        ("ddp", {"hosts": {"min": 3}}, "hosts.min", "hosts.min = 3, but hosts.use lists only 2"),
        ("ddp", {"hosts": {"across": ["data"]}}, "hosts.across", "data"),
        ("hybrid", {"data": 2}, "strategy.data", "needs data 2 = 2 devices, but there are 4."),
    ],
)
def test_what_cannot_run_on_several_hosts_is_refused(use: str, options: Any, path: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_over_hosts(use, **options)
    problem = caught.value.problem
    assert message in problem.message and (problem.path or "").startswith(path) and problem.advice


def test_hosts_may_have_different_numbers_of_devices() -> None:
    uneven = {"devices": {"box2": "cpu:4"}}
    assert config_over_hosts("hybrid", data=3, tensor=2, hosts=uneven).known_count == 6
    with pytest.raises(ConfigError, match="hosts have 2, 4"):
        config_over_hosts("hybrid", shard=3, tensor=2, hosts=uneven)
    unknown = config_over_hosts("ddp", "auto", hosts=uneven)
    assert unknown.known_count is None
    with pytest.raises(ConfigError, match="global_batch = 48"):
        on_devices(unknown, "cpu", 1, 4)
    on_devices(unknown, "cpu", 4, 4)


def test_a_run_on_one_host_has_no_hosts_table() -> None:
    config = from_dict({}, folder=Path("/somewhere"))
    assert "hosts" not in config.to_dict() and "hosts" in config_over_hosts("ddp").to_dict()


def test_portable_tables_name_code_relative_to_the_folder() -> None:
    tables = {"model": {"use": "own/net.py:make"}, "data": {"use": "/other/data.py:Data"}}
    results = [portable_tables(from_dict(tables, folder=Path(folder))) for folder in ("/a", "/b")]
    assert results[0] == results[1] and "folder" not in results[0]
    assert (results[0]["model"]["use"], results[0]["data"]["use"]) == (
        "own/net.py:make",
        "/other/data.py:Data",
    )
