"""Read the virtual devices of a rehearsal: how busy each rank's process is.

The memory of a rank's virtual device is reported in the rank's own events, because only the ledger in the
rank's process can measure it. A rank that drives several devices also reports how busy each device's thread
is; a rehearsal with such a rank has no sampler.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import psutil

from rankdeck.telemetry.provider import DeviceLostError, Provider
from rankdeck.telemetry.readings import (
    Device,
    DeviceProcesses,
    DevicesLine,
    ProcessUse,
    Reading,
)

_CHILD_SCAN_S = 2.0
"""Time between two scans for child processes, because each scan reads all processes of the machine."""


def virtual_uuid(index: int) -> str:
    return f"virtual-{index}"


class HostProvider(Provider):
    """Provider for the ranks of a rehearsal. `pids`: the processes of the ranks in rank order; rank i drives
    virtual device i.

    Utilisation is CPU time over wall time since the last reading, divided by the number of threads that a
    rank may use (`threads`). If `include_children` is True, a rank's child processes count as well, because a
    user's script may start its ranks itself.
    """

    def __init__(self, pids: Sequence[int], *, threads: int = 1, include_children: bool = False) -> None:
        self._pids = {virtual_uuid(index): pid for index, pid in enumerate(pids)}
        self._ranks: dict[str, psutil.Process] = {}
        self._include_children = include_children
        self._children: dict[str, tuple[float, list[psutil.Process]]] = {}
        self._previous: dict[str, tuple[float, dict[int, float]]] = {}
        self._threads = max(1, threads)

    def probe(self) -> DevicesLine:
        devices = []
        for index, (uuid, pid) in enumerate(self._pids.items()):
            devices.append(Device(uuid=uuid, index=index, name=f"Virtual {index}", vendor="host"))
            try:
                self._ranks[uuid] = psutil.Process(pid)
            except psutil.Error:
                devices[-1].lost_at = time.time()
            devices[-1].capabilities = ["utilisation"]
        return DevicesLine(devices=devices, provider="host")

    def read(self, uuid: str, metrics: tuple[str, ...]) -> dict[str, Reading]:
        """Read the metrics.

        Raises:
            DeviceLostError: the rank has ended.
        """
        busy = self._utilisation(uuid) if "utilisation" in metrics else None
        return {} if busy is None else {"utilisation": Reading(busy, unit="ratio")}

    def _utilisation(self, uuid: str) -> float | None:
        """Return the utilisation since the last reading; None if this is the first reading."""
        try:
            used = {self._pids[uuid]: _cpu_s(self._ranks[uuid])}
            now_s = time.monotonic()
            for process in self._child_processes(uuid, now_s):
                with contextlib.suppress(psutil.Error):
                    used[process.pid] = _cpu_s(process)
        except (KeyError, psutil.Error):
            raise DeviceLostError("its rank has ended") from None
        before = self._previous.get(uuid)
        self._previous[uuid] = now_s, used
        if before is None or now_s <= before[0]:
            return None
        # A child that is new counts from its first reading on.
        cpu_s = sum(max(0.0, cpu_s - before[1].get(pid, cpu_s)) for pid, cpu_s in used.items())
        return min(1.0, cpu_s / (now_s - before[0]) / self._threads)

    def _child_processes(self, uuid: str, now_s: float) -> list[psutil.Process]:
        """Return the rank's child processes; a new scan for them runs only every `_CHILD_SCAN_S` seconds."""
        if not self._include_children:
            return []
        looked_s, children = self._children.get(uuid, (-_CHILD_SCAN_S, []))
        if now_s - looked_s >= _CHILD_SCAN_S:
            children = self._ranks[uuid].children(recursive=True)
            self._children[uuid] = now_s, children
        return children

    def processes(self, uuid: str) -> DeviceProcesses:
        return DeviceProcesses(uuid, [ProcessUse(self._pids[uuid])])


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
