"""List the GPUs with their static facts: capacity, limits, MIG instances, links.

A GPU that does not answer is listed as lost, with the driver's error; all other GPUs are listed normally.
NVML's indices are in PCI order, but CUDA's may not be, so everything is stored by UUID.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

import psutil
import pynvml

from rankdeck.base.errors import MachineError
from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.telemetry.nvml_calls import (
    CALLS,
    LOST_ERRORS,
    NVML_ERRORS,
    REFUSED_ERRORS,
    RESTART_ADVICE,
    NvmlGpu,
    call_or_none,
    call_text,
    nvml_error_text,
)
from rankdeck.telemetry.readings import METRICS, Device, indexed_uuid, placeholder_uuid

MarkCall = Callable[[str, str], None]
"""Function called with the device and the call's name before a call that may crash or hang the process."""
MAX_GPUS, _MAX_INSTANCES, _MAX_ROWS = 256, 64, 1 << 16
"""Maximum plausible counts; a driver that reports more is faulty."""
SKIPPED_TEXT = tr_noop("an earlier sampler crashed or hung during a query of this device")


class DeviceFinder:
    """Finder that lists the GPUs after NVML has been opened. `skip` contains the UUIDs or "#index" names of
    GPUs that are never queried."""

    def __init__(self, skip: Collection[str], mark: MarkCall, *, simulated: bool) -> None:
        self._skip = skip
        self._mark = mark
        self._simulated = simulated
        self._found: dict[str, NvmlGpu] = {}
        self._unreachable: list[int] = []

    def find(self) -> dict[str, NvmlGpu]:
        """Return the GPUs by UUID in NVML's order, with each GPU's MIG instances after it.

        Raises:
            MachineError: the driver failed.
        """
        self._found, self._unreachable = {}, []
        try:
            count = pynvml.nvmlDeviceGetCount()
        except NVML_ERRORS as error:
            message = phrase("NVIDIA's driver failed: {error}.", error=nvml_error_text(error))
            raise MachineError(message, code="driver", advice=phrase(RESTART_ADVICE)) from None
        for index in range(min(count, MAX_GPUS)):
            self._add_gpu(index)
        return self._found

    def recovered_indices(self) -> list[int]:
        """Return the indices of GPUs that did not answer when they were listed, but do now."""
        return [index for index in self._unreachable if call_or_none(self._open_device, index) is not None]

    def _open_device(self, index: int) -> tuple[Any, str]:
        """Return a GPU's handle and UUID.

        Raises:
            NVMLError: the GPU does not answer.
        """
        label = f"#{index}"
        handle = self._call(label, pynvml.nvmlDeviceGetHandleByIndex, index)
        self._mark(label, "nvmlDeviceGetUUID")
        return handle, call_text(pynvml.nvmlDeviceGetUUID, handle)

    def _call(self, label: str, function: Callable[..., Any], *arguments: Any) -> Any:
        # Before the call: if it crashes the process, the mark names the device.
        self._mark(label, function.__name__)
        return function(*arguments)

    def _call_or_none(self, gpu: NvmlGpu, function: Callable[..., Any], *arguments: Any) -> Any:
        self._mark(f"#{gpu.device.index}", function.__name__)
        return call_or_none(function, gpu.handle, *arguments)

    def _add_gpu(self, index: int) -> None:
        handle, uuid, why = None, placeholder_uuid(index), None
        if f"#{index}" in self._skip:
            why = SKIPPED_TEXT
        else:
            try:
                handle, uuid = self._open_device(index)
            except NVML_ERRORS as error:
                # A GPU that does not answer is still listed, but may not even have a UUID any more.
                self._unreachable.append(index)
                why = nvml_error_text(error)
        gpu = self._add_device(Device(uuid=uuid, index=index, name=f"GPU {index}"), handle, why)
        if gpu.device.lost_at is None:
            self._add_instances(gpu)

    def _add_device(self, device: Device, handle: Any, why: str | None = None) -> NvmlGpu:
        """Add a device under its UUID; a UUID that is empty or not unique gets the list position appended."""
        if not device.uuid or device.uuid in self._found:
            device.uuid = indexed_uuid(device.uuid, len(self._found))
        device.simulated = self._simulated
        gpu = self._found[device.uuid] = NvmlGpu(device, handle)
        if device.uuid in self._skip:
            why = SKIPPED_TEXT
        if why is None:
            self._mark(f"#{device.index}", "nvmlDeviceGetName")
            device.name = call_or_none(call_text, pynvml.nvmlDeviceGetName, handle) or device.name
            self._read_static_info(gpu)
        else:
            device.lost_at, device.why = time.time(), why
        return gpu

    def _read_static_info(self, gpu: NvmlGpu) -> None:
        """Read the static facts: capacity, limits, available calls."""
        device = gpu.device
        self._read_capacity(gpu)
        if device.lost_at is not None:
            return
        limit_mw = self._call_or_none(gpu, pynvml.nvmlDeviceGetEnforcedPowerLimit)
        if limit_mw and limit_mw / 1000 <= METRICS["power_w"].maximum:
            device.power_limit_w = limit_mw / 1000
        if device.parent is None:
            self._read_health(gpu)
        device.capabilities = [] if device.total_bytes is None else ["used_bytes"]
        if device.parent is None:
            device.capabilities += [name for call in CALLS[1:] for name in call.metrics]

    def _read_health(self, gpu: NvmlGpu) -> None:
        device = gpu.device
        device.max_sm_clock_mhz = self._clock(gpu, "sm_clock_mhz", pynvml.NVML_CLOCK_SM)
        device.max_memory_clock_mhz = self._clock(gpu, "memory_clock_mhz", pynvml.NVML_CLOCK_MEM)
        mode = self._call_or_none(gpu, pynvml.nvmlDeviceGetEccMode)
        device.ecc = None if mode is None else mode[0] == pynvml.NVML_FEATURE_ENABLED
        rows = self._call_or_none(gpu, pynvml.nvmlDeviceGetRemappedRows)
        if rows is not None and max(rows[:2]) <= _MAX_ROWS:
            device.rows_corrected, device.rows_uncorrected = rows[:2]
            device.rows_pending, device.rows_failed = bool(rows[2]), bool(rows[3])
        links = [self._call_or_none(gpu, pynvml.nvmlDeviceGetNvLinkState, 0)]
        while links[-1] is not None and len(links) < pynvml.NVML_NVLINK_MAX_LINKS:
            links.append(self._call_or_none(gpu, pynvml.nvmlDeviceGetNvLinkState, len(links)))
        link_states = [link for link in links if link is not None]
        if link_states:
            device.num_links, device.links_up = (
                len(link_states),
                link_states.count(pynvml.NVML_FEATURE_ENABLED),
            )

    def _clock(self, gpu: NvmlGpu, metric: str, which: int) -> int | None:
        mhz = self._call_or_none(gpu, pynvml.nvmlDeviceGetMaxClockInfo, which)
        return mhz if mhz and mhz <= METRICS[metric].maximum else None

    def _read_capacity(self, gpu: NvmlGpu) -> None:
        device = gpu.device
        # v2 first; older drivers know only the first version.
        for version in (pynvml.nvmlMemory_v2, None):
            try:
                memory = self._call(f"#{device.index}", pynvml.nvmlDeviceGetMemoryInfo, gpu.handle, version)
            except LOST_ERRORS as error:
                device.lost_at, device.why = time.time(), nvml_error_text(error)
                return
            except REFUSED_ERRORS as error:
                # A GPU without its own memory uses the host's.
                device.unified = device.parent is None and isinstance(error, pynvml.NVMLError_NotSupported)
                device.host_bytes = psutil.virtual_memory().total if device.unified else None
                continue
            except NVML_ERRORS:
                return
            device.unified, device.host_bytes, gpu.memory_version = False, None, version
            if 0 < memory.total <= METRICS["used_bytes"].maximum:
                device.total_bytes = gpu.limits["used_bytes"] = int(memory.total)
            # Only v2 reports the driver's reserve: since R510 the first version counts it as used.
            if version and memory.reserved <= memory.total:
                device.driver_bytes = int(memory.reserved)
            return

    def _add_instances(self, gpu: NvmlGpu) -> None:
        modes = self._call_or_none(gpu, pynvml.nvmlDeviceGetMigMode)
        gpu.device.mig = modes is not None and modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        if not gpu.device.mig:
            return
        count = self._call_or_none(gpu, pynvml.nvmlDeviceGetMaxMigDeviceCount) or 0
        for position in range(min(count, _MAX_INSTANCES)):
            handle = self._call_or_none(gpu, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, position)
            uuid = None if handle is None else call_or_none(call_text, pynvml.nvmlDeviceGetUUID, handle)
            if uuid is not None:
                index, parent = gpu.device.index, gpu.device.uuid
                self._add_device(Device(uuid=uuid, index=index, name="MIG", parent=parent), handle)
