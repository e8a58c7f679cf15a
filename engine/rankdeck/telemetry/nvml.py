"""Read GPUs through NVML, the library behind nvidia-smi; only the sampler's process uses this provider.

NVML is opened once per process, static facts are read once, and each metric takes one call. A call that a GPU
does not support is remembered and retried once a minute. After a slow call, the same call is paused for 20
times its duration, so that it never takes more than 5 % of the time. nvml_devices.py lists the GPUs, and
nvml_events.py receives XID errors.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, ClassVar

import pynvml

from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.telemetry.attribution import ProcessIdentities
from rankdeck.telemetry.crash_marker import EVENTS
from rankdeck.telemetry.nvml_calls import (
    CALLS,
    LOST_ERRORS,
    NVML_ERRORS,
    REFUSED_ERRORS,
    NvmlCall,
    NvmlGpu,
    call_or_none,
    call_text,
    nvml_error_text,
    open_nvml,
)
from rankdeck.telemetry.nvml_devices import SKIPPED_TEXT, DeviceFinder, MarkCall
from rankdeck.telemetry.nvml_events import XidEvents
from rankdeck.telemetry.provider import DeviceLostError, Provider
from rankdeck.telemetry.readings import (
    METRICS,
    DeviceProcesses,
    DevicesLine,
    NoticeLine,
    Reading,
)

NVIDIA_GPUS_FOLDER = Path("/proc/driver/nvidia/gpus")
SLOW_CALL_S = 0.25
PAUSE_FACTOR = 20
RETRY_S = 60.0
_IMPOSSIBLE_TEXT = tr_noop("the driver reported {value}, which is impossible")
_PROCESSES_CALL = NvmlCall(("processes",), lambda _: ())
_UNITS = {name: metric.unit for name, metric in METRICS.items()}


class NvmlProvider(Provider):
    """Provider for the machine's NVIDIA GPUs.

    `library` is loaded instead of the driver's library, and its devices are marked as simulated. `skip` lists
    devices (UUIDs or "#index" names), or EVENTS, that are never queried, because an earlier sampler crashed
    or hung on them. `mark` is called with the device and the call before each query.
    """

    needs_reopen = True

    def __init__(
        self, library: Path | None = None, skip: Collection[str] = (), mark: MarkCall = lambda *_: None
    ) -> None:
        """Open NVML.

        Raises:
            MachineError: there is no driver, or it does not answer.
        """
        self._simulated = library is not None
        self._skip = frozenset(skip)
        self._mark = mark
        self._finder = DeviceFinder(self._skip, mark, simulated=self._simulated)
        self._gpus: dict[str, NvmlGpu] = {}
        self._identities = ProcessIdentities()
        self._calls_by_metrics: dict[tuple[str, ...], tuple[NvmlCall, ...]] = {}
        self._process_lists: tuple[ProcessList, ProcessList] | None = None
        self._xids: XidEvents | None = None
        self._notices: list[NoticeLine] = []
        open_nvml(library)

    def probe(self) -> DevicesLine:
        """List the devices.

        Raises:
            MachineError: the driver failed.
        """
        self._gpus = self._finder.find()
        self._mark("", "nvmlSystemGetDriverVersion")
        driver = call_or_none(call_text, pynvml.nvmlSystemGetDriverVersion)
        devices = [gpu.device for gpu in self._gpus.values()]
        return DevicesLine(devices=devices, driver=driver, simulated=self._simulated)

    def read(self, uuid: str, metrics: tuple[str, ...]) -> dict[str, Reading]:
        """Read the metrics that are due.

        Raises:
            DeviceLostError: the device no longer answers, or is skipped.
        """
        gpu = self._usable_gpu(uuid)
        plan = self._calls_by_metrics.get(metrics)
        if plan is None:
            metric_names = set(metrics)
            plan = self._calls_by_metrics[metrics] = tuple(
                call for call in CALLS if metric_names & set(call.metrics)
            )
        readings: dict[str, Reading] = {}
        resting = gpu.paused_until
        now_s = time.monotonic()
        for call in plan:
            if call in resting and not self._is_due(gpu, call, now_s, readings):
                continue
            self._mark(uuid, call.metrics[0])
            try:
                values = call.query(gpu)
            except NVML_ERRORS as error:
                readings |= dict.fromkeys(call.metrics, self._failed_reading(gpu, call, error, now_s))
            else:
                for name, value in zip(call.metrics, values, strict=False):
                    readings[name] = (
                        Reading(value, "value", _UNITS[name])
                        if 0 <= value <= gpu.limits[name]
                        else Reading(state="error", unit=_UNITS[name], detail=_impossible_text(value))
                    )
            before_s, now_s = now_s, time.monotonic()
            if now_s - before_s > SLOW_CALL_S:
                self._pause_call(gpu, call, now_s - before_s)
        return readings

    def _is_due(self, gpu: NvmlGpu, call: NvmlCall, now_s: float, readings: dict[str, Reading]) -> bool:
        """Check whether a paused call may be made again; if not, add the call's stored reading, if any, to
        `readings`."""
        until_s, known_of_it = gpu.paused_until[call]
        if until_s > now_s:
            if known_of_it is not None:
                for name in call.metrics:
                    readings[name] = known_of_it
            return False
        del gpu.paused_until[call]
        return True

    def _usable_gpu(self, uuid: str) -> NvmlGpu:
        gpu = self._gpus[uuid]
        if gpu.handle is None or uuid in self._skip:
            raise DeviceLostError(gpu.device.why or SKIPPED_TEXT)
        return gpu

    def _failed_reading(self, gpu: NvmlGpu, call: NvmlCall, error: Exception, now_s: float) -> Reading:
        """Return the reading for a failed call; pause the call if the GPU does not support it.

        Raises:
            DeviceLostError: the error means that the device is lost.
        """
        if isinstance(error, LOST_ERRORS):
            raise DeviceLostError(nvml_error_text(error)) from None
        if isinstance(error, REFUSED_ERRORS):
            reading = Reading(state="unsupported", unit=_UNITS.get(call.metrics[0], ""))
            gpu.paused_until[call] = (now_s + RETRY_S, reading)
            return reading
        return Reading(state="error", unit=_UNITS.get(call.metrics[0], ""), detail=nvml_error_text(error))

    def _pause_call(self, gpu: NvmlGpu, call: NvmlCall, took_s: float) -> None:
        """Pause a slow call for a while, and add a notice unless one was added within the last minute."""
        now_s = time.monotonic()
        # One thread reads all devices, because the driver admits one call at a time. A pause of 20 times the
        # duration keeps a slow call below 5 % of the time.
        gpu.paused_until[call] = (now_s + PAUSE_FACTOR * took_s, None)
        if now_s - gpu.slow_notice_s.get(call, -RETRY_S) < RETRY_S:
            return
        gpu.slow_notice_s[call] = now_s
        names = ", ".join(call.metrics)
        self._notices.append(
            NoticeLine(
                code="slow",
                uuid=gpu.device.uuid,
                message=phrase(
                    "GPU {index}: the driver took {took:.1f} s to report {names}, so this query "
                    "now runs only once every {rest:.0f} s.",
                    index=gpu.device.index,
                    took=took_s,
                    names=names,
                    rest=PAUSE_FACTOR * took_s,
                ),
            )
        )

    def notices(self, *, at_end: bool = False) -> list[NoticeLine]:
        notices, self._notices = self._notices, []
        if self._xids is not None:
            notices += self._xids.notices(time.monotonic(), at_end=at_end)
        return notices

    def processes(self, uuid: str) -> DeviceProcesses:
        """Return the processes on the device.

        Raises:
            DeviceLostError: the device no longer answers, or is skipped.
        """
        gpu = self._usable_gpu(uuid)
        now_s = time.monotonic()
        if _PROCESSES_CALL in gpu.paused_until and (rest := gpu.paused_until[_PROCESSES_CALL])[0] > now_s:
            return DeviceProcesses(uuid, state="stale" if rest[1] is None else rest[1].state)
        self._mark(uuid, _PROCESSES_CALL.metrics[0])
        try:
            self._process_lists = self._process_lists or (ProcessList("Compute"), ProcessList("Graphics"))
            compute, graphics = self._process_lists[0](gpu.handle), self._process_lists[1](gpu.handle)
        except NVML_ERRORS as error:
            return DeviceProcesses(uuid, state=self._failed_reading(gpu, _PROCESSES_CALL, error, now_s).state)
        took_s = time.monotonic() - now_s
        if took_s > SLOW_CALL_S:
            self._pause_call(gpu, _PROCESSES_CALL, took_s)
        # The driver lists a process that does both twice. Compute comes last and wins, because it is what
        # keeps a GPU from a run.
        max_bytes = gpu.limits["used_bytes"]
        by_pid = {
            pid: self._identities.process_use(
                pid, used_bytes if (used_bytes or 0) <= max_bytes else None, kind
            )
            for kind, pairs in (("graphics", graphics), ("compute", compute))
            for pid, used_bytes in pairs
        }
        if by_pid.keys() != gpu.pids:
            gpu.pids = set(by_pid)
            self._identities.retain(pid for other in self._gpus.values() for pid in other.pids)
        return DeviceProcesses(uuid, [by_pid[pid] for pid in sorted(by_pid)])

    def listen(self) -> bool:
        if EVENTS in self._skip:
            return False
        self._xids = XidEvents(self._gpus)
        self._xids.register(self._mark)
        return True

    def wait_for_event(self, timeout_s: float) -> None:
        assert self._xids is not None
        self._xids.wait(timeout_s)

    def signature(self) -> object:
        """Return NVML's device count, the GPUs on the bus (where a new GPU appears first), and the indices of
        GPUs that have recovered."""
        try:
            on_bus = sorted(entry.name for entry in NVIDIA_GPUS_FOLDER.iterdir())
        except OSError:
            on_bus = []
        return call_or_none(pynvml.nvmlDeviceGetCount), on_bus, self._finder.recovered_indices()

    def close(self) -> None:
        call_or_none(pynvml.nvmlShutdown)


def _impossible_text(value: float) -> str:
    return str(phrase(_IMPOSSIBLE_TEXT, value=value))


# NVML's process lists, read in one call where pynvml makes two, with any version of the driver.
#
# A driver takes 4.5 ms for a list and blocks all other calls meanwhile. The oldest version of a list (before
# 460) has shorter entries; a library newer than its driver may refuse the newest version.

_UNKNOWN_BYTES = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
_INITIAL_CAPACITY, MAX_PROCESSES = 32, 1 << 14
_MAX_RETRIES = 4
"""Maximum number of attempts to query a process list that keeps outgrowing its buffer."""
_VERSION_ERRORS = (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)


class _ProcessInfoV1(ctypes.Structure):
    _fields_: ClassVar = [("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong)]


_VERSIONS = {"_v3": pynvml.c_nvmlProcessInfo_v2_t, "_v2": pynvml.c_nvmlProcessInfo_v2_t, "": _ProcessInfoV1}


class _ProcessQuery:
    """A query for a process list in one version of the driver's interface."""

    def __init__(self, function: Any, entry: type[ctypes.Structure]) -> None:
        self._function, self._entry = function, entry
        self._entries = (entry * _INITIAL_CAPACITY)()

    def __call__(self, handle: Any) -> list[tuple[int, int | None]]:
        """Return pairs of pid and bytes.

        Raises:
            NVMLError: the query failed.
        """
        code, count = pynvml.NVML_ERROR_INSUFFICIENT_SIZE, ctypes.c_uint()
        for _ in range(_MAX_RETRIES):
            count.value = len(self._entries)
            code = self._function(handle, ctypes.byref(count), self._entries)
            if code != pynvml.NVML_ERROR_INSUFFICIENT_SIZE or count.value > MAX_PROCESSES:
                break
            self._entries = (self._entry * (2 * max(count.value, _INITIAL_CAPACITY)))()
        if code != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(code)
        return [
            (entry.pid, None if entry.usedGpuMemory == _UNKNOWN_BYTES else entry.usedGpuMemory)
            for entry in self._entries[: count.value]
        ]


class ProcessList:
    """Query for one kind of process on a device."""

    def __init__(self, kind: str) -> None:
        """Find the versions of the query in the library. `kind`: Compute | Graphics."""
        name = f"nvmlDeviceGet{kind}RunningProcesses"
        functions = {end: getattr(pynvml.nvmlLib, name + end, None) for end in _VERSIONS}
        self._versions = [
            _ProcessQuery(function, _VERSIONS[end])
            for end, function in functions.items()
            if function is not None
        ]

    def __call__(self, handle: Any) -> list[tuple[int, int | None]]:
        """Return pairs of pid and bytes (None if the driver does not report them).

        Raises:
            NVMLError: the query failed in all versions.
        """
        refused = pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        for index, query in enumerate(self._versions):
            try:
                processes = query(handle)
            except pynvml.NVMLError as error:
                if error.value not in _VERSION_ERRORS:
                    raise
                refused = error
            else:
                # The driver does not change while this process runs: refused versions are not tried again.
                del self._versions[:index]
                return processes
        raise refused
