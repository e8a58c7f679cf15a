"""Lines of a sampler, as tests of views feed them: machines with GPUs that are busy, lost or split."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rankdeck.telemetry.readings import (
    METRICS,
    Device,
    DeviceProcesses,
    DeviceReadings,
    DevicesLine,
    NoticeLine,
    ProcessesLine,
    ProcessUse,
    Reading,
    SampleLine,
)
from rankdeck_app.state.gpus import Gpus

GIB = 1 << 30
USUAL: Mapping[str, float] = {
    "used_bytes": 17 * GIB,
    "utilisation": 0.91,
    "memory_utilisation": 0.4,
    "power_w": 512.0,
    "energy_j": 1000.0,
    "temperature_c": 64.0,
    "sm_clock_mhz": 1980.0,
    "memory_clock_mhz": 2619.0,
    "throttle": 0,
    "ecc_errors": 0,
}


def gpu(index: int, **more: object) -> Device:
    return Device(
        uuid=f"GPU-{index:04x}", index=index, name="NVIDIA H100 80GB HBM3", total_bytes=80 * GIB,
        driver_bytes=GIB // 2, power_limit_w=700.0, **more,
    )  # type: ignore[arg-type]  # fmt: skip


def mig_instance(index: int, instance: int, parent: Device) -> Device:
    return Device(
        uuid=f"MIG-{index:04x}-{instance:04x}", index=index, name=f"{parent.name} MIG 3g.40gb",
        total_bytes=40 * GIB, parent=parent.uuid,
    )  # fmt: skip


def devices(*listed: Device) -> DevicesLine:
    return DevicesLine(t=time.time(), devices=list(listed), driver="580.00.00")


def sample(uuid: str, states: Mapping[str, str] | None = None, **values: float) -> SampleLine:
    """Readings of one device; `states` names metrics that have no value, and why."""
    readings = {name: Reading(value, unit=METRICS[name].unit) for name, value in values.items()}
    for name, state in (states or {}).items():
        readings[name] = Reading(state=state, unit=METRICS[name].unit)  # type: ignore[arg-type]
    return SampleLine(t=time.time(), devices=[DeviceReadings(uuid, readings)])


def samples(uuids: Sequence[str], **values: float) -> SampleLine:
    """The same readings of many devices."""
    readings = {name: Reading(value, unit=METRICS[name].unit) for name, value in values.items()}
    return SampleLine(t=time.time(), devices=[DeviceReadings(uuid, readings) for uuid in uuids])


def processes(users: Mapping[str, Sequence[ProcessUse]], run: str | None = None) -> ProcessesLine:
    rows = [
        DeviceProcesses(uuid, list(processes_of_gpu), run=run) for uuid, processes_of_gpu in users.items()
    ]
    return ProcessesLine(t=time.time(), devices=rows)


def notice(
    code: str, uuid: str | None = None, message: str = "Something happened.", **more: object
) -> NoticeLine:
    return NoticeLine(t=time.time(), code=code, uuid=uuid, message=message, **more)  # type: ignore[arg-type]


def feed_machine(
    gpus: Gpus, count: int, busy: Sequence[int] = (), *, simulated: bool = False, first_gib: int = 17
) -> None:
    """A desktop holds `first_gib` + i GiB of GPU i, somebody else's python 1 GiB of it on each busy one."""
    gpu_lines = [gpu(index, simulated=simulated) for index in range(count)]
    gpus.add_line(devices(*gpu_lines))
    for index, device in enumerate(gpu_lines):
        values = dict(USUAL) | {"used_bytes": (first_gib + index) * GIB}
        gpus.add_line(sample(device.uuid, {"fan": "unsupported"}, **values))
    other = [ProcessUse(4711, "python", GIB)]
    users = {}
    for index, device in enumerate(gpu_lines):
        desktop = ProcessUse(100 + index, "desktop", (first_gib + index - 1) * GIB, "graphics")
        users[device.uuid] = [desktop, *(other if device.index in busy else [])]
    gpus.add_line(processes(users))
    gpus.update()
