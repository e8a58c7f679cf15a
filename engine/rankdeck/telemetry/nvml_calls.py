"""Wrap NVML: open it, map metrics to calls, and classify its errors.

Only the sampler's process imports this. nvml_devices.py lists the GPUs, and the provider (nvml.py) decides
which calls are made when.
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
RESTART_ADVICE = tr_noop("Check whether nvidia-smi responds. After a driver update, restart the machine.")
REFUSED_ERRORS = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_FunctionNotFound,
    pynvml.NVMLError_ArgumentVersionMismatch,
    pynvml.NVMLError_NoPermission,
    pynvml.NVMLLibraryMismatchError,  # from an old driver; not a subclass of NVMLError
)
LOST_ERRORS = (pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_ResetRequired, pynvml.NVMLError_GpuNotFound)
NVML_ERRORS = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError)
_METRIC_LIMITS = {metric.name: metric.maximum for metric in METRICS.values()}


@dataclass(frozen=True, eq=False, slots=True)
class NvmlCall:
    """A call to NVML, with the metrics that it returns, in the order of its results."""

    metrics: tuple[str, ...]
    query: Callable[[NvmlGpu], tuple[float | int, ...]]


@dataclass(slots=True)
class NvmlGpu:
    """An open GPU with the state of its calls.

    `paused_until`: for each paused call, the time (CLOCK_MONOTONIC) when the pause ends, and the reading to
    report for its metrics until then. `limits`: maximum plausible value of each metric. `slow_notice_s`: time
    of the last notice about a slow call.
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
                "GPUs need NVIDIA's driver. Without it, rehearse on virtual devices: --devices cpu:2."
            ),
        ) from None
    except NVML_ERRORS as error:
        raise MachineError(
            phrase("NVIDIA's driver does not answer: {error}.", error=nvml_error_text(error)),
            code="driver",
            advice=phrase(RESTART_ADVICE),
        ) from None


def _load_library(library: Path) -> None:
    """Load a stand-in library before pynvml looks for the driver's; the loader then finds the stand-in by its
    soname.

    Raises:
        MachineError: the library cannot be loaded, or has another soname.
    """
    advice = phrase("RANKDECK_NVML points to a simulated NVML; unset it to use the machine's own GPUs.")
    try:
        loaded = ctypes.CDLL(str(library))
        # The same handle proves that pynvml will get the stand-in too.
        if ctypes.CDLL(SONAME)._handle == loaded._handle:
            return
    except OSError as error:
        raise MachineError(
            phrase("{library} cannot be loaded: {error}.", library=library, error=error),
            code="no-driver",
            advice=advice,
        ) from None
    raise MachineError(
        phrase("The soname of {library} is not {name}.", library=library, name=SONAME),
        code="no-driver",
        advice=advice,
    )


def call_or_none(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the function's result, or None if the driver or the GPU refuses the call."""
    try:
        return function(*arguments)
    except NVML_ERRORS:
        return None


def call_text(function: Callable[..., Any], *arguments: Any) -> str:
    """Return a string from the driver, even if it is invalid UTF-8, in which case pynvml's own wrapper fails.

    Raises:
        NVMLError: the call failed.
    """
    # pynvml's decorator decodes strictly; the wrapped function returns bytes.
    value = getattr(function, "__wrapped__", function)(*arguments)
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def nvml_error_text(error: Exception) -> str:
    """Return the driver's message for an error, or the error's number if the message is not valid text."""
    try:
        return str(error) or type(error).__name__
    except ValueError:
        return f"NVML {getattr(error, 'value', '')}"
