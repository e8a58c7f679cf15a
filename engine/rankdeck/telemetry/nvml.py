"""GPUs through NVML, the library behind nvidia-smi: the provider that only the sampler's process holds.

NVML is opened once for the life of the process, static facts are read once, and a metric costs one call. A
call that a card refuses is remembered and asked again once a minute; one that took long rests for 20 times
what it took, so that a slow one never takes more than 5 % of the time. nvml_devices.py makes the list of
GPUs, nvml_events.py hears of XID errors.
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
_IMPOSSIBLE_TEXT = tr_noop("the driver told {value}, which cannot be")
_PROCESSES_CALL = NvmlCall(("processes",), lambda _: ())
_UNITS = {name: metric.unit for name, metric in METRICS.items()}


class NvmlProvider(Provider):
    """The machine's NVIDIA GPUs. `library` is loaded instead of the driver's own, and called simulated.

    `skip` are UUIDs, "#index" or EVENTS, of what is never asked: that has ended this process before. `mark`
    hears which device is asked next, and for what.
    """

    needs_reopen = True

    def __init__(
        self, library: Path | None = None, skip: Collection[str] = (), mark: MarkCall = lambda *_: None
    ) -> None:
        """Raises: MachineError where there is no driver, or none that answers."""
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
        """Raises: MachineError."""
        self._gpus = self._finder.find()
        self._mark("", "nvmlSystemGetDriverVersion")
        driver = call_or_none(call_text, pynvml.nvmlSystemGetDriverVersion)
        devices = [gpu.device for gpu in self._gpus.values()]
        return DevicesLine(devices=devices, driver=driver, simulated=self._simulated)

    def read(self, uuid: str, metrics: tuple[str, ...]) -> dict[str, Reading]:
        """Raises: DeviceLostError."""
        gpu = self._usable_gpu(uuid)
        plan = self._calls_by_metrics.get(metrics)
        if plan is None:
            wanted = set(metrics)
            plan = self._calls_by_metrics[metrics] = tuple(
                call for call in CALLS if wanted & set(call.metrics)
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
        """Whether the call may be made again; until then `readings` gets what is known of its metrics."""
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
        """Raises: DeviceLostError."""
        if isinstance(error, LOST_ERRORS):
            raise DeviceLostError(nvml_error_text(error)) from None
        if isinstance(error, REFUSED_ERRORS):
            reading = Reading(state="unsupported", unit=_UNITS.get(call.metrics[0], ""))
            gpu.paused_until[call] = (now_s + RETRY_S, reading)
            return reading
        return Reading(state="error", unit=_UNITS.get(call.metrics[0], ""), detail=nvml_error_text(error))

    def _pause_call(self, gpu: NvmlGpu, call: NvmlCall, took_s: float) -> None:
        """A call that took long: not again for a while, and a notice says so, once a minute."""
        now_s = time.monotonic()
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
                    "GPU {index}: the driver took {took:.1f} s to tell {names}, which is read only every "
                    "{rest:.0f} s now.",
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
        """Raises: DeviceLostError."""
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
        # A process that does both is listed twice by the driver; compute is what keeps a GPU from a run.
        most = gpu.limits["used_bytes"]
        by_pid = {
            pid: self._identities.process_use(pid, used_bytes if (used_bytes or 0) <= most else None, kind)
            for kind, found in (("graphics", graphics), ("compute", compute))
            for pid, used_bytes in found
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
        """The count that NVML tells, the GPUs on the bus, where a new one shows first, and those that answer
        now and did not."""
        try:
            on_bus = sorted(entry.name for entry in NVIDIA_GPUS_FOLDER.iterdir())
        except OSError:
            on_bus = []
        return call_or_none(pynvml.nvmlDeviceGetCount), on_bus, self._finder.recovered_indices()

    def close(self) -> None:
        call_or_none(pynvml.nvmlShutdown)


def _impossible_text(value: float) -> str:
    return str(phrase(_IMPOSSIBLE_TEXT, value=value))


# Who is on a GPU, as NVML lists it: in one call where pynvml makes two, and whatever the driver answers.
#
# A driver takes 4.5 ms for a list and lets nobody else in meanwhile. Its oldest form of a list (before 460)
# has shorter entries; a library that is newer than its driver may refuse the newest.

_UNKNOWN_BYTES = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
_INITIAL_CAPACITY, MAX_PROCESSES = 32, 1 << 14
_MAX_RETRIES = 4
"""How often a list may have grown between two calls, before it is taken for one that never fits."""
_VERSION_ERRORS = (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)


class _ProcessInfoV1(ctypes.Structure):
    _fields_: ClassVar = [("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong)]


_VERSIONS = {"_v3": pynvml.c_nvmlProcessInfo_v2_t, "_v2": pynvml.c_nvmlProcessInfo_v2_t, "": _ProcessInfoV1}


class _ProcessQuery:
    """A list as one version of the driver's interface makes it."""

    def __init__(self, ask: Any, entry: type[ctypes.Structure]) -> None:
        self._ask, self._entry = ask, entry
        self._entries = (entry * _INITIAL_CAPACITY)()

    def __call__(self, handle: Any) -> list[tuple[int, int | None]]:
        """Raises: NVMLError."""
        code, count = pynvml.NVML_ERROR_INSUFFICIENT_SIZE, ctypes.c_uint()
        for _ in range(_MAX_RETRIES):
            count.value = len(self._entries)
            code = self._ask(handle, ctypes.byref(count), self._entries)
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
    """The processes of a kind on a device."""

    def __init__(self, kind: str) -> None:
        """`kind`: Compute | Graphics."""
        name = f"nvmlDeviceGet{kind}RunningProcesses"
        found = {end: getattr(pynvml.nvmlLib, name + end, None) for end in _VERSIONS}
        self._versions = [_ProcessQuery(ask, _VERSIONS[end]) for end, ask in found.items() if ask is not None]

    def __call__(self, handle: Any) -> list[tuple[int, int | None]]:
        """(process id, bytes; None where the driver does not tell). Raises: NVMLError."""
        refused = pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        for place, ask in enumerate(self._versions):
            try:
                found = ask(handle)
            except pynvml.NVMLError as error:
                if error.value not in _VERSION_ERRORS:
                    raise
                refused = error
            else:
                del self._versions[:place]
                return found
        raise refused
