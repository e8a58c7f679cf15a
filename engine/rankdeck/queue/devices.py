"""The devices that the queue hands out, and why a device is not free.

GPUs are those of the machine. CPU slots are places for virtual devices, because nothing else limits how many
rehearsals run at once. A run that the queue has started holds the lease of each of its devices. A run that a
user has started directly holds the leases of its GPUs, and its virtual devices occupy slots without a lease.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
import psutil

from rankdeck.base.files import lease_holder, read_toml_or_empty
from rankdeck.base.home import config_dir
from rankdeck.base.phrases import phrase
from rankdeck.run_dir import RunDir
from rankdeck.telemetry.gpu_status import GpuRefusal, GpuStatus
from rankdeck.telemetry.readings import ProcessUse
from rankdeck.telemetry.registry import DeviceRegistry
from rankdeck.telemetry.sampler_process import SamplerProcess

QUIET_S = 10.0
"""How long no other program must have used a GPU before it counts as free: a shell that runs one script after
another must not lose its GPU in between."""
_SLOT_PREFIX = "cpu-slot-"
_REFUSALS = {
    GpuRefusal.SIMULATED: phrase("is simulated"),
    GpuRefusal.LOST: phrase("is lost"),
    GpuRefusal.DUPLICATE_UUID: phrase("has no unique UUID"),
    GpuRefusal.MIG_ENABLED: phrase("is split into MIG instances"),
}


class QueueDevice(msgspec.Struct, frozen=True):
    """A GPU or a CPU slot. `lease`: a GPU's UUID or the slot's name, after which the lease file is named.

    `index`: a GPU's index as users type it. `is_instance`: the device is a MIG instance, which only a run
    that names it gets. `free_bytes`: memory that no process uses; None for a slot, or if it is unknown.
    `busy`: why no run can start on the device now, such as "is used by the run NAME"; empty if one can.
    """

    lease: str
    label: str
    kind: Literal["cpu", "gpu"]
    index: str
    is_instance: bool = False
    free_bytes: int | None = None
    busy: str = ""


def num_cpu_slots() -> int:
    """Return the number of CPU slots: `queue.cpu_slots` of the user's settings; half of the cores by
    default, at least 1."""
    table = read_toml_or_empty(config_dir() / "settings.toml")
    number = table.get("queue.cpu_slots")
    if isinstance(queue := table.get("queue"), dict):
        number = queue.get("cpu_slots", number)
    if isinstance(number, int) and not isinstance(number, bool) and number >= 1:
        return number
    return max(1, len(os.sched_getaffinity(0)) // 2)


def cpu_slots(direct_runs: Sequence[RunDir]) -> list[QueueDevice]:
    """Return the CPU slots; `direct_runs` are running runs that the queue has not started."""
    slots = [_cpu_slot(number) for number in range(num_cpu_slots())]
    for run in direct_runs:
        for _ in range(_num_virtual_devices(run)):
            free = next((i for i, slot in enumerate(slots) if not slot.busy), None)
            if free is None:
                return slots
            slots[free] = msgspec.structs.replace(slots[free], busy=_used_by_run(run.name))
    return slots


def _cpu_slot(number: int) -> QueueDevice:
    name = f"{_SLOT_PREFIX}{number}"
    # A slot is leased like a GPU, with its name in place of the UUID.
    holder = lease_holder(name)
    return QueueDevice(
        name,
        phrase("CPU slot {number}", number=number),
        "cpu",
        str(number),
        busy=_used_by_run(Path(holder).name) if holder else "",
    )


def _used_by_run(name: str) -> str:
    return phrase("is used by the run {run}", run=name)


def _num_virtual_devices(run: RunDir) -> int:
    try:
        return sum(device.kind == "virtual" for device in run.devices())
    except msgspec.ValidationError:
        return 0


class GpuTracker:
    """Reads the GPUs while entries wait for them, and remembers when other programs used them.

    A sampler process runs from the first `poll` until `close`.
    """

    def __init__(self, quiet_s: float = QUIET_S) -> None:
        self._quiet_s = quiet_s
        self._sampler: SamplerProcess | None = None
        self._registry = DeviceRegistry()
        self._used_since: dict[str, float] = {}
        """When another program was first observed on a GPU (Unix seconds), by UUID."""
        self._last_used: dict[str, tuple[float, str]] = {}
        """(when another program was last observed, what it was) by UUID."""

    def poll(self, timeout_s: float) -> list[QueueDevice] | None:
        """Wait for readings for at most `timeout_s` and return the GPUs; None until they have been read.

        Empty if the machine has no GPU or no driver.
        """
        if self._sampler is None:
            self._sampler = SamplerProcess(["--calm"], piped=True)
        lines = [*self._sampler.wait_for_lines(timeout_s), *self._sampler.poll()]
        for line in lines:
            self._registry.feed(line, time.monotonic())
        if self._sampler.exit_code is not None:
            return []
        if self._registry.devices_line is None or not self._registry.is_read:
            return None
        gpus = self._registry.gpus(time.monotonic())
        return [self._device(gpu, time.time()) for gpu in gpus]

    def close(self) -> None:
        """Stop the sampler and discard the readings; what used the GPUs is remembered."""
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler, self._registry = None, DeviceRegistry()

    def _device(self, gpu: GpuStatus, now: float) -> QueueDevice:
        is_known = gpu.used_bytes is not None and gpu.total_bytes is not None
        free_bytes = max(0, (gpu.total_bytes or 0) - (gpu.used_bytes or 0)) if is_known else None
        busy = self._busy(gpu, now)
        is_instance = gpu.parent is not None
        return QueueDevice(gpu.uuid, gpu.label, "gpu", str(gpu.index), is_instance, free_bytes, busy)

    def _busy(self, gpu: GpuStatus, now: float) -> str:
        # Not the sampler's reading of the lease, which may be a second old.
        if gpu.refusal is not None and gpu.refusal is not GpuRefusal.LEASED:
            return _REFUSALS[gpu.refusal]
        if holder := lease_holder(gpu.uuid):
            return _used_by_run(Path(holder).name)
        is_unreadable = gpu.used_bytes is None and gpu.states.get("used_bytes") != "unsupported"
        if is_unreadable or gpu.processes is None:
            return phrase("has no current readings")
        if gpu.compute_processes or gpu.unaccounted_bytes is not None:
            since = self._used_since.setdefault(gpu.uuid, now)
            used = _used_by_program(gpu.compute_processes, since)
            self._last_used[gpu.uuid] = now, used
            return used
        self._used_since.pop(gpu.uuid, None)
        last, used = self._last_used.get(gpu.uuid, (0.0, ""))
        left_s = last + self._quiet_s - now
        return phrase("was in use {seconds:.0f} s ago", seconds=now - last) if left_s > 0 else ""


def _used_by_program(processes: Sequence[ProcessUse], first_observed: float) -> str:
    """Return text such as "is used by python of kim since 14:02"."""
    if not processes:
        return phrase("is used by a program that the driver does not list")
    process = processes[0]
    since = time.strftime("%H:%M", time.localtime(_started_at(process) or first_observed))
    name = process.name or phrase("pid {pid}", pid=process.pid)
    if process.user:
        return phrase("is used by {name} of {user} since {since}", name=name, user=process.user, since=since)
    return phrase("is used by {name} since {since}", name=name, since=since)


def _started_at(process: ProcessUse) -> float | None:
    if process.foreign:
        return None
    try:
        return psutil.Process(process.pid).create_time()
    except psutil.Error:
        return None
