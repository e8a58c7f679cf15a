"""The GPUs of this machine through NVML, the library behind nvidia-smi: listed once, read once.

Every reading that the driver refuses is None; absence is never 0. Indices are NVML's (PCI order), which
nvidia-smi shows and CUDA does not promise, so whatever is kept is kept by UUID. NVML is opened and closed
around the listing: nothing of it stays in the caller's process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from rankdeck.errors import MachineError

T = TypeVar("T")


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU.

    `kind`: compute | graphics. `name` is None for a process outside this namespace, `used_bytes` where the
    driver does not tell.
    """

    pid: int
    name: str | None
    used_bytes: int | None
    kind: str = "compute"


@dataclass(frozen=True)
class Gpu:
    """One GPU at one moment. `utilisation` is 0..1; None is what the driver does not tell."""

    index: int
    uuid: str
    name: str
    total_bytes: int | None = None
    used_bytes: int | None = None
    utilisation: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    processes: list[GpuProcess] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The row of `rankdeck devices --json`."""
        return asdict(self) | {"kind": "gpu", "age_s": 0.0}


def list_gpus() -> list[Gpu]:
    """Every GPU of the machine, in nvidia-smi's order; empty when the driver knows none.

    Raises:
        MachineError: there is no driver, or it does not answer.
    """
    with _open_nvml() as nvml:
        return [_read(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]


@contextmanager
def _open_nvml() -> Iterator[Any]:
    import pynvml

    advice = "GPUs need NVIDIA's driver. Without one, rehearse on virtual devices: --devices cpu:2."
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        raise MachineError("No NVIDIA driver found.", code="no-driver", advice=advice) from None
    except pynvml.NVMLError as error:
        raise MachineError(
            f"NVIDIA's driver does not answer: {error}.",
            code="driver",
            advice="Try nvidia-smi; after an update of the driver the machine needs a restart.",
        ) from None
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise MachineError(
            f"NVIDIA's driver failed: {error}.", code="driver", advice="Try nvidia-smi."
        ) from None
    finally:
        pynvml.nvmlShutdown()


def _read(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = _memory(nvml, handle)
    busy = _known(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
    celsius = _known(nvml, lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    watts = _known(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000)
    return Gpu(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        total_bytes=memory and int(memory.total),
        used_bytes=memory and int(memory.used),
        utilisation=busy,
        temperature_c=None if celsius is None else float(celsius),
        power_w=watts,
        processes=_processes(nvml, handle),
    )


def _known(nvml: Any, read: Callable[[], T]) -> T | None:
    """The reading, or None where the driver or the card refuses it."""
    try:
        return read()
    except (nvml.NVMLError, nvml.NVMLLibraryMismatchError):
        return None


def _memory(nvml: Any, handle: Any) -> Any:
    # The first version counts the driver's own reserve as used (since R510); old drivers have no second.
    second = _known(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))
    return second or _known(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))


def _processes(nvml: Any, handle: Any) -> list[GpuProcess]:
    compute = _known(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or []
    graphics = _known(nvml, lambda: nvml.nvmlDeviceGetGraphicsRunningProcesses(handle)) or []
    # A process that does both is listed twice by the driver; compute is what keeps a GPU from a run.
    found = {item.pid: _process(item, "graphics") for item in graphics}
    found |= {item.pid: _process(item, "compute") for item in compute}
    return [found[pid] for pid in sorted(found)]


def _process(item: Any, kind: str) -> GpuProcess:
    used = item.usedGpuMemory
    return GpuProcess(item.pid, _process_name(item.pid), None if used is None else int(used), kind)


def _process_name(pid: int) -> str | None:
    import psutil

    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
