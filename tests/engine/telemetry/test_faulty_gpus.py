"""One GPU that fails takes nothing from the others, and what is wrong with it is told."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from rankdeck.base.errors import DeviceError
from rankdeck.launch.device_selection import free_gpus, selected_gpus
from rankdeck.telemetry.listing import list_gpus, query_gpus
from rankdeck.telemetry.nvml import MAX_PROCESSES
from rankdeck.telemetry.readings import throttle_reasons
from tests.engine.telemetry.conftest import MakeGpus
from tests.helpers.cli import rankdeck_in_process
from tests.helpers.device_stream import DeviceStream
from tests.helpers.nvmlsim import (
    ABORT,
    CRASH,
    GIB,
    INSUFFICIENT_POWER,
    MIB,
    NOT_SUPPORTED,
    UNKNOWN,
    SimulatedGpus,
)

NO_PERMISSION, INSUFFICIENT_SIZE = 4, 7
NEVER_S = 3600.0


@pytest.fixture
def there(gpus: SimulatedGpus, monkeypatch: pytest.MonkeyPatch) -> SimulatedGpus:
    """What this process takes for the machine's own."""
    for name, value in gpus.driver_environment.items():
        monkeypatch.setenv(name, value)
    return gpus


def devices_output(*options: str) -> str:
    return rankdeck_in_process("devices", *options, exit_code=0).out


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (UNKNOWN, "Unknown Error"),
        pytest.param(NO_PERMISSION, "Insufficient Permissions", marks=pytest.mark.slow),
        pytest.param(INSUFFICIENT_POWER, "Insufficient External Power", marks=pytest.mark.slow),
        (4711, "Unknown Error"),
    ],
)
def test_a_gpu_without_a_handle_is_lost_with_its_reason(there: SimulatedGpus, code: int, reason: str) -> None:
    there.fail(0, "STATIC", code)
    first, second = list_gpus()
    assert (first.index, first.state, first.why) == (0, "lost", reason)
    assert (second.uuid, second.state, second.used_bytes) == (there.uuid(1), "ok", 4 * MIB)
    assert [gpu.uuid for gpu in selected_gpus([first, second], [])] == [there.uuid(1)]
    assert reason in devices_output()


@pytest.fixture
def half_named() -> Iterator[int]:
    """A process whose name the kernel has cut inside a character."""
    code = "import sys; open('/proc/self/comm', 'w').write('обучение'); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid


def test_invalid_names_do_not_prevent_readings(there: SimulatedGpus, half_named: int) -> None:
    there.device(0).name = "NVIDIA Ж".encode()[:-1]
    there.put_processes(1, (half_named, GIB))
    first, second = list_gpus()
    assert first.name.startswith("NVIDIA") and first.used_bytes == 4 * MIB
    (process,) = second.processes
    assert process.name and process.name.startswith("обучени")
    assert "обучени" in devices_output()


def test_a_process_list_that_never_fits_is_an_error(there: SimulatedGpus) -> None:
    there.fail(0, "COMPUTE", INSUFFICIENT_SIZE)
    there.put_processes(1, (os.getpid(), GIB))
    first, second = list_gpus()
    assert first.states["processes"] == "error" and first.used_bytes == 4 * MIB
    assert [process.pid for process in second.processes] == [os.getpid()]
    assert there.device(0).calls[11] < 10 < MAX_PROCESSES


def test_a_hanging_gpu_is_named_with_its_call(there: SimulatedGpus) -> None:
    there.delay("POWER", NEVER_S, 0)
    listing = query_gpus(timeout_s=8.0)
    first, second = listing.gpus
    assert (first.state, second.state, second.used_bytes) == ("lost", "ok", 4 * MIB)
    (notice,) = (notice for notice in listing.notices if notice.code == "restarted")
    assert f"{there.uuid(0)} (power_w)" in notice.message and there.uuid(1) not in notice.message


