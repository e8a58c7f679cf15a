"""What is true of every device now, folded from lines (readings.py): for the app's cards and for the table.

A reading keeps the moment it was taken and turns stale by itself, so a sampler that hangs or is gone never
leaves a number on screen that looks new. A device that vanished stays, marked as lost.
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
    """Feed it lines in order, with the moment they came (CLOCK_MONOTONIC seconds).

    `devices` are in nvidia-smi's order, lost ones among them. `devices_line` is the last `devices` line, None
    before the first. `notices` are the last ones, oldest first.
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
        """Whether every device that can be read has been, once."""
        return self.devices_line is not None and all(
            device.uuid in self._processes or device.lost_at is not None for device in self.devices
        )

    def reading(self, uuid: str, metric: str, now_s: float) -> Reading:
        """The metric as it is known now, with its age; never a value that only looks new."""
        reading, taken_s = self._readings.get(uuid, {}).get(metric, (_NEVER_READ, now_s))
        if reading is _NEVER_READ:
            return reading
        age_s = max(0.0, now_s - taken_s)
        is_old = age_s > METRICS[metric].stale_after_s or uuid in self._lost
        state = "stale" if reading.state == "value" and is_old else reading.state
        return msgspec.structs.replace(reading, state=state, age_s=age_s)

    def processes(self, uuid: str) -> DeviceProcesses:
        """Who was on the device when that was last asked; not known before the first answer."""
        return self._processes.get(uuid) or DeviceProcesses(uuid, state="error")

    def gpus(self, now_s: float, *, keep_stale: bool = False) -> list[GpuStatus]:
        """Every device as it is known now. `keep_stale`: what one slow listing read is not called stale."""
        instances: Counter[str] = Counter()
        found = []
        for device in self.devices:
            instance = None
            if device.parent is not None:
                instance = instances[device.parent]
                instances[device.parent] += 1
            found.append(
                self._gpu_status(device, instance, now_s, keep_stale=keep_stale and device.lost_at is None)
            )
        return found

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
        known = self._readings.setdefault(uuid, {})
        for metric, reading in readings.items():
            if metric in METRICS:
                known[metric] = (reading, now_s - reading.age_s)
        used = readings.get("used_bytes")
        if used is not None and used.state == "value" and used.value is not None:
            self.peak_bytes[uuid] = max(int(used.value), self.peak_bytes.get(uuid, 0))

    def _replace_devices(self, line: DevicesLine) -> None:
        """The new list, and what is no longer there, as lost; a MIG split that was undone is not, nor a GPU
        that did not even tell its UUID before."""
        known = {device.uuid: device for device in self.devices}
        by_index = {device.index for device in self.devices if device.parent is None}
        devices = []
        for device in line.devices:
            before = known.get(device.uuid)
            if device.lost_at is not None and before is None and device.index in by_index:
                continue  # a lost GPU cannot tell even its UUID; it is known from before
            if device.lost_at is not None and before is not None:
                lost_at = before.lost_at or device.lost_at
                device = msgspec.structs.replace(before, lost_at=lost_at, why=device.why)
            devices.append(device)
        there = {device.uuid for device in devices}
        reasons = {device.index: device.why for device in line.devices if device.parent is None}
        gone = [
            msgspec.structs.replace(
                device, lost_at=device.lost_at or line.t, why=reasons.get(device.index) or device.why
            )
            for device in self.devices
            if device.uuid not in there
            and device.parent not in there
            and not (device.uuid == placeholder_uuid(device.index) and device.index in reasons)
        ]
        self.devices_line = line
        self._store_devices([*devices, *gone])

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
        """In nvidia-smi's order, MIG instances after the GPU that they are parts of."""
        self.devices = sorted(devices, key=lambda device: (device.index, device.parent is not None))
        self._lost = {device.uuid for device in devices if device.lost_at is not None}
