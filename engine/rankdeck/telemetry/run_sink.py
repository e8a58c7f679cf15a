"""Convert the sampler's lines to events of a run (events/sampler.<attempt>.jsonl) that identify devices by
their indices in the run.

Utilisation is written as often as it is read; unchanged memory is written once a second. An event's `missing`
lists the metrics that a device cannot report; it is written whenever this list changes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.base.files import wait_for_folder
from rankdeck.base.phrases import phrase
from rankdeck.run_dir import RunDir
from rankdeck.telemetry.host import virtual_uuid
from rankdeck.telemetry.readings import (
    METRICS,
    DeviceProcesses,
    DeviceReadings,
    DevicesLine,
    NoticeLine,
    ProcessesLine,
    SampleLine,
    SamplerLine,
)

# Memory does not change between steps with a caching allocator. At 10 Hz it would be some 280 MB a day for 8
# devices.
MEMORY_INTERVAL_S = 1.0
RAISE_INTERVAL_S = 60.0
"""Minimum time between two problem reports about a GPU that is repeatedly lost and found again."""
_SAMPLE_FIELDS = frozenset(events.DeviceSample.__struct_fields__)


class RunSink:
    """Writer of the sampler's events for one attempt of a run; it continues the file of an earlier sampler.

    `pids` are the processes of this host's ranks, in rank order. `first` is the index in the run of this
    host's first device, and also the number of this host's first rank.
    """

    def __init__(self, run: Path, attempt: int, pids: Sequence[int], first: int = 0) -> None:
        wait_for_folder(run)
        directory = RunDir(run)
        devices = directory.devices()
        self._index = {device.uuid or virtual_uuid(device.index): first + device.index for device in devices}
        self._names = {first + device.index: device.name for device in devices}
        self.uuids = list(self._index)
        self.kind = devices[0].kind if devices else "gpu"
        self._writer = directory.writer("sampler", attempt)
        self._raised_s: dict[tuple[str, int | None], float] = {}
        self._ranks = {pid: rank for rank, pid in enumerate(pids, first)}
        self._written_bytes: dict[str, tuple[float | int | None, float]] = {}
        self._missing: dict[str, dict[str, str]] = {}
        self._utilisation_s: dict[str, float] = {}
        self._interval_s = 0.0

    def __call__(self, line: SamplerLine) -> None:
        match line:
            case DevicesLine():
                self._write_device_changes(line)
            case SampleLine():
                self._write_sample(line)
            case ProcessesLine():
                rows = [row for entry in line.devices if (row := self._process_sample(entry)) is not None]
                if rows:
                    self._writer.write(events.Sample(devices=rows, interval_s=self._interval_s))
            case NoticeLine():
                self._write_notice(line)

    def _write_device_changes(self, line: DevicesLine) -> None:
        """Report the run's missing or skipped devices as lost; after a restart of the sampler, report the
        run's other devices as back."""
        there = {device.uuid for device in line.devices if device.lost_at is None}
        for uuid in self.uuids:
            name = self._names[self._index[uuid]]
            if uuid not in there:
                message = phrase("{device} ({uuid}) can no longer be read.", device=name, uuid=uuid)
                self._write_notice(NoticeLine(t=line.t, code="lost", uuid=uuid, message=message))
            elif self._writer.is_continued:
                message = phrase("{device} ({uuid}) can be read again.", device=name, uuid=uuid)
                self._write_notice(NoticeLine(t=line.t, code="back", uuid=uuid, message=message))

    def _write_sample(self, line: SampleLine) -> None:
        now_s = time.monotonic()
        rows = [row for entry in line.devices if (row := self._device_sample(entry, now_s)) is not None]
        if not rows:
            return
        for entry in line.devices:
            if "utilisation" in entry.readings:
                before_s = self._utilisation_s.get(entry.uuid, now_s - 1 / METRICS["utilisation"].hz)
                self._interval_s = round(now_s - before_s, 4)
                self._utilisation_s[entry.uuid] = now_s
        self._writer.write(events.Sample(devices=rows, interval_s=self._interval_s))

    def _device_sample(self, entry: DeviceReadings, now_s: float) -> events.DeviceSample | None:
        """Return the readings to write; memory that has not changed is included only every
        MEMORY_INTERVAL_S."""
        values = {name: r.value for name, r in entry.readings.items() if r.state == "value"}
        missing = self._changed_missing(entry)
        used = values.get("used_bytes")
        if used is not None:
            before, at_s = self._written_bytes.get(entry.uuid, (None, 0.0))
            if used == before and now_s - at_s < MEMORY_INTERVAL_S:
                del values["used_bytes"]
            else:
                self._written_bytes[entry.uuid] = used, now_s
        if not values and missing is None:
            return None
        row = events.DeviceSample(device=self._index[entry.uuid], missing=missing)
        for name in values.keys() & _SAMPLE_FIELDS:
            setattr(row, name, values[name])
        return row

    def _changed_missing(self, entry: DeviceReadings) -> dict[str, str] | None:
        stored = self._missing.get(entry.uuid, {})
        now = {name: value for name, value in stored.items() if name not in entry.readings}
        for name, reading in entry.readings.items():
            if reading.state != "value":
                now[name] = ": ".join(filter(None, (reading.state, reading.detail)))
        if self.kind == "virtual" or now == stored:
            return None
        self._missing[entry.uuid] = now
        return now

    def _process_sample(self, entry: DeviceProcesses) -> events.DeviceSample | None:
        """Return the processes on the device, with their ranks; None if they are unknown, or in a
        rehearsal."""
        if entry.processes is None or self.kind == "virtual":
            return None
        rows = [
            events.ProcessUse(
                process.pid,
                process.name,
                process.used_bytes,
                process.type,
                process.foreign,
                self._rank_of(process.pid),
            )
            for process in entry.processes
        ]
        return events.DeviceSample(device=self._index[entry.uuid], processes=rows)

    def _rank_of(self, pid: int) -> int | None:
        """Return the rank whose process has this `pid`, or leads the session of the process with this `pid`;
        None if there is no such rank."""
        try:
            return self._ranks.get(pid, self._ranks.get(os.getsid(pid)))
        except OSError:
            return None

    def _write_notice(self, notice: NoticeLine) -> None:
        index = self._index.get(notice.uuid or "")
        if notice.uuid is not None and index is None:
            return
        if self.kind == "virtual" and notice.code == "lost":
            return  # the supervisor reports ranks that have ended
        self._writer.write(
            events.DeviceNotice(code=notice.code, message=notice.message, device=index, xid=notice.xid)
        )
        kind, now_s = (notice.code, index), time.monotonic()
        is_new = (
            notice.code == "xid" or now_s - self._raised_s.get(kind, -RAISE_INTERVAL_S) >= RAISE_INTERVAL_S
        )
        if is_new and notice.code in ("lost", "xid", "no-driver", "driver"):
            self._raised_s[kind] = now_s
            code = {"lost": "gpu-lost", "xid": "gpu-error"}.get(notice.code, notice.code)
            # Only a warning: the ranks report whether the run fails because of it.
            advice = None if notice.advice is None else notice.phrase_of(notice.advice)
            message = notice.phrase_of(notice.message)
            problem = Problem(code, message, advice=advice, severity="warning")
            self._writer.write(events.ProblemRaised(problem=problem), sync=True)
