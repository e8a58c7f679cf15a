"""Sizes of a hybrid's mesh: what fits the devices, what is said where not, what is taken by default."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from rankdeck.base.errors import ConfigError
from rankdeck.config import from_text, mesh_sizes, on_devices


def hybrid(sizes: str, devices: str = "cpu:4") -> str:
    tables = f'strategy = {{ use = "hybrid"{sizes} }}\ndevices = {{ use = "{devices}" }}'
    return f"{tables}\n[train]\nglobal_batch = 48"


@pytest.mark.parametrize("num_devices", [2, 3, 4, 6, 8])
def test_the_default_mesh_uses_every_device(num_devices: int) -> None:
    config = from_text(hybrid("", f"cpu:{num_devices}"), folder=Path("/somewhere"))
    sizes = mesh_sizes.sizes_of(config.strategy.options)
    assert math.prod(sizes.values()) == num_devices
    assert sizes["stage"] == (2 if num_devices in {4, 6, 8} else 1)


@pytest.mark.parametrize("devices", ["auto", "gpu:all"])
def test_the_default_mesh_is_set_once_the_devices_are_known(devices: str) -> None:
    config = from_text(hybrid("", devices), folder=Path("/somewhere"))
    assert mesh_sizes.sizes_of(on_devices(config, "gpu", 4).strategy.options)["data"] == 2
    assert mesh_sizes.sizes_of(on_devices(config, "gpu", 3).strategy.options)["data"] == 3


def test_given_sizes_are_kept() -> None:
    config = from_text(hybrid(", shard = 2, tensor = 2"), folder=Path("/somewhere"))
    assert mesh_sizes.sizes_of(config.strategy.options) == {"data": 1, "shard": 2, "stage": 1, "tensor": 2}
    assert mesh_sizes.num_batch_slices(config.strategy.options) == 2


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (", data = 3", "needs data 3 = 3 devices, but there are 4."),
        (", stage = 2, tensor = 4", "needs stage 2 x tensor 4 = 8 devices, but there are 4."),
    ],
)
def test_wrong_mesh_sizes_are_refused_with_fitting_ones(sizes: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_text(hybrid(sizes), folder=Path("/somewhere"))
    (problem,) = caught.value.problems
    assert message in problem.message and problem.advice is not None
    for choice in problem.advice.removeprefix("In [strategy], set ").rstrip(".").split("; or ")[:-1]:
        assert math.prod(int(size.rpartition("= ")[2]) for size in choice.split(", ")) == 4


def test_suggested_mesh_sizes_use_every_axis_first() -> None:
    problem = mesh_sizes.mesh_problem({"data": 1, "stage": 3, "shard": 1, "tensor": 1}, 4)
    assert problem is not None and problem.advice is not None
    offered = re.findall(r"data = (\d), stage = (\d)", problem.advice)
    assert offered == [("2", "2"), ("1", "4"), ("4", "1")]
