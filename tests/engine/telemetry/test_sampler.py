"""The stream of readings: at the rates of the table, and true whatever the driver does."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from rankdeck.base.files import lease_path
from rankdeck.telemetry.readings import METRICS, DevicesLine
from rankdeck.telemetry.sampler_process import SamplerProcess
from tests.engine.telemetry.conftest import MakeGpus
from tests.helpers.cli import rankdeck_in_process, start_rankdeck
from tests.helpers.device_stream import DeviceStream
from tests.helpers.nvmlsim import (
    CRASH,
    DRIVER_NOT_LOADED,
    GIB,
    GPU_IS_LOST,
    INSUFFICIENT_POWER,
    MIB,
    NOT_SUPPORTED,
    VERSION_MISMATCH,
    SimulatedGpus,
)
from tests.helpers.waiting import wait_until

# The kind of call that answers a metric, of those that have one of their own.
CALLS_PER_SECOND = {
    "MEMORY": METRICS["used_bytes"].hz,
    "UTILISATION": METRICS["utilisation"].hz,
    "POWER": METRICS["power_w"].hz,
    "ENERGY": METRICS["energy_j"].hz,
    "TEMPERATURE": METRICS["temperature_c"].hz,
    "CLOCK": METRICS["sm_clock_mhz"].hz + METRICS["memory_clock_mhz"].hz + METRICS["performance_state"].hz,
    "THROTTLE": METRICS["throttle"].hz,
    "ECC": METRICS["ecc_errors"].hz + METRICS["ecc_corrected"].hz,
    "COMPUTE": 1.0,
    "GRAPHICS": 1.0,
}


def test_metrics_are_read_at_their_rates(make_gpus: MakeGpus) -> None:
    gpus = make_gpus(8)
    with DeviceStream(gpus.driver_environment) as stream:
        stream.wait_for_bytes(gpus.uuid(7))
        seconds = 3.0
        began_s = time.monotonic()
        before = {kind: gpus.calls(kind) for kind in CALLS_PER_SECOND}
        wait_until(lambda: time.monotonic() >= began_s + seconds, deadline_s=10, interval_s=0.005)
        elapsed_s = time.monotonic() - began_s
        calls = {kind: gpus.calls(kind) - before[kind] for kind in CALLS_PER_SECOND}
    per_second = {kind: count / 8 / elapsed_s for kind, count in calls.items()}
    assert per_second == pytest.approx(CALLS_PER_SECOND, rel=0.15)
    # What a card refused is not asked at its rate.
    assert gpus.calls("FAN") == 8


def test_a_gpu_lost_while_sampling_does_not_stop_the_others(make_gpus: MakeGpus) -> None:
    gpus = make_gpus(8)
    with DeviceStream(gpus.driver_environment) as stream:
        stream.wait_for_bytes(gpus.uuid(3))
        lost_at = time.time()
        gpus.fail(3, "ANY", GPU_IS_LOST)
        stream.wait(lambda board: board.devices[3].lost_at, "the loss")
        (notice,) = stream.notices("lost")
        assert (notice.uuid, notice.severity) == (gpus.uuid(3), "error") and "GPU 3" in notice.message
        assert stream.registry.devices[3].lost_at == pytest.approx(lost_at, abs=2)
        assert stream.reading(gpus.uuid(3), "used_bytes").state == "stale"
        gpus.device(5).used = 9 * GIB
        stream.wait_for_bytes(gpus.uuid(5), 9 * GIB)
        assert len(stream.registry.devices) == 8


def test_a_slow_call_is_made_less_often(gpus: SimulatedGpus) -> None:
    with DeviceStream(gpus.driver_environment) as stream:
        stream.wait_for_bytes(gpus.uuid(0))
        gpus.delay("COMPUTE", 2.0, 0)
        stream.wait(lambda _: stream.notices("silent"), "word that the driver is silent")
        assert stream.reading(gpus.uuid(1), "used_bytes").state == "stale"
        stream.wait(lambda _: stream.notices("slow"), "word that a call is slow")
        ages = [
            reading.age_s
            for line in stream.samples()
            for device in line.devices
            if device.uuid == gpus.uuid(0)
            for reading in device.readings.values()
        ]
        assert max(ages) >= 2.0, "what was read before the call that took two seconds"
        before = gpus.calls("COMPUTE")
        gpus.device(0).used = gpus.device(1).used = 7 * GIB
        for index in (0, 1):
            stream.wait_for_bytes(gpus.uuid(index), 7 * GIB)
        # Two seconds of waiting are paid for by forty without that call; the other GPU has its own.
        assert gpus.device(0).calls[11] <= before


def test_a_library_crash_skips_that_gpu(gpus: SimulatedGpus) -> None:
    with DeviceStream(gpus.driver_environment) as stream:
        stream.wait_for_bytes(gpus.uuid(0))
        gpus.fail(0, "UTILISATION", CRASH)
        stream.wait(lambda board: board.devices[0].lost_at, "the GPU that crashed the library")
        gpus.device(1).used = 7 * GIB
        stream.wait_for_bytes(gpus.uuid(1), 7 * GIB)
        (notice,) = stream.notices("restarted")
        assert "SIGSEGV" in notice.message and gpus.uuid(0) in notice.message


def test_a_restarted_sampler_lists_the_current_devices(make_gpus: MakeGpus) -> None:
    gpus = make_gpus(3)
    with DeviceStream(gpus.driver_environment) as stream:
        stream.wait_for_bytes(gpus.uuid(0))
        gpus.state.num_gpus = 2
        stream.kill_sampler()
        stream.wait(lambda board: board.devices[2].lost_at, "the loss of the third GPU")
        assert [device.lost_at is None for device in stream.registry.devices] == [True, True, False]
        stream.wait_for_bytes(gpus.uuid(1))


def test_device_and_driver_changes_are_detected(library: Path, tmp_path: Path) -> None:
    """Three machines, each with one of them: it takes five seconds until a sampler looks."""
    counted, refused, loaded = (
        SimulatedGpus(tmp_path / name, num_gpus, library)
        for name, num_gpus in (("counted", 3), ("refused", 2), ("loaded", 2))
    )
    counted.state.live_count, counted.state.num_gpus = 1, 2
    refused.fail(1, "STATIC", INSUFFICIENT_POWER)
    with (
        DeviceStream(counted.driver_environment) as counts,
        DeviceStream(refused.driver_environment) as handles,
        DeviceStream(loaded.driver_environment) as opens,
    ):
        for stream, gpus in ((counts, counted), (handles, refused), (opens, loaded)):
            stream.wait_for_bytes(gpus.uuid(0))
        counted.state.num_gpus = 3
        refused.fail(1, "STATIC", 0)
        loaded.state.session += 1
        counts.wait(lambda board: len(board.devices) == 3, "the third GPU")
        assert counts.notices("changed") and not counts.notices("restarted")
        handles.wait_for_bytes(refused.uuid(1))
        assert [device.lost_at for device in handles.registry.devices] == [None, None]
        for index in (0, 1):
            loaded.device(index).used = 9 * GIB
            opens.wait_for_bytes(loaded.uuid(index), 9 * GIB)
        assert not opens.notices("restarted")


def test_a_driver_that_comes_back_is_read_again(gpus: SimulatedGpus) -> None:
    with DeviceStream(gpus.driver_environment) as stream:
        stream.wait_for_bytes(gpus.uuid(0))
        gpus.state.init_error = VERSION_MISMATCH
        stream.kill_sampler()
        stream.wait(lambda _: stream.notices("driver"), "word of the driver")
        stream.wait(lambda _: stream.reading(gpus.uuid(0), "used_bytes").state == "stale", "an old reading")
        gpus.state.init_error = 0
        stream.wait_for_bytes(gpus.uuid(0))


def test_xid_errors_have_gpu_number_and_message(gpus: SimulatedGpus) -> None:
    with DeviceStream(gpus.driver_environment) as stream:
        stream.wait_for_bytes(gpus.uuid(0))
        # The thread that waits for events registers right after the first readings.
        wait_until(lambda: gpus.calls("EVENT") == 2, what="registration")
        gpus.xid(1, 79)
        stream.wait(lambda _: stream.notices("xid"), "the XID error")
        (notice,) = stream.notices("xid")
        assert (notice.uuid, notice.xid, notice.severity) == (gpus.uuid(1), 79, "error")
        assert "XID 79, the GPU has fallen off the bus" in notice.message and notice.advice


def test_refused_metrics_are_unsupported(gpus: SimulatedGpus) -> None:
    gpus.fail(0, "POWER", NOT_SUPPORTED)
    with DeviceStream(gpus.driver_environment) as stream:
        stream.wait_for_bytes(gpus.uuid(0))
        reading = stream.reading(gpus.uuid(0), "power_w")
        assert (reading.state, reading.value, reading.unit) == ("unsupported", None, "W")
        assert stream.reading(gpus.uuid(1), "power_w").value == 70.0


def test_mig_instances_have_memory_of_their_own(gpus: SimulatedGpus) -> None:
    gpus.split_into_mig(0, ("3g.40gb", 40 * GIB))
    gpus.device(2).used = 3 * GIB
    with DeviceStream(gpus.driver_environment) as stream:
        stream.wait_for_bytes(gpus.uuid(2))
        gpu, instance, other = stream.registry.devices
        assert (gpu.mig, instance.parent, other.parent) == (True, gpu.uuid, None)
        assert instance.capabilities == ["used_bytes"]
        assert stream.reading(instance.uuid, "used_bytes").value == 3 * GIB
        assert stream.reading(instance.uuid, "utilisation").state == "unsupported"


def test_a_leased_gpu_is_read_once_a_second(gpus: SimulatedGpus) -> None:
    path = lease_path(gpus.uuid(0))
    path.parent.mkdir(parents=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.write(handle, b"/runs/20261121-101500-gpt-ddp-1a2b")
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        with DeviceStream(gpus.driver_environment) as stream:
            stream.wait_for_bytes(gpus.uuid(0))
            before = [gpus.device(index).calls[2] for index in (0, 1)]
            wait_until(lambda: gpus.device(1).calls[2] - before[1] >= 30, what="three seconds of readings")
            assert gpus.device(0).calls[2] - before[0] in (2, 3, 4)
            assert stream.reading(gpus.uuid(0), "used_bytes").state == "value"
            stream.wait(lambda board: board.processes(gpus.uuid(0)).run, "the name of the run")
    finally:
        os.close(handle)


@pytest.mark.parametrize("code", [DRIVER_NOT_LOADED, VERSION_MISMATCH])
def test_a_stream_without_a_driver_is_one_notice(gpus: SimulatedGpus, code: int) -> None:
    gpus.state.init_error = code
    done = rankdeck_in_process("devices", "--follow", "--json", env=gpus.driver_environment, exit_code=3)
    (line,) = done.lines
    assert (line["kind"], line["code"]) == ("notice", "no-driver" if code == DRIVER_NOT_LOADED else "driver")
    output = rankdeck_in_process("devices", "--follow", env=gpus.driver_environment, exit_code=3).err
    assert line["message"] in output and "Traceback" not in output


def test_the_stream_labels_simulated_gpus(gpus: SimulatedGpus) -> None:
    with DeviceStream(gpus.simulated_environment) as stream:
        stream.wait_for_bytes(gpus.uuid(0))
        devices_line = stream.registry.devices_line
        assert (
            isinstance(devices_line, DevicesLine)
            and devices_line.simulated
            and devices_line.driver == "580.00.00"
        )
        assert all(device.simulated for device in devices_line.devices)
        assert not stream.garbage


def test_a_hanging_call_is_killed(gpus: SimulatedGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in gpus.driver_environment.items():
        monkeypatch.setenv(name, value)
    gpus.delay("POWER", 3600.0, 1)
    sampler = SamplerProcess(piped=True, hang_timeout_s=1.0)
    try:
        notices = wait_until(lambda: (sampler.wait_for_lines(0.1) and None) or sampler.poll(), what="its end")
        assert "has not answered" in notices[0].message
        assert f"{gpus.uuid(1)} (power_w)" in notices[0].message
    finally:
        sampler.stop()


def test_the_table_is_printed_once_a_second(gpus: SimulatedGpus) -> None:
    gpus.device(1).used = 80_000 * MIB
    with start_rankdeck("devices", "--follow", env=gpus.driver_environment) as command:
        assert command.stdout is not None
        lines = [command.stdout.readline() for _ in range(6)]
        command.terminate()
    assert sum("78.1 GiB" in line for line in lines) == 2
