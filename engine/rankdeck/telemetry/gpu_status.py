"""One GPU at one moment: the record that `rankdeck devices`, the choice of a run's devices, the doctor and
the app share, with the one set of rules for who may use it.

registry.py makes it of the sampler's lines. A GPU is usable where a rank could run on it, free where nobody
computes on it, and `auto` takes what is both and whole. Words about a refusal are said by whoever refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from rankdeck.telemetry.readings import Device, ProcessUse, is_indexed_uuid, throttle_reasons

DRIVER_OVERHEAD_BYTES = 2**30
"""Memory in use that no process accounts for: up to this much is the driver's and the display's."""
_JSON_KEYS = (
    "index", "uuid", "name", "total_bytes", "used_bytes", "utilisation", "temperature_c", "power_w",
    "processes", "memory_utilisation", "energy_j", "sm_clock_mhz", "memory_clock_mhz", "throttle",
    "fan", "ecc_errors", "ecc_corrected", "performance_state", "pcie_tx_bps", "pcie_rx_bps",
    "max_sm_clock_mhz", "max_memory_clock_mhz", "ecc", "rows_corrected", "rows_uncorrected",
    "rows_pending", "rows_failed", "num_links", "links_up", "power_limit_w", "driver_bytes",
    "parent", "mig", "unified", "host_bytes", "simulated", "state", "lost_at", "why", "states",
    "run", "age_s",
)  # fmt: skip
"""Keys of a row of `rankdeck devices --json`, in order."""
_PROCESS_KEYS = ("pid", "name", "used_bytes", "type", "foreign", "user", "command", "host_bytes")


class GpuRefusal(Enum):
    """Why no run may take a GPU, not even one that names it."""

    SIMULATED = "simulated"
    LOST = "lost"
    DUPLICATE_UUID = "twin"
    MIG_ENABLED = "split"
    LEASED = "held"


class GpuStatus(Device, kw_only=True):
    """A device with its readings; a metric is None where its value is not known, or old.

    `states`: why that is so, of each such metric and of "processes" (unsupported | error | stale).
    `stale_used_bytes`: of memory that was read too long ago. `processes` is None before the device was asked,
    and empty where the driver does not tell them. `run`: the directory of the run that holds its lease.
    `instance`: of a MIG instance its number at its GPU. `age_s` of its oldest reading.
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
        """Unique on its host: "GPU 3", "GPU 3.1" for the second instance of GPU 3."""
        return f"GPU {self.index}" if self.instance is None else f"GPU {self.index}.{self.instance}"

    @property
    def is_lost(self) -> bool:
        return self.lost_at is not None

    @property
    def state(self) -> str:
        """ok | lost; `why`, as the driver says."""
        return "lost" if self.is_lost else "ok"

    @property
    def is_stale(self) -> bool:
        """Whether it is there, and what is known of its memory is old."""
        return not self.is_lost and self.states.get("used_bytes") == "stale"

    @property
    def last_used_bytes(self) -> int | None:
        """The memory in use, however long ago it was read."""
        return self.stale_used_bytes if self.used_bytes is None else self.used_bytes

    @property
    def has_duplicate_uuid(self) -> bool:
        """Whether nothing can tell it from another: the driver tells the UUID of that for it, or none."""
        return is_indexed_uuid(self.uuid)

    @property
    def run_name(self) -> str:
        """What the run that holds it is called; empty where none does."""
        return "" if self.run is None else Path(self.run).name

    @property
    def compute_processes(self) -> list[ProcessUse]:
        """Processes that compute on it; windows and desktops are in nobody's way."""
        return [process for process in self.processes or () if process.type == "compute"]

    @property
    def unaccounted_bytes(self) -> int | None:
        """What is in use by nobody that the driver names (processes of other containers).

        None where nothing much is, where a process does not tell its bytes, and where it cannot be told: a
        split GPU's processes are named at its instances.
        """
        if self.last_used_bytes is None or self.mig or self.processes is None:
            return None
        known = [process.used_bytes for process in self.processes if process.used_bytes is not None]
        rest = self.last_used_bytes - sum(known)
        return rest if len(known) == len(self.processes) and rest > DRIVER_OVERHEAD_BYTES else None

    @property
    def refusal(self) -> GpuRefusal | None:
        """Why no run may take it, None where one may."""
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
        """Whether a rank could run on it, were it not for another run."""
        return self.refusal in (None, GpuRefusal.LEASED)

    @property
    def is_in_gpu_all(self) -> bool:
        """Whether `gpu:all` means it: of MIG instances a run can use only one."""
        return self.is_usable and self.parent is None

    @property
    def is_free(self) -> bool:
        """Whether it is there and nobody computes on it."""
        is_used = bool(self.compute_processes) or self.unaccounted_bytes is not None
        return not (self.is_lost or self.mig or is_used) and self.run is None

    @property
    def is_available(self) -> bool:
        """Whether `auto` takes it."""
        return self.is_in_gpu_all and self.is_free

    @property
    def slowed_by(self) -> list[str]:
        """What lowers the clocks, in words."""
        return throttle_reasons(self.throttle or 0)

    def as_json(self) -> dict[str, object]:
        """The row of `rankdeck devices --json`."""
        processes = [_process_row(process) for process in self.processes or ()]
        row = {key: getattr(self, key) for key in _JSON_KEYS}
        return row | {"processes": processes, "kind": "gpu", "slowed_by": self.slowed_by}


def _process_row(process: ProcessUse) -> dict[str, object]:
    return {"kind" if key == "type" else key: getattr(process, key) for key in _PROCESS_KEYS}


class _ProcessRow(ProcessUse):
    """A process as `as_json` names what is known of it."""

    type: str = msgspec.field(default="compute", name="kind")


class _GpuRow(GpuStatus, kw_only=True):
    processes: Sequence[_ProcessRow] | None = None


def parse_gpu_rows(rows: Any) -> list[GpuStatus]:
    """What `rankdeck devices --json` has said on another host. Raises: msgspec.ValidationError."""
    return [*msgspec.convert(rows, list[_GpuRow])]
