"""nvitop and gpustat read the same driver: what they say of it, `rankdeck devices --json` says too.

Skipped where they are not installed; RANKDECK_PEERS names an interpreter that has them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.engine.telemetry.conftest import MakeGpus
from tests.helpers.cli import rankdeck_in_process
from tests.helpers.nvmlsim import GIB, MIB, SimulatedGpus

PEERS = os.environ.get("RANKDECK_PEERS", sys.executable)
NVITOP = """
import json
from nvitop import Device
rows = []
for device in Device.all():
    told = device.as_snapshot()
    pids = {pid: process.gpu_memory() for pid, process in device.processes().items()}
    rows.append([told.name, told.memory_total, told.memory_used, told.gpu_utilization, told.power_usage,
                 told.temperature, pids])
print(json.dumps(rows))
"""
GPUSTAT = """
import json, gpustat
rows = []
for gpu in gpustat.new_query():
    told = gpu.entry
    pids = {item["pid"]: item["gpu_memory_usage"] for item in told["processes"] or []}
    rows.append([told["name"], told["memory.total"], told["memory.used"], told["utilization.gpu"],
                 told["power.draw"], told["temperature.gpu"], pids])
print(json.dumps(rows))
"""


@pytest.fixture
def busy(make_gpus: MakeGpus) -> SimulatedGpus:
    """Eight GPUs that all do something else, one with a process of ours."""
    gpus = make_gpus(8)
    for index in range(8):
        device = gpus.device(index)
        device.used, device.utilisation = (3 + 9 * index) * GIB, 11 * index
        device.power_mw, device.celsius = 100_000 + 50_000 * index, 40 + 3 * index
    gpus.put_processes(2, (os.getpid(), 20 * GIB))
    return gpus


def rows_of_tool(code: str, package: str, gpus: SimulatedGpus) -> list[Any]:
    has = subprocess.run([PEERS, "-c", f"import {package}"], capture_output=True, check=False)
    if has.returncode:
        pytest.skip(f"{package} is not installed")
    env = {**os.environ, **gpus.driver_environment}
    done = subprocess.run([PEERS, "-c", code], env=env, capture_output=True, text=True, check=True)
    rows: list[Any] = json.loads(done.stdout)
    return rows


def rows_of_rankdeck(gpus: SimulatedGpus, unit: int) -> list[Any]:
    """The same columns, sizes in `unit` bytes."""
    rows = rankdeck_in_process("devices", "--json", env=gpus.driver_environment, exit_code=0).json
    return [
        [
            row["name"],
            row["total_bytes"] // unit,
            row["used_bytes"] // unit,
            round(100 * row["utilisation"]),
            row["power_w"],
            row["temperature_c"],
            {str(process["pid"]): process["used_bytes"] // unit for process in row["processes"]},
        ]
        for row in rows
    ]


def test_nvitop_agrees(busy: SimulatedGpus) -> None:
    theirs = rows_of_tool(NVITOP, "nvitop", busy)
    for row in theirs:
        row[4] /= 1000  # in milliwatts
    assert rows_of_rankdeck(busy, 1) == theirs


def test_gpustat_agrees(busy: SimulatedGpus) -> None:
    assert rows_of_rankdeck(busy, MIB) == rows_of_tool(GPUSTAT, "gpustat", busy)
