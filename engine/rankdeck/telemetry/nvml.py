"""GPUs through NVML, the library behind nvidia-smi: the provider that only the sampler's process holds.

NVML is opened once for the life of the process, static facts are read once, and a metric costs one call. A
call that a card refuses is remembered and asked again once a minute; one that took long rests for 20 times
what it took, so that a slow one never takes more than 5 % of the time. NVML's indices are in PCI order, which
CUDA does not promise: whatever is kept is kept by UUID.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pynvml

from rankdeck.base.errors import MachineError
from rankdeck.base.phrases import phrase
from rankdeck.telemetry import xid
from rankdeck.telemetry.attribution import ProcessNames
from rankdeck.telemetry.nvml_calls import (
    CALLS,
    FAILED,
    LOST,
    REFUSED,
    RESTART,
    Call,
    NvmlGpu,
    ProcessList,
    known,
    open_nvml,
    text,
)
from rankdeck.telemetry.provider import DeviceLostError, Provider
from rankdeck.telemetry.readings import (
    METRICS,
    Device,
    DeviceProcesses,
    DevicesLine,
    NoticeLine,
    ProcessUse,
    Reading,
)

BUS_FOLDER = Path("/proc/driver/nvidia/gpus")
SLOW_S = 0.25
RESTS_FOR = 20
ASK_AGAIN_S = 60.0
_PROCESSES = Call(("processes",), lambda _: ())
_UNITS = {name: metric.unit for name, metric in METRICS.items()}


class NvmlProvider(Provider):
    """The machine's NVIDIA GPUs. `library` is loaded instead of the driver's own, and called simulated.

    `skip` are UUIDs, or "#index", of what is listed as lost and never asked: that has ended this process
    before. `mark` hears which device is asked next while the list is made.
    """

    def __init__(
        self,
        library: Path | None = None,
        skip: Sequence[str] = (),
        mark: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Raises: MachineError where there is no driver, or none that answers."""
        self._simulated = library is not None
        self._skip = frozenset(skip)
        self._mark = mark
        self._gpus: dict[str, NvmlGpu] = {}
        self._names = ProcessNames()
        self._plans: dict[tuple[str, ...], tuple[Call, ...]] = {}
        self._lists: tuple[ProcessList, ProcessList] | None = None
        self._events: Any = None
        self._notices: list[NoticeLine] = []
        open_nvml(library)

    def probe(self) -> DevicesLine:
        """Raises: MachineError."""
        self._gpus.clear()
        try:
            for index in range(pynvml.nvmlDeviceGetCount()):
                self._add(index)
            driver = text(pynvml.nvmlSystemGetDriverVersion())
        except pynvml.NVMLError as error:
            raise MachineError(
                phrase("NVIDIA's driver failed: {error}.", error=error), code="driver", advice=phrase(RESTART)
            ) from None
        devices = [gpu.device for gpu in self._gpus.values()]
        return DevicesLine(devices=devices, driver=driver, simulated=self._simulated)

    def _add(self, index: int) -> None:
        place = f"#{index}"
        self._mark(place)
        # What is lost still counts, but may have not even a UUID any more.
        device = Device(uuid=f"lost-{index}", index=index, name=f"GPU {index}", lost_at=time.time())
        handle = None
        if place not in self._skip:
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid = text(pynvml.nvmlDeviceGetUUID(handle))
                device = Device(uuid=uuid, index=index, name=text(pynvml.nvmlDeviceGetName(handle)))
            except LOST:
                pass
        device.simulated = self._simulated
        if device.uuid in self._skip:
            device.lost_at = time.time()
        gpu = self._gpus[device.uuid] = NvmlGpu(device, handle)
        if device.lost_at is None:
            self._read_facts(gpu)
            self._add_instances(gpu)

    def _read_facts(self, gpu: NvmlGpu) -> None:
        """What does not change: capacity, limits, which calls there are."""
        device = gpu.device
        memory = None
        for version in (pynvml.nvmlMemory_v2, None):
            try:
                memory = pynvml.nvmlDeviceGetMemoryInfo(gpu.handle, version)
            except REFUSED:
                continue
            except LOST:
                device.lost_at = time.time()
                return
            except FAILED:
                break
            gpu.memory_version = version
            device.total_bytes = int(memory.total)
            # The first version counts the driver's own reserve as used (since R510).
            device.driver_bytes = int(memory.reserved) if version else None
            break
        else:
            # A GPU without memory of its own: what it uses is the host's.
            device.unified = device.parent is None
        limit_mw = known(pynvml.nvmlDeviceGetEnforcedPowerLimit, gpu.handle)
        device.power_limit_w = None if limit_mw is None else limit_mw / 1000
        device.capabilities = [] if device.total_bytes is None else ["used_bytes"]
        if device.parent is None:
            device.capabilities += [name for call in CALLS[1:] for name in call.metrics]

    def _add_instances(self, gpu: NvmlGpu) -> None:
        modes = known(pynvml.nvmlDeviceGetMigMode, gpu.handle)
        gpu.device.mig = modes is not None and modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        if not gpu.device.mig:
            return
        for place in range(known(pynvml.nvmlDeviceGetMaxMigDeviceCount, gpu.handle) or 0):
            handle = known(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu.handle, place)
            if handle is None:
                continue
            part = Device(
                uuid=text(pynvml.nvmlDeviceGetUUID(handle)),
                index=gpu.device.index,
                name=text(pynvml.nvmlDeviceGetName(handle)),
                parent=gpu.device.uuid,
                simulated=self._simulated,
            )
            self._gpus[part.uuid] = NvmlGpu(part, handle)
            self._read_facts(self._gpus[part.uuid])

    def read(self, uuid: str, metrics: tuple[str, ...]) -> dict[str, Reading]:
        """Raises: DeviceLostError."""
        gpu = self._awake(uuid)
        plan = self._plans.get(metrics)
        if plan is None:
            wanted = set(metrics)
            plan = self._plans[metrics] = tuple(call for call in CALLS if wanted & set(call.metrics))
        readings: dict[str, Reading] = {}
        resting = gpu.resting
        now_s = time.monotonic()
        for call in plan:
            if call in resting and not self._has_rested(gpu, call, now_s, readings):
                continue
            try:
                values = call.ask(gpu)
            except FAILED as error:
                readings |= dict.fromkeys(call.metrics, self._failed(gpu, call, error, now_s))
            else:
                for name, value in zip(call.metrics, values, strict=False):
                    readings[name] = Reading(value, "value", _UNITS[name])
            before_s, now_s = now_s, time.monotonic()
            if now_s - before_s > SLOW_S:
                self._rest(gpu, call, now_s - before_s)
        return readings

    def _has_rested(self, gpu: NvmlGpu, call: Call, now_s: float, readings: dict[str, Reading]) -> bool:
        """Whether the call may be made again; until then `readings` gets what is known of its metrics."""
        until_s, known_of_it = gpu.resting[call]
        if until_s > now_s:
            if known_of_it is not None:
                for name in call.metrics:
                    readings[name] = known_of_it
            return False
        del gpu.resting[call]
        return True

    def _awake(self, uuid: str) -> NvmlGpu:
        gpu = self._gpus[uuid]
        if gpu.handle is None or uuid in self._skip:
            raise DeviceLostError("GPU is lost")
        return gpu

    def _failed(self, gpu: NvmlGpu, call: Call, error: Exception, now_s: float) -> Reading:
        """Raises: DeviceLostError."""
        if isinstance(error, LOST):
            raise DeviceLostError(str(error)) from None
        if isinstance(error, REFUSED):
            reading = Reading(state="unsupported", unit=_UNITS.get(call.metrics[0], ""))
            gpu.resting[call] = (now_s + ASK_AGAIN_S, reading)
            return reading
        return Reading(state="error", unit=_UNITS.get(call.metrics[0], ""), detail=str(error))

    def _rest(self, gpu: NvmlGpu, call: Call, took_s: float) -> None:
        """A call that took long: not again for a while, and a notice says so."""
        gpu.resting[call] = (time.monotonic() + RESTS_FOR * took_s, None)
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
                    rest=RESTS_FOR * took_s,
                ),
            )
        )

    def notices(self) -> list[NoticeLine]:
        notices, self._notices = self._notices, []
        return notices

    def processes(self, uuid: str) -> DeviceProcesses:
        """Raises: DeviceLostError."""
        gpu = self._awake(uuid)
        now_s = time.monotonic()
        if _PROCESSES in gpu.resting and (rest := gpu.resting[_PROCESSES])[0] > now_s:
            return DeviceProcesses(uuid, state="stale" if rest[1] is None else rest[1].state)
        try:
            self._lists = self._lists or (ProcessList("Compute"), ProcessList("Graphics"))
            compute, graphics = self._lists[0](gpu.handle), self._lists[1](gpu.handle)
        except FAILED as error:
            return DeviceProcesses(uuid, state=self._failed(gpu, _PROCESSES, error, now_s).state)
        took_s = time.monotonic() - now_s
        if took_s > SLOW_S:
            self._rest(gpu, _PROCESSES, took_s)
        # A process that does both is listed twice by the driver; compute is what keeps a GPU from a run.
        by_pid = {pid: self._use(pid, used_bytes, "graphics") for pid, used_bytes in graphics}
        by_pid |= {pid: self._use(pid, used_bytes, "compute") for pid, used_bytes in compute}
        if by_pid.keys() != gpu.pids:
            gpu.pids = set(by_pid)
            self._names.keep_only(pid for other in self._gpus.values() for pid in other.pids)
        return DeviceProcesses(uuid, [by_pid[pid] for pid in sorted(by_pid)])

    def _use(self, pid: int, used_bytes: int | None, kind: str) -> ProcessUse:
        who = self._names.identify(pid)
        return ProcessUse(pid, who.name, used_bytes, kind, who.foreign)

    def wait_for_event(self, timeout_s: float) -> NoticeLine | None:
        try:
            if self._events is None:
                self._events = self._register()
            event = pynvml.nvmlEventSetWait_v2(self._events, round(timeout_s * 1000))
        except pynvml.NVMLError_Timeout:
            return None
        except pynvml.NVMLError:  # a lost GPU, which readings tell, or a driver without events
            time.sleep(timeout_s)
            return None
        return self._xid_notice(event)

    def _register(self) -> Any:
        events = pynvml.nvmlEventSetCreate()
        for gpu in self._gpus.values():
            if gpu.device.parent is None and gpu.device.lost_at is None:
                known(
                    pynvml.nvmlDeviceRegisterEvents, gpu.handle, pynvml.nvmlEventTypeXidCriticalError, events
                )
        return events

    def _xid_notice(self, event: Any) -> NoticeLine:
        address = ctypes.cast(event.device, ctypes.c_void_p).value
        gpu = next(
            (
                gpu
                for gpu in self._gpus.values()
                if gpu.handle is not None and ctypes.cast(gpu.handle, ctypes.c_void_p).value == address
            ),
            None,
        )
        number = int(event.eventData)
        name = phrase("A GPU") if gpu is None else f"GPU {gpu.device.index} ({gpu.device.name})"
        message, advice = xid.describe(number, name)
        return NoticeLine(
            code="xid",
            uuid=None if gpu is None else gpu.device.uuid,
            xid=number,
            message=message,
            advice=advice,
            severity="warning" if number in xid.BY_PROGRAMS else "error",
        )

    def signature(self) -> object:
        """The count that NVML tells and the GPUs on the bus: a new one shows in NVML only after an init."""
        try:
            on_bus = sorted(entry.name for entry in BUS_FOLDER.iterdir())
        except OSError:
            on_bus = []
        return known(pynvml.nvmlDeviceGetCount), on_bus

    def close(self) -> None:
        known(pynvml.nvmlShutdown)
