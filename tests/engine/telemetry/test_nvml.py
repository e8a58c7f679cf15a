"""The machine's GPUs, asked of the real pynvml: without a driver, and with a library that answers as one.

The driver is the lowest thing that cannot exist here, so it alone is stood in for (tests/helpers/nvml.c).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.cli import CHECKOUT, rankdeck

GIB = 2**30
LIST = """
import json
from rankdeck.telemetry.nvml import list_gpus
print(json.dumps([gpu.as_json() for gpu in list_gpus()]))
"""


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libnvidia-ml.so.1."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("driver")
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libnvidia-ml.so.1"]
    source = CHECKOUT / "tests/helpers/nvml.c"
    subprocess.run([*command, "-o", str(folder / "libnvidia-ml.so.1"), str(source)], check=True)
    return folder


def listed(driver: Path, words: str = "", **environment: str) -> Any:
    env = {**os.environ, "LD_LIBRARY_PATH": str(driver), "FAKE_NVML": words, **environment}
    done = subprocess.run([sys.executable, "-c", LIST], env=env, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_every_gpu_is_listed_with_what_the_driver_tells(driver: Path) -> None:
    first, second = listed(driver)
    assert first == {
        "index": 0,
        "uuid": "GPU-00000001",
        "name": "Fake H100",
        "kind": "gpu",
        "total_bytes": 80 * GIB,
        "used_bytes": 2 * GIB,
        "utilisation": 0.25,
        "temperature_c": 41.0,
        "power_w": 70.5,
        "processes": [],
        "age_s": 0.0,
    }
    assert (second["index"], second["uuid"]) == (1, "GPU-00000002")


def test_what_the_driver_refuses_is_null_and_never_zero(driver: Path) -> None:
    for gpu in listed(driver, "shy"):
        assert [gpu[key] for key in ("utilisation", "temperature_c", "power_w")] == [None] * 3
        assert gpu["used_bytes"] == 2 * GIB


def test_an_old_driver_is_asked_in_its_own_way(driver: Path) -> None:
    assert listed(driver, "old")[0]["used_bytes"] == 3 * GIB


def test_processes_come_with_name_bytes_and_kind(driver: Path) -> None:
    mine = str(os.getpid())
    first, second = listed(driver, FAKE_COMPUTE_PID=mine, FAKE_GRAPHICS_PID="999999999")
    own, foreign = first["processes"]
    assert (own["pid"], own["used_bytes"], own["kind"]) == (os.getpid(), GIB, "compute")
    assert own["name"]
    assert foreign == {"pid": 999999999, "name": None, "used_bytes": None, "kind": "graphics"}
    assert second["processes"] == []


def test_a_process_that_computes_and_draws_is_listed_once_as_computing(driver: Path) -> None:
    mine = str(os.getpid())
    (only,) = listed(driver, FAKE_COMPUTE_PID=mine, FAKE_GRAPHICS_PID=mine)[0]["processes"]
    assert only["kind"] == "compute"


def test_a_driver_that_does_not_answer_is_told_in_words(driver: Path) -> None:
    env = {"LD_LIBRARY_PATH": str(driver), "FAKE_NVML": "broken"}
    done = rankdeck("devices", env=env, code=3)
    assert "version mismatch" in done.err.lower() and "Traceback" not in done.err


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="this machine has a driver")
def test_without_a_driver_the_reason_is_plain(tmp_path: Path) -> None:
    done = rankdeck("devices", code=3)
    assert done.out == "" and done.err.startswith("No NVIDIA driver found.")
    (problem,) = rankdeck("devices", "--json", code=3).json["problems"]
    assert problem["code"] == "no-driver" and problem["advice"]


def test_the_command_lists_them(driver: Path) -> None:
    env = {"LD_LIBRARY_PATH": str(driver)}
    assert "Fake H100" in rankdeck("devices", env=env, code=0).out
    assert [gpu["index"] for gpu in rankdeck("devices", "--json", env=env, code=0).json] == [0, 1]
