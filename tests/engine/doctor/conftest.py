"""What is looked at: Rankdeck's own interpreter, or another one; GPUs that answer as a driver's would."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck.config import environments
from rankdeck.config.interpreters import ChosenPython
from rankdeck.doctor.check_runner import CheckTarget
from tests.helpers.nvmlsim import SimulatedGpus, build


@pytest.fixture
def looked(tmp_path: Path) -> CheckTarget:
    return CheckTarget(
        ChosenPython(environments.rankdeck_python(), environments.OWN_PYTHON_TEXT), tmp_path / "runs"
    )


@pytest.fixture
def other(tmp_path: Path) -> CheckTarget:
    return CheckTarget(ChosenPython(tmp_path / "other/bin/python", "--python"), tmp_path / "runs")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def gpus(library: Path, tmp_path: Path) -> SimulatedGpus:
    """Two of them."""
    return SimulatedGpus(tmp_path, 2, library)