def test_a_gpu_that_hangs_during_listing_is_named(there: SimulatedGpus) -> None:
    there.delay("STATIC", NEVER_S, 1)
    listing = query_gpus(timeout_s=8.0)
    assert [gpu.state for gpu in listing.gpus] == ["ok", "lost"]
    (notice,) = (notice for notice in listing.notices if notice.code == "restarted")
    assert "GPU 1 (nvmlDeviceGetHandleByIndex)" in notice.message


def test_a_crash_of_the_event_thread_skips_no_gpu(gpus: SimulatedGpus) -> None:
    gpus.state.wait_error = CRASH
    with DeviceStream(gpus.driver_environment) as stream:
        stream.wait(lambda _: stream.notices("restarted"), "word of the crash")
        for index in (0, 1):
            gpus.device(index).used = 9 * GIB
            stream.wait_for_bytes(gpus.uuid(index), 9 * GIB)
        (notice,) = stream.notices("restarted")
        assert "waited for events" in notice.message
        assert [device.lost_at for device in stream.registry.devices] == [None, None]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["STATIC", "MEMORY", "CLOCK", "COMPUTE", "GRAPHICS", "MIG", "EVENT", "LINK"])
@pytest.mark.parametrize("code", [CRASH, ABORT])
def test_a_crashing_call_restarts_the_sampler_once(gpus: SimulatedGpus, kind: str, code: int) -> None:
    gpus.fail(0, kind, code)
    with DeviceStream(gpus.driver_environment) as stream:
        stream.wait(lambda _: stream.notices("restarted"), "word of the crash")
        gpus.device(1).used = 9 * GIB
        stream.wait_for_bytes(gpus.uuid(1), 9 * GIB)
        first = stream.sampler()
        for used in (10 * GIB, 11 * GIB):
            gpus.device(1).used = used
            stream.wait_for_bytes(gpus.uuid(1), used)
        assert len(stream.notices("restarted")) == 1 and stream.sampler() == first
        assert [device.lost_at is None for device in stream.registry.devices] == [False, True]


def test_two_gpus_with_one_uuid_are_two_rows(there: SimulatedGpus) -> None:
    there.device(1).uuid = there.device(0).uuid
    there.device(0).used, there.device(1).used = 5 * GIB, 7 * GIB
    first, second = list_gpus()
    assert [gpu.used_bytes for gpu in (first, second)] == [5 * GIB, 7 * GIB]
    assert second.uuid.startswith(first.uuid) and second.uuid != first.uuid


@pytest.mark.parametrize("uuid", ["the other's", "none"])
def test_a_gpu_without_its_own_uuid_is_rejected(there: SimulatedGpus, uuid: str) -> None:
    there.device(1).uuid = there.device(0).uuid if uuid == "the other's" else b""
    gpus = list_gpus()
    for name in ("1", gpus[1].uuid):
        with pytest.raises(DeviceError, match=r"GPU 1 \(.*\) has no unique UUID") as caught:
            selected_gpus(gpus, [name])
        assert caught.value.code == "device-unusable"
    for taken in (selected_gpus(gpus, ["0"]), selected_gpus(gpus, []), free_gpus()):
        assert [gpu.uuid for gpu in taken] == [gpus[0].uuid]


def test_impossible_readings_are_errors(there: SimulatedGpus) -> None:
    device = there.device(0)
    device.utilisation, device.celsius, device.power_mw, device.sm_mhz = (
        4_294_967,
        2**32 - 1,
        2**32 - 1,
        2**32 - 1,
    )
    device.used, device.energy_mj, device.ecc_errors = 90_000 * MIB, 2**64 - 1, 2**64 - 1
    there.put_processes(0, (os.getpid(), 2**60))
    first, second = list_gpus()
    names = (
        "utilisation",
        "temperature_c",
        "power_w",
        "sm_clock_mhz",
        "used_bytes",
        "energy_j",
        "ecc_errors",
    )
    assert [getattr(first, name) for name in names] == [None] * len(names)
    assert {first.states[name] for name in names} == {"error"}
    assert first.processes[0].used_bytes is None
    assert (second.utilisation, second.temperature_c) == (0.0, 31)


