"""NVML as this project calls it: how it is opened, which call answers which metrics, which errors mean what.

Only the sampler's process imports this. The provider (nvml.py) decides what is called when.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml

from rankdeck.base.errors import MachineError
from rankdeck.base.phrases import marked, phrase
from rankdeck.telemetry.readings import Device, Reading

SONAME = "libnvidia-ml.so.1"
RESTART = marked("Try nvidia-smi; after an update of the driver the machine needs a restart.")
REFUSED = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_FunctionNotFound,
    pynvml.NVMLError_ArgumentVersionMismatch,
    pynvml.NVMLError_NoPermission,
    pynvml.NVMLLibraryMismatchError,  # of an old driver; it is no NVMLError
)
LOST = (pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_ResetRequired, pynvml.NVMLError_GpuNotFound)
_UNKNOWN_BYTES = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
FAILED = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError)


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """One call of the library, and the metrics that it answers, in order."""

    metrics: tuple[str, ...]
    ask: Callable[[NvmlGpu], tuple[float | int, ...]]


@dataclass(slots=True)
class NvmlGpu:
    """`resting`: until when (CLOCK_MONOTONIC) a call is not made, and why its metrics have no value."""

    device: Device
    handle: Any
    resting: dict[Call, tuple[float, Reading | None]] = field(default_factory=dict)
    memory_version: int | None = None
    pids: set[int] = field(default_factory=set)


def _used_bytes(gpu: NvmlGpu) -> tuple[int, ...]:
    return (int(pynvml.nvmlDeviceGetMemoryInfo(gpu.handle, gpu.memory_version).used),)


def _utilisation(gpu: NvmlGpu) -> tuple[float, ...]:
    rates = pynvml.nvmlDeviceGetUtilizationRates(gpu.handle)
    return rates.gpu / 100, rates.memory / 100


def _throttle(gpu: NvmlGpu) -> tuple[int, ...]:
    try:
        return (pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu.handle),)
    except pynvml.NVMLError_FunctionNotFound:  # its name before driver 535
        return (pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu.handle),)


def _ecc_errors(gpu: NvmlGpu) -> tuple[int, ...]:
    kind, since = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    return (pynvml.nvmlDeviceGetTotalEccErrors(gpu.handle, kind, since),)


CALLS = (
    Call(("used_bytes",), _used_bytes),
    Call(("utilisation", "memory_utilisation"), _utilisation),
    Call(("power_w",), lambda gpu: (pynvml.nvmlDeviceGetPowerUsage(gpu.handle) / 1000,)),
    Call(("energy_j",), lambda gpu: (pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu.handle) / 1000,)),
    Call(
        ("temperature_c",),
        lambda gpu: (pynvml.nvmlDeviceGetTemperature(gpu.handle, pynvml.NVML_TEMPERATURE_GPU),),
    ),
    Call(("sm_clock_mhz",), lambda gpu: (pynvml.nvmlDeviceGetClockInfo(gpu.handle, pynvml.NVML_CLOCK_SM),)),
    Call(
        ("memory_clock_mhz",),
        lambda gpu: (pynvml.nvmlDeviceGetClockInfo(gpu.handle, pynvml.NVML_CLOCK_MEM),),
    ),
    Call(("throttle",), _throttle),
    Call(("fan",), lambda gpu: (pynvml.nvmlDeviceGetFanSpeed(gpu.handle) / 100,)),
    Call(("ecc_errors",), _ecc_errors),
)


class ProcessList:
    """The processes of a kind on a device, in one call where pynvml makes two; a driver takes 4.5 ms for each
    and lets nobody else in meanwhile.
    """

    def __init__(self, kind: str) -> None:
        """`kind`: Compute | Graphics. Raises: NVMLError_FunctionNotFound where there is no such call."""
        # Drivers before 510 lack the third version; both fill the same structure.
        for version in ("v3", "v2"):
            self._ask = getattr(pynvml.nvmlLib, f"nvmlDeviceGet{kind}RunningProcesses_{version}", None)
            if self._ask is not None:
                break
        else:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        self._make_room(32)

    def _make_room(self, count: int) -> None:
        self._entries = (pynvml.c_nvmlProcessInfo_v2_t * count)()

    def __call__(self, handle: Any) -> list[tuple[int, int | None]]:
        """(process id, bytes; None where the driver does not tell). Raises: NVMLError."""
        assert self._ask is not None
        count = ctypes.c_uint(len(self._entries))
        code = self._ask(handle, ctypes.byref(count), self._entries)
        if code == pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
            self._make_room(2 * count.value)
            return self(handle)
        if code != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(code)
        return [
            (entry.pid, None if entry.usedGpuMemory == _UNKNOWN_BYTES else entry.usedGpuMemory)
            for entry in self._entries[: count.value]
        ]


def open_nvml(library: Path | None) -> None:
    if library is not None:
        _load(library)
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        raise MachineError(
            phrase("No NVIDIA driver found."),
            code="no-driver",
            advice=phrase(
                "GPUs need NVIDIA's driver. Without one, rehearse on virtual devices: --devices cpu:2."
            ),
        ) from None
    except pynvml.NVMLError as error:
        raise MachineError(
            phrase("NVIDIA's driver does not answer: {error}.", error=error),
            code="driver",
            advice=phrase(RESTART),
        ) from None


def _load(library: Path) -> None:
    """Load a stand-in before pynvml looks for the driver's library: the loader then takes it by its soname.

    Raises: MachineError.
    """
    advice = phrase("RANKDECK_NVML names a simulated NVML; unset it to see the machine's own GPUs.")
    try:
        loaded = ctypes.CDLL(str(library))
        if ctypes.CDLL(SONAME)._handle == loaded._handle:
            return
    except OSError as error:
        raise MachineError(
            phrase("{library} cannot be loaded: {error}.", library=library, error=error),
            code="no-driver",
            advice=advice,
        ) from None
    raise MachineError(
        phrase("{library} is not called {name} inside (soname).", library=library, name=SONAME),
        code="no-driver",
        advice=advice,
    )


def known(ask: Callable[..., Any], *arguments: Any) -> Any:
    """The answer, or None where the driver or the card refuses it."""
    try:
        return ask(*arguments)
    except FAILED:
        return None


def text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
