"""Aggregate the sampler's lines (readings.py) into the current state of every device, for the app and the
command line's table.

Each reading is stored with the time at which it was taken and becomes stale with age, so no outdated number
looks current on screen after a sampler has hung or ended. A device that disappears stays in the list, marked
as lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from rankdeck.base.phrases import tr_noop
from rankdeck.telemetry.gpu_status import GpuStatus
from rankdeck.telemetry.readings import (
    METRICS,
    AnySamplerLine,
    Device,
    DeviceProcesses,
    DevicesLine,
    NoticeLine,
    ProcessesLine,
    Reading,
    SampleLine,
    placeholder_uuid,
)

NOT_READ = tr_noop("not read yet")
_NEVER_READ = Reading(state="error", detail=NOT_READ)
_MAX_NOTICES = 100


class DeviceRegistry:
    """Current state of all devices. Pass it the lines in order of arrival, with their arrival times
    (CLOCK_MONOTONIC seconds).

    `devices` are in nvidia-smi's order, including lost ones. `devices_line` is the last `devices` line (None
    before the first line). `notices` are the most recent notices, oldest first.
    """

    def __init__(self) -> None:
        self.devices: list[Device] = []
        self.devices_line: DevicesLine | None = None
        self.notices: list[NoticeLine] = []
        self.peak_bytes: dict[str, int] = {}
        self._lost: set[str] = set()
        self._readings: dict[str, dict[str, tuple[Reading, float]]] = {}
        self._processes: dict[str, DeviceProcesses] = {}

    def feed(self, line: AnySamplerLine, now_s: float) -> None:
        match line:
            case SampleLine():
                for entry in line.devices:
                    self._add_readings(entry.uuid, entry.readings, now_s)
            case ProcessesLine():
                self._processes |= {entry.uuid: entry for entry in line.devices}
            case DevicesLine():
                self._replace_devices(line)
            case NoticeLine():
                self.notices = [*self.notices[1 - _MAX_NOTICES :], line]
                if line.uuid is not None and line.code in ("lost", "back"):
                    self._set_lost(line.uuid, line.t if line.code == "lost" else None)

    @property
    def is_read(self) -> bool:
        """Whether every device that is not lost has been read at least once."""
        return self.devices_line is not None and all(
            device.uuid in self._processes or device.lost_at is not None for device in self.devices
        )

    def reading(self, uuid: str, metric: str, now_s: float) -> Reading:
        """Return the last reading of a metric with its age; an old value is marked as stale."""
        reading, taken_s = self._readings.get(uuid, {}).get(metric, (_NEVER_READ, now_s))
        if reading is _NEVER_READ:
            return reading
        age_s = max(0.0, now_s - taken_s)
        is_old = age_s > METRICS[metric].stale_after_s or uuid in self._lost
        state = "stale" if reading.state == "value" and is_old else reading.state
        return msgspec.structs.replace(reading, state=state, age_s=age_s)

    def processes(self, uuid: str) -> DeviceProcesses:
        """Return the processes from the last query of the device; unknown before the first query."""
        return self._processes.get(uuid) or DeviceProcesses(uuid, state="error")

    def gpus(self, now_s: float, *, keep_stale: bool = False) -> list[GpuStatus]:
        """Return the current status of every device. If `keep_stale` is True, stale values are not replaced
        by None: in a slow one-time listing, the first values become stale before the last values arrive."""
        instances: Counter[str] = Counter()
        statuses = []
        for device in self.devices:
            instance = None
            if device.parent is not None:
                instance = instances[device.parent]
                instances[device.parent] += 1
            statuses.append(
                self._gpu_status(device, instance, now_s, keep_stale=keep_stale and device.lost_at is None)
            )
        return statuses

    def _gpu_status(
        self, device: Device, instance: int | None, now_s: float, *, keep_stale: bool
    ) -> GpuStatus:
        values: dict[str, Any] = {}
        states: dict[str, str] = {}
        ages = []
        for name, metric in METRICS.items():
            reading = self.reading(device.uuid, name, now_s)
            if reading.value is not None:
                ages.append(reading.age_s)
            if reading.state == "value" or (keep_stale and reading.state == "stale"):
                values[name] = reading.value
                continue
            # A metric that was not requested is not missing.
            if not (metric.on_request and reading.detail == NOT_READ):
                states[name] = reading.state
            if name == "used_bytes" and reading.state == "stale":
                values["stale_used_bytes"] = reading.value
        on_it = self.processes(device.uuid)
        if on_it.processes is None:
            states["processes"] = on_it.state
        return GpuStatus(
            **msgspec.structs.asdict(device),
            **values,
            states=states,
            processes=on_it.processes or () if keep_stale or device.uuid in self._processes else None,
            run=on_it.run,
            instance=instance,
            age_s=max(ages, default=None),
        )

    def _add_readings(self, uuid: str, readings: dict[str, Reading], now_s: float) -> None:
        stored = self._readings.setdefault(uuid, {})
        for metric, reading in readings.items():
            if metric in METRICS:
                stored[metric] = (reading, now_s - reading.age_s)
        used = readings.get("used_bytes")
        if used is not None and used.state == "value" and used.value is not None:
            self.peak_bytes[uuid] = max(int(used.value), self.peak_bytes.get(uuid, 0))

    def _replace_devices(self, line: DevicesLine) -> None:
        """Store the devices in `line`; earlier devices that are missing from it remain, marked as lost.

        MIG instances are dropped when their GPU is no longer split. A GPU that never reported its UUID is
        dropped when the list contains an entry with the GPU's index.
        """
        by_uuid = {device.uuid: device for device in self.devices}
        by_index = {device.index for device in self.devices if device.parent is None}
        devices = []
        for device in line.devices:
            before = by_uuid.get(device.uuid)
            if device.lost_at is not None and before is None and device.index in by_index:
                continue  # a lost GPU without a UUID; its old entry is kept below
            if device.lost_at is not None and before is not None:
                lost_at = before.lost_at or device.lost_at
                device = msgspec.structs.replace(before, lost_at=lost_at, why=device.why)
            devices.append(device)
        there = {device.uuid for device in devices}
        reasons = {device.index: device.why for device in line.devices if device.parent is None}
        missing = [
            msgspec.structs.replace(
                device, lost_at=device.lost_at or line.t, why=reasons.get(device.index) or device.why
            )
            for device in self.devices
            if device.uuid not in there
            and device.parent not in there
            and not (device.uuid == placeholder_uuid(device.index) and device.index in reasons)
        ]
        self.devices_line = line
        self._store_devices([*devices, *missing])

    def _set_lost(self, uuid: str, lost_at: float | None) -> None:
        self._store_devices(
            [
                msgspec.structs.replace(device, lost_at=lost_at)
                if uuid in (device.uuid, device.parent)
                else device
                for device in self.devices
            ]
        )

    def _store_devices(self, devices: Sequence[Device]) -> None:
        """Store the devices in nvidia-smi's order, each GPU followed by its MIG instances."""
        self.devices = sorted(devices, key=lambda device: (device.index, device.parent is not None))
        self._lost = {device.uuid for device in devices if device.lost_at is not None}
