"""Lines of telemetry there and back, and what is true of devices after them."""

from __future__ import annotations

import pytest

from rankdeck.telemetry.readings import (
    METRICS,
    AnySamplerLine,
    Device,
    DeviceProcesses,
    DeviceReadings,
    DevicesLine,
    NoticeLine,
    ProcessesLine,
    ProcessUse,
    Reading,
    SampleLine,
    decode,
    encode,
    throttle_reasons,
)
from rankdeck.telemetry.registry import DeviceRegistry

GIB = 2**30


def gpu(index: int, **more: object) -> Device:
    return Device(uuid=f"GPU-{index}", index=index, name="H100", total_bytes=80 * GIB, **more)  # type: ignore[arg-type]


def sample(uuid: str, **readings: Reading) -> SampleLine:
    return SampleLine(t=10.0, devices=[DeviceReadings(uuid, readings)])


def registry_after(*lines: AnySamplerLine) -> DeviceRegistry:
    registry = DeviceRegistry()
    for line in lines:
        registry.feed(line, now_s=100.0)
    return registry


@pytest.mark.parametrize(
    "line",
    [
        DevicesLine(t=1.0, devices=[gpu(0, lost_at=3.0), gpu(1)], driver="580.1", simulated=True),
        sample("GPU-0", used_bytes=Reading(5, unit="B"), fan=Reading(state="unsupported")),
        ProcessesLine(t=1.0, devices=[DeviceProcesses("GPU-0", [ProcessUse(7, None, None, foreign=True)])]),
        NoticeLine(t=1.0, code="xid", message="XID 79", uuid="GPU-0", xid=79),
    ],
)
def test_lines_survive_json(line: AnySamplerLine) -> None:
    data = encode(line)
    assert data.endswith(b"}\n") and data.count(b"\n") == 1
    assert decode(data) == line


def test_lines_of_later_versions_are_skipped() -> None:
    assert decode(b'{"kind":"hologram","t":1.0}') is None
    assert decode(b"Segmentation fault") is None


def test_a_reading_becomes_stale_and_keeps_its_value() -> None:
    registry = registry_after(
        DevicesLine(t=1.0, devices=[gpu(0)]), sample("GPU-0", used_bytes=Reading(5, unit="B", age_s=0.5))
    )
    fresh = registry.reading("GPU-0", "used_bytes", 100.25)
    assert (fresh.value, fresh.state, fresh.age_s) == (5, "value", 0.75)
    old = registry.reading("GPU-0", "used_bytes", 103.0)
    assert (old.value, old.state, old.age_s) == (5, "stale", 3.5)
    (status,) = registry.gpus(103.0)
    assert (status.used_bytes, status.last_used_bytes, status.states["used_bytes"]) == (None, 5, "stale")
    (stale,) = registry.gpus(103.0, keep_stale=True)
    assert stale.used_bytes == 5 and "used_bytes" not in stale.states


def test_unread_metrics_have_no_value() -> None:
    registry = registry_after(
        DevicesLine(t=1.0, devices=[gpu(0)]), sample("GPU-0", fan=Reading(state="unsupported"))
    )
    assert registry.reading("GPU-0", "power_w", 100.0).value is None
    assert registry.reading("GPU-0", "fan", 900.0).state == "unsupported"
    assert registry.processes("GPU-0").processes is None


def test_a_missing_gpu_is_lost_with_the_time() -> None:
    registry = registry_after(
        DevicesLine(t=1.0, devices=[gpu(0), gpu(1)]), DevicesLine(t=7.0, devices=[gpu(1)])
    )
    assert [(device.uuid, device.lost_at) for device in registry.devices] == [("GPU-0", 7.0), ("GPU-1", None)]
    registry.feed(DevicesLine(t=9.0, devices=[gpu(0), gpu(1)]), 100.0)
    assert [device.lost_at for device in registry.devices] == [None, None]


def test_a_lost_gpu_has_stale_readings_and_lost_instances() -> None:
    instance = Device(uuid="MIG-0", index=0, name="H100 MIG 1g.10gb", parent="GPU-0")
    registry = registry_after(
        DevicesLine(t=1.0, devices=[gpu(0, mig=True), gpu(1), instance]),
        sample("GPU-0", used_bytes=Reading(5)),
        NoticeLine(t=2.0, code="lost", message="GPU 0 is lost.", uuid="GPU-0"),
    )
    assert [device.uuid for device in registry.devices] == ["GPU-0", "MIG-0", "GPU-1"]
    assert [device.lost_at for device in registry.devices] == [2.0, 2.0, None]
    assert registry.reading("GPU-0", "used_bytes", 100.0).state == "stale"
    registry.feed(NoticeLine(t=3.0, code="back", message="GPU 0 is back.", uuid="GPU-0"), 100.0)
    assert registry.gpus(100.0)[0].used_bytes == 5


def test_an_undone_mig_split_is_not_a_lost_gpu() -> None:
    instance = Device(uuid="MIG-0", index=0, name="H100 MIG 1g.10gb", parent="GPU-0")
    registry = registry_after(
        DevicesLine(t=1.0, devices=[gpu(0, mig=True), instance]), DevicesLine(t=2.0, devices=[gpu(0)])
    )
    assert [device.uuid for device in registry.devices] == ["GPU-0"]


def test_the_peak_is_tracked_since_the_start() -> None:
    registry = registry_after(*(sample("GPU-0", used_bytes=Reading(value)) for value in (5, 9, 2)))
    assert registry.peak_bytes == {"GPU-0": 9}


def test_readings_are_not_stale_before_three_periods() -> None:
    assert all(metric.stale_after_s >= 3 / metric.hz for metric in METRICS.values())


def test_throttle_reasons_have_names() -> None:
    assert throttle_reasons(0x1) == []
    assert throttle_reasons(0x4 | 0x20) == ["power limit", "thermal limit"]


def test_after_a_timeout_used_memory_is_unaccounted() -> None:
    """No run may take it unasked; in the window, which goes on looking, nothing is said of it yet."""
    registry = registry_after(
        DevicesLine(t=1.0, devices=[gpu(0)]), sample("GPU-0", used_bytes=Reading(40 * GIB))
    )
    (listed,), (status,) = registry.gpus(100.0, keep_stale=True), registry.gpus(100.0)
    assert listed.unaccounted_bytes == 40 * GIB and not listed.is_available
    assert status.unaccounted_bytes is None