def test_an_impossible_capacity_is_unknown(there: SimulatedGpus) -> None:
    there.device(0).total, there.device(0).power_limit_mw = 2**60, 2**32 - 1
    first, second = list_gpus()
    assert (first.total_bytes, first.power_limit_w) == (None, None)
    assert (second.total_bytes, second.power_limit_w) == (81559 * MIB, 700.0)


def test_the_table_shows_throttling_and_faults(there: SimulatedGpus) -> None:
    assert "state" not in devices_output().splitlines()[0]
    first = there.device(0)
    first.throttle, first.ecc_errors, first.power_limit_mw = 0x4 | 0x20 | 0x40, 3, 350_000
    first.links_up, first.rows_pending, first.rows_failed = 17, 1, 1
    heading, row, other = devices_output().splitlines()[:3]
    assert "state" in heading and "/ 350 W" in row and "3 memory errors" in row
    for text in (*throttle_reasons(first.throttle), "17 of 18 NVLinks", "remapping failed", "reset the GPU"):
        assert text in row and text not in other


def test_health_limits_and_links_are_reported(there: SimulatedGpus) -> None:
    first = there.device(0)
    first.rows_corrected, first.rows_uncorrected, first.pstate, first.corrected_ecc_errors = 4, 2, 8, 11
    there.fail(1, "LINK", NOT_SUPPORTED)
    there.fail(1, "ECC", NOT_SUPPORTED)
    row, other = rankdeck_in_process("devices", "--json", exit_code=0).json
    assert (row["rows_corrected"], row["rows_uncorrected"], row["rows_pending"]) == (4, 2, False)
    assert (row["performance_state"], row["ecc_corrected"], row["ecc"]) == (8, 11, True)
    assert (row["max_sm_clock_mhz"], row["links_up"], row["num_links"]) == (1980, 18, 18)
    assert (other["rows_corrected"], other["links_up"], other["ecc_corrected"]) == (None, None, None)
    assert "345 / 1980 MHz" in devices_output()


def test_pcie_is_read_on_request_only(there: SimulatedGpus) -> None:
    there.device(0).pcie_tx_kb, there.device(0).pcie_rx_kb = 3_000_000, 5_000_000
    (row, _) = rankdeck_in_process("devices", "--json", exit_code=0).json
    assert row["pcie_tx_bps"] is None and "pcie_tx_bps" not in row["states"]
    assert there.calls("PCIE") == 0
    (row, _) = rankdeck_in_process("devices", "--json", "--pcie", exit_code=0).json
    assert (row["pcie_tx_bps"], row["pcie_rx_bps"]) == (3e9, 5e9)
    assert "4.7 GiB/s in" in devices_output("--pcie")


def test_unified_memory_is_reported(there: SimulatedGpus) -> None:
    there.fail(0, "MEMORY", NOT_SUPPORTED)
    there.fail(1, "MEMORY", NO_PERMISSION)
    first, second = list_gpus()
    assert (first.unified, first.host_bytes) == (True, psutil.virtual_memory().total)
    assert (second.unified, second.host_bytes, second.total_bytes) == (False, None, None)


def test_a_process_has_user_command_and_host_memory(there: SimulatedGpus) -> None:
    command = [sys.executable, "-c", "input()", "--api-key", "hunter2", "--lr", "3"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        there.put_processes(0, (process.pid, GIB))
        (entry,) = rankdeck_in_process("devices", "--json", exit_code=0).json[0]["processes"]
        table = devices_output()
    assert entry["user"] == psutil.Process().username() and entry["host_bytes"] > MIB
    assert entry["command"].endswith("--api-key *** --lr 3")
    assert "--api-key *** --lr 3" in table and "hunter2" not in table


def test_escape_codes_in_a_gpu_name_are_replaced(
    make_gpus: MakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = make_gpus(1)
    gpus.device(0).name = b"H100 \x1b[2J [red]"
    for name, value in gpus.driver_environment.items():
        monkeypatch.setenv(name, value)
    assert "H100 ?[2J [red]" in devices_output()
