"""`rankdeck devices`, asked of the real pynvml: without a driver, and with a library that answers as one.

The driver is the lowest thing that cannot exist here, so it alone is stood in for (tests/helpers/nvmlsim.c).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine.telemetry.conftest import MakeGpus
from tests.helpers.cli import rankdeck_in_process
from tests.helpers.nvmlsim import (
    ABORT,
    CRASH,
    DRIVER_NOT_LOADED,
    GIB,
    GPU_IS_LOST,
    MIB,
    NOT_SUPPORTED,
    UNKNOWN,
    UNKNOWN_BYTES,
    VERSION_MISMATCH,
    SimulatedGpus,
)


def list_devices(gpus: SimulatedGpus) -> Any:
    return rankdeck_in_process("devices", "--json", env=gpus.driver_environment, exit_code=0).json


@pytest.mark.parametrize("num_gpus", [1, 8, 16])
def test_every_gpu_is_listed_with_its_readings(make_gpus: MakeGpus, num_gpus: int) -> None:
    gpus = make_gpus(num_gpus)
    last = gpus.device(num_gpus - 1)
    last.used, last.utilisation, last.power_mw, last.celsius = 5 * GIB, 77, 412_300, 61
    rows = list_devices(gpus)
    assert [(row["index"], row["uuid"]) for row in rows] == [(i, gpus.uuid(i)) for i in range(num_gpus)]
    row = rows[-1]
    assert (row["name"], row["kind"], row["state"]) == ("NVIDIA H100 80GB HBM3", "gpu", "ok")
    assert (row["total_bytes"], row["used_bytes"]) == (81559 * MIB, 5 * GIB)
    assert (row["utilisation"], row["power_w"], row["temperature_c"]) == (0.77, 412.3, 61)
    assert row["processes"] == [] and not row["simulated"] and 0 <= row["age_s"] < 5


def test_refused_readings_are_null(gpus: SimulatedGpus) -> None:
    for kind in ("UTILISATION", "TEMPERATURE", "COMPUTE"):
        gpus.fail(0, kind, NOT_SUPPORTED)
    gpus.fail(0, "POWER", UNKNOWN)
    first, second = list_devices(gpus)
    assert [first[key] for key in ("utilisation", "temperature_c", "power_w", "fan")] == [None] * 4
    assert first["states"] == {
        "utilisation": "unsupported",
        "memory_utilisation": "unsupported",
        "temperature_c": "unsupported",
        "power_w": "error",
        "fan": "unsupported",
        "processes": "unsupported",
    }
    assert first["used_bytes"] == 4 * MIB and second["utilisation"] == 0.0


def test_old_drivers_are_supported(old_library: Path, tmp_path: Path) -> None:
    gpus = SimulatedGpus(tmp_path, 1, old_library)
    gpus.put_processes(0, (os.getpid(), GIB))
    gpus.device(0).throttle = 0x4
    (row,) = list_devices(gpus)
    # Its one memory reading counts the driver's reserve as used.
    assert (row["used_bytes"], row["driver_bytes"], row["throttle"]) == (612 * MIB, None, 4)
    assert [process["pid"] for process in row["processes"]] == [os.getpid()]


def test_the_first_version_of_process_lists_is_read(first_library: Path, tmp_path: Path) -> None:
    gpus = SimulatedGpus(tmp_path, 1, first_library)
    gpus.put_processes(0, (os.getpid(), GIB), (999_999_999, 2 * GIB), (999_999_998, UNKNOWN_BYTES))
    (row,) = list_devices(gpus)
    assert [(process["pid"], process["used_bytes"]) for process in row["processes"]] == [
        (os.getpid(), GIB),
        (999_999_998, None),
        (999_999_999, 2 * GIB),
    ]


def test_processes_have_name_bytes_and_kind(gpus: SimulatedGpus) -> None:
    gpus.put_processes(0, (os.getpid(), GIB), (999_999_999, UNKNOWN_BYTES))
    gpus.put_processes(1, (999_999_998, 2 * GIB), graphics=True)
    first, second = list_devices(gpus)
    rank_process, foreign = first["processes"]
    assert (
        rank_process["pid"],
        rank_process["used_bytes"],
        rank_process["kind"],
        rank_process["foreign"],
    ) == (
        os.getpid(),
        GIB,
        "compute",
        False,
    )
    assert rank_process["name"] and not rank_process["foreign"]
    assert (foreign["name"], foreign["used_bytes"], foreign["foreign"]) == (None, None, True)
    assert [process["kind"] for process in second["processes"]] == ["graphics"]
    output = rankdeck_in_process("devices", env=gpus.driver_environment, exit_code=0).out
    assert "other, outside this namespace: 2.0 GiB" in output


def test_a_compute_and_graphics_process_is_listed_once(gpus: SimulatedGpus) -> None:
    gpus.put_processes(0, (os.getpid(), GIB), (os.getpid(), GIB))
    gpus.device(0).processes[1].graphics = 1
    (only,) = list_devices(gpus)[0]["processes"]
    assert only["kind"] == "compute"


def test_a_lost_gpu_does_not_affect_the_others(gpus: SimulatedGpus) -> None:
    gpus.fail(0, "ANY", GPU_IS_LOST)
    first, second = list_devices(gpus)
    assert (first["index"], first["state"], first["used_bytes"]) == (0, "lost", None)
    assert (second["state"], second["used_bytes"]) == ("ok", 4 * MIB)
    assert "lost since" in rankdeck_in_process("devices", env=gpus.driver_environment, exit_code=0).out


def test_a_gpu_lost_between_calls_is_reported(gpus: SimulatedGpus) -> None:
    gpus.fail(1, "POWER", GPU_IS_LOST)
    first, second = list_devices(gpus)
    assert (first["state"], second["state"], second["uuid"]) == ("ok", "lost", gpus.uuid(1))
    done = rankdeck_in_process("devices", env=gpus.driver_environment, exit_code=0)
    assert "GPU 1 (NVIDIA H100 80GB HBM3) is lost" in done.err


@pytest.mark.parametrize(
    ("kind", "code", "signal"),
    [("MEMORY", CRASH, "SIGSEGV"), pytest.param("ECC", ABORT, "SIGABRT", marks=pytest.mark.slow)],
)
def test_a_gpu_that_crashes_the_library_is_skipped(
    gpus: SimulatedGpus, kind: str, code: int, signal: str
) -> None:
    gpus.fail(0, kind, code)
    done = rankdeck_in_process("devices", env=gpus.driver_environment, exit_code=0)
    assert signal in done.err and "Traceback" not in done.err
    first, second = list_devices(gpus)
    assert (first["state"], first["used_bytes"]) == ("lost", None)
    assert (second["state"], second["used_bytes"]) == ("ok", 4 * MIB)


def test_mig_instances_are_listed_below_their_gpu(gpus: SimulatedGpus) -> None:
    gpus.split_into_mig(0, ("3g.40gb", 40 * GIB), ("1g.10gb", 10 * GIB))
    gpus.device(3).used = 6 * GIB
    gpu, big, small, other = list_devices(gpus)
    assert (gpu["mig"], gpu["utilisation"], other["mig"]) == (True, None, False)
    assert [instance["parent"] for instance in (big, small, other)] == [gpu["uuid"], gpu["uuid"], None]
    assert (small["name"], small["total_bytes"], small["used_bytes"]) == (
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        10 * GIB,
        6 * GIB,
    )
    assert small["states"]["utilisation"] == "unsupported"


def test_unified_memory_is_null(gpus: SimulatedGpus) -> None:
    gpus.fail(0, "MEMORY", NOT_SUPPORTED)
    first = list_devices(gpus)[0]
    assert (first["unified"], first["total_bytes"], first["used_bytes"]) == (True, None, None)
    table = rankdeck_in_process("devices", env=gpus.driver_environment, exit_code=0).out
    assert re.search(r" host( |$)", table.splitlines()[1])


@pytest.mark.parametrize(
    ("code", "name", "message"),
    [(VERSION_MISMATCH, "driver", "version mismatch"), (DRIVER_NOT_LOADED, "no-driver", "No NVIDIA driver")],
)
def test_a_driver_error_is_reported(gpus: SimulatedGpus, code: int, name: str, message: str) -> None:
    gpus.state.init_error = code
    done = rankdeck_in_process("devices", env=gpus.driver_environment, exit_code=3)
    assert message.lower() in done.err.lower() and "Traceback" not in done.err
    (problem,) = rankdeck_in_process("devices", "--json", env=gpus.driver_environment, exit_code=3).json[
        "problems"
    ]
    assert problem["code"] == name and problem["advice"]


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="this machine has a driver")
def test_a_missing_driver_is_reported() -> None:
    done = rankdeck_in_process("devices", exit_code=3)
    assert done.out == "" and done.err.startswith("No NVIDIA driver found.")
    (problem,) = rankdeck_in_process("devices", "--json", exit_code=3).json["problems"]
    assert problem["code"] == "no-driver" and problem["advice"]


def test_gpus_of_a_named_library_are_simulated(gpus: SimulatedGpus) -> None:
    assert (
        "simulated devices" in rankdeck_in_process("devices", env=gpus.simulated_environment, exit_code=0).err
    )
    rows = rankdeck_in_process("devices", "--json", env=gpus.simulated_environment, exit_code=0).json
    assert [row["simulated"] for row in rows] == [True, True]


def test_a_missing_named_library_is_reported(tmp_path: Path) -> None:
    done = rankdeck_in_process(
        "devices", env={"RANKDECK_NVML": str(tmp_path / "libnvidia-ml.so.1")}, exit_code=3
    )
    assert "cannot be loaded" in done.err and "RANKDECK_NVML" in done.err


def test_a_one_shot_sampler_exits_with_zero(gpus: SimulatedGpus) -> None:
    command = [sys.executable, "-P", "-m", "rankdeck.telemetry.sampler", "--once"]
    subprocess.run(
        command, env={**os.environ, **gpus.driver_environment}, check=True, timeout=60, capture_output=True
    )
