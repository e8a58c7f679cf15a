"""The simulated NVML, built once, and GPUs in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.nvmlsim import SimulatedGpus, build

MakeGpus = Callable[[int], SimulatedGpus]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As of a driver before 510."""
    return build(tmp_path_factory.mktemp("old-nvml"), "-DOLD_DRIVER")


@pytest.fixture(scope="session")
def first_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As of a driver before 460."""
    return build(tmp_path_factory.mktemp("first-nvml"), "-DOLD_DRIVER", "-DFIRST_LISTS")


@pytest.fixture
def make_gpus(library: Path, tmp_path: Path) -> MakeGpus:
    return lambda num_gpus: SimulatedGpus(tmp_path, num_gpus, library)


@pytest.fixture
def gpus(make_gpus: MakeGpus) -> SimulatedGpus:
    """Two of them."""
    return make_gpus(2)
