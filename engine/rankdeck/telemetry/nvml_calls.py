"""NVML as this project calls it: how it is opened, which call answers which metrics, which errors mean what.

Only the sampler's process imports this. nvml_devices.py lists what there is, nvml.py who is on it,
the provider (nvml.py) decides what is called when.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml

from rankdeck.base.errors import MachineError
from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.telemetry.readings import METRICS, Device, Reading

SONAME = "libnvidia-ml.so.1"
RESTART_ADVICE = tr_noop("Try nvidia-smi; after an update of the driver the machine needs a restart.")
REFUSED_ERRORS = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_FunctionNotFound,
    pynvml.NVMLError_ArgumentVersionMismatch,
    pynvml.NVMLError_NoPermission,
    pynvml.NVMLLibraryMismatchError,  # of an old driver; it is no NVMLError
)
LOST_ERRORS = (pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_ResetRequired, pynvml.NVMLError_GpuNotFound)
NVML_ERRORS = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError)
_METRIC_LIMITS = {metric.name: metric.maximum for metric in METRICS.values()}


@dataclass(frozen=True, eq=False, slots=True)
class NvmlCall:
    """One call of the library, and the metrics that it answers, in order."""

    metrics: tuple[str, ...]
    query: Callable[[NvmlGpu], tuple[float | int, ...]]


@dataclass(slots=True)
class NvmlGpu:
    """`paused_until`: until when (CLOCK_MONOTONIC) a call is not made, and why its metrics have no value.
    `limits`: what a metric cannot be above. `slow_notice_s`: when it was last told of a call that it is slow.
    """

    device: Device
    handle: Any
    paused_until: dict[NvmlCall, tuple[float, Reading | None]] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=_METRIC_LIMITS.copy)
    slow_notice_s: dict[NvmlCall, float] = field(default_factory=dict)
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


def _ecc_errors(kind: int) -> Callable[[NvmlGpu], tuple[int, ...]]:
    since = pynvml.NVML_VOLATILE_ECC
    return lambda gpu: (pynvml.nvmlDeviceGetTotalEccErrors(gpu.handle, kind, since),)


def _performance_state(gpu: NvmlGpu) -> tuple[int, ...]:
    state = pynvml.nvmlDeviceGetPerformanceState(gpu.handle)
    if state == pynvml.NVML_PSTATE_UNKNOWN:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return (state,)


def _pcie(way: int) -> Callable[[NvmlGpu], tuple[int, ...]]:
    return lambda gpu: (1000 * pynvml.nvmlDeviceGetPcieThroughput(gpu.handle, way),)


CALLS = (
    NvmlCall(("used_bytes",), _used_bytes),
    NvmlCall(("utilisation", "memory_utilisation"), _utilisation),
    NvmlCall(("power_w",), lambda gpu: (pynvml.nvmlDeviceGetPowerUsage(gpu.handle) / 1000,)),
    NvmlCall(("energy_j",), lambda gpu: (pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu.handle) / 1000,)),
    NvmlCall(
        ("temperature_c",),
        lambda gpu: (pynvml.nvmlDeviceGetTemperature(gpu.handle, pynvml.NVML_TEMPERATURE_GPU),),
    ),
    NvmlCall(
        ("sm_clock_mhz",), lambda gpu: (pynvml.nvmlDeviceGetClockInfo(gpu.handle, pynvml.NVML_CLOCK_SM),)
    ),
    NvmlCall(
        ("memory_clock_mhz",),
        lambda gpu: (pynvml.nvmlDeviceGetClockInfo(gpu.handle, pynvml.NVML_CLOCK_MEM),),
    ),
    NvmlCall(("throttle",), _throttle),
    NvmlCall(("fan",), lambda gpu: (pynvml.nvmlDeviceGetFanSpeed(gpu.handle) / 100,)),
    NvmlCall(("ecc_errors",), _ecc_errors(pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)),
    NvmlCall(("ecc_corrected",), _ecc_errors(pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED)),
    NvmlCall(("performance_state",), _performance_state),
    NvmlCall(("pcie_tx_bps",), _pcie(pynvml.NVML_PCIE_UTIL_TX_BYTES)),
    NvmlCall(("pcie_rx_bps",), _pcie(pynvml.NVML_PCIE_UTIL_RX_BYTES)),
)


def open_nvml(library: Path | None) -> None:
    if library is not None:
        _load_library(library)
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
    except NVML_ERRORS as error:
        raise MachineError(
            phrase("NVIDIA's driver does not answer: {error}.", error=nvml_error_text(error)),
            code="driver",
            advice=phrase(RESTART_ADVICE),
        ) from None


def _load_library(library: Path) -> None:
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


def call_or_none(ask: Callable[..., Any], *arguments: Any) -> Any:
    """The answer, or None where the driver or the card refuses it."""
    try:
        return ask(*arguments)
    except NVML_ERRORS:
        return None


def call_text(ask: Callable[..., Any], *arguments: Any) -> str:
    """A text of the driver, whatever its bytes. pynvml fails where they are no UTF-8: that is gone round.

    Raises: NVMLError.
    """
    value = getattr(ask, "__wrapped__", ask)(*arguments)
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def nvml_error_text(error: Exception) -> str:
    """What the driver calls an error; its number where that is no text."""
    try:
        return str(error) or type(error).__name__
    except ValueError:
        return f"NVML {getattr(error, 'value', '')}"
