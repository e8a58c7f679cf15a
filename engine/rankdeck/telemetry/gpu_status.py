"""Status of one GPU at one moment, and the single set of rules that decides which runs may use it.

`rankdeck devices`, the choice of a run's devices, the doctor and the app share this status. registry.py
builds it from the sampler's lines. A GPU is usable if a rank could run on it, and free if no process computes
on it; `auto` takes whole GPUs that are usable and free. Code that refuses a GPU writes its own message.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from rankdeck.telemetry.readings import Device, ProcessUse, is_indexed_uuid, throttle_reasons

DRIVER_OVERHEAD_BYTES = 2**30
"""Maximum amount of memory that is attributed to the driver and the display if no listed process uses it."""
_JSON_KEYS = (
    "index", "uuid", "name", "total_bytes", "used_bytes", "utilisation", "temperature_c", "power_w",
    "processes", "memory_utilisation", "energy_j", "sm_clock_mhz", "memory_clock_mhz", "throttle",
    "fan", "ecc_errors", "ecc_corrected", "performance_state", "pcie_tx_bps", "pcie_rx_bps",
    "max_sm_clock_mhz", "max_memory_clock_mhz", "ecc", "rows_corrected", "rows_uncorrected",
    "rows_pending", "rows_failed", "num_links", "links_up", "power_limit_w", "driver_bytes",
    "parent", "mig", "unified", "host_bytes", "simulated", "state", "lost_at", "why", "states",
    "run", "age_s",
)  # fmt: skip
"""Keys of a row of `rankdeck devices --json`, in the order of the output."""
_PROCESS_KEYS = ("pid", "name", "used_bytes", "type", "foreign", "user", "command", "host_bytes")


class GpuRefusal(Enum):
    """Reasons why no run can take a GPU, even if its configuration names the GPU."""

    SIMULATED = "simulated"
    LOST = "lost"
    DUPLICATE_UUID = "twin"
    MIG_ENABLED = "split"
    LEASED = "held"


class GpuStatus(Device, kw_only=True):
    """A device with its readings; a metric is None if its value is unknown or stale.

    `states`: the reason (unsupported | error | stale) for each metric that is None, and for "processes" if
    they are unknown. `stale_used_bytes`: the used memory, if the reading is stale. `processes` is None before
    the first query, and empty if the driver does not report them. `run`: the directory of the run that holds
    the device's lease. `instance`: a MIG instance's number on its GPU. `age_s`: age of the oldest reading.
    """

    used_bytes: int | None = None
    utilisation: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    memory_utilisation: float | None = None
    energy_j: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    throttle: int | None = None
    fan: float | None = None
    ecc_errors: int | None = None
    ecc_corrected: int | None = None
    performance_state: int | None = None
    pcie_tx_bps: int | None = None
    pcie_rx_bps: int | None = None
    stale_used_bytes: int | None = None
    processes: Sequence[ProcessUse] | None = None
    states: dict[str, str] = msgspec.field(default_factory=dict)
    run: str | None = None
    instance: int | None = None
    age_s: float | None = None

    @property
    def label(self) -> str:
        """Label unique on its host: "GPU 3", or "GPU 3.1" for the second instance of GPU 3."""
        return f"GPU {self.index}" if self.instance is None else f"GPU {self.index}.{self.instance}"

    @property
    def is_lost(self) -> bool:
        return self.lost_at is not None

    @property
    def state(self) -> str:
        """ "ok" or "lost"; if lost, `why` holds the driver's message."""
        return "lost" if self.is_lost else "ok"

    @property
    def is_stale(self) -> bool:
        """Whether the device's memory reading is stale; False for a lost device."""
        return not self.is_lost and self.states.get("used_bytes") == "stale"

    @property
    def last_used_bytes(self) -> int | None:
        """The last reading of used memory, even if it is stale."""
        return self.stale_used_bytes if self.used_bytes is None else self.used_bytes

    @property
    def has_duplicate_uuid(self) -> bool:
        """Whether the device cannot be distinguished from another one, because the driver reports the same
        UUID for both, or no UUID for this one."""
        return is_indexed_uuid(self.uuid)

    @property
    def run_name(self) -> str:
        """Name of the run that holds the device's lease; empty if there is no such run."""
        return "" if self.run is None else Path(self.run).name

    @property
    def compute_processes(self) -> list[ProcessUse]:
        """Processes that compute on the device; those that only draw windows or a desktop do not count."""
        return [process for process in self.processes or () if process.type == "compute"]

    @property
    def unaccounted_bytes(self) -> int | None:
        """Memory used by processes that the driver does not list, such as processes of other containers.

        None if the amount is small, if the memory of a listed process is unknown, and for a GPU that is split
        into MIG instances, because its processes are listed under the instances.
        """
        # A GPU whose processes were not queried yet counts as free: the first device list comes before the
        # first process list, and a first draft would otherwise become a rehearsal.
        if self.last_used_bytes is None or self.mig or self.processes is None:
            return None
        known_bytes = [process.used_bytes for process in self.processes if process.used_bytes is not None]
        rest = self.last_used_bytes - sum(known_bytes)
        return rest if len(known_bytes) == len(self.processes) and rest > DRIVER_OVERHEAD_BYTES else None

    @property
    def refusal(self) -> GpuRefusal | None:
        """The reason why no run can take the device; None if a run can."""
        if self.simulated:
            return GpuRefusal.SIMULATED
        if self.is_lost:
            return GpuRefusal.LOST
        if self.has_duplicate_uuid:
            return GpuRefusal.DUPLICATE_UUID
        if self.mig:
            return GpuRefusal.MIG_ENABLED
        return GpuRefusal.LEASED if self.run is not None else None

    @property
    def is_usable(self) -> bool:
        """Whether a rank could run on the device, regardless of other runs on it."""
        return self.refusal in (None, GpuRefusal.LEASED)

    @property
    def is_in_gpu_all(self) -> bool:
        """Whether `gpu:all` includes the device. MIG instances are excluded, because a run can use only one
        instance."""
        return self.is_usable and self.parent is None

    @property
    def is_free(self) -> bool:
        """Whether no run or process uses the device, and it is neither lost nor split into MIG instances."""
        is_used = bool(self.compute_processes) or self.unaccounted_bytes is not None
        return not (self.is_lost or self.mig or is_used) and self.run is None

    @property
    def is_available(self) -> bool:
        """Whether the device selection `auto` can include the device."""
        return self.is_in_gpu_all and self.is_free

    @property
    def slowed_by(self) -> list[str]:
        """Descriptions of the reasons why the device's clocks are lowered."""
        return throttle_reasons(self.throttle or 0)

    def as_json(self) -> dict[str, object]:
        """Return the device's row in the output of `rankdeck devices --json`."""
        processes = [_process_row(process) for process in self.processes or ()]
        row = {key: getattr(self, key) for key in _JSON_KEYS}
        return row | {"processes": processes, "kind": "gpu", "slowed_by": self.slowed_by}


def _process_row(process: ProcessUse) -> dict[str, object]:
    return {"kind" if key == "type" else key: getattr(process, key) for key in _PROCESS_KEYS}


class _ProcessRow(ProcessUse):
    """A process as a JSON object, with the key names that `as_json` uses."""

    type: str = msgspec.field(default="compute", name="kind")


class _GpuRow(GpuStatus, kw_only=True):
    processes: Sequence[_ProcessRow] | None = None


def parse_gpu_rows(rows: Any) -> list[GpuStatus]:
    """Parse the output of `rankdeck devices --json` from another host.

    Raises:
        msgspec.ValidationError: the rows have another structure.
    """
    return [*msgspec.convert(rows, list[_GpuRow])]
