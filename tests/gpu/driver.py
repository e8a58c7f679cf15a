"""The driver's own words on the card, by pynvml without the product; in a dry run the simulated library's."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from rankdeck.telemetry.gpu_status import GpuStatus
from rankdeck.telemetry.listing import list_gpus
from rankdeck.telemetry.nvml_calls import open_nvml
from tests.gpu.device import MIB, AnyDevice, Gpu

_CONTEXT_BYTES = 300 * MIB


@dataclass(frozen=True)
class Reading:
    """Of the whole card, at one moment; `used_bytes` is without what the driver keeps for itself."""

    used_bytes: int
    temperature_c: float
    power_w: float


class Driver:
    """NVML, opened here."""

    def __init__(self, device: AnyDevice) -> None:
        self._simulated = None if isinstance(device, Gpu) else _Simulated()
        open_nvml(None if self._simulated is None else self._simulated.library)
        self.uuid = self._uuid_of(device)
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(self.uuid)

    def _uuid_of(self, device: AnyDevice) -> str:
        if isinstance(device, Gpu):
            uuid = device.uuid()
            return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        assert self._simulated is not None
        return self._simulated.uuid

    def read(self) -> Reading:
        memory = pynvml.nvmlDeviceGetMemoryInfo(self._handle, version=pynvml.nvmlMemory_v2)
        celsius = pynvml.nvmlDeviceGetTemperature(self._handle, pynvml.NVML_TEMPERATURE_GPU)
        return Reading(int(memory.used), celsius, pynvml.nvmlDeviceGetPowerUsage(self._handle) / 1000)

    def sampled(self) -> GpuStatus:
        """The same card as the product's sampler tells it."""
        return next(gpu for gpu in list_gpus() if gpu.uuid == self.uuid)

    def put(self, reserved_bytes: int) -> None:
        """What this process holds now: a simulated driver has to be told, a real one knows."""
        if self._simulated is not None:
            self._simulated.put(reserved_bytes)


class _Simulated:
    """One idle GPU in a folder that lives as long as this."""

    def __init__(self) -> None:
        from tests.helpers.nvmlsim import SimulatedGpus, build

        self._folder: Any = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        self.library = build(folder / "library")
        self._gpus = SimulatedGpus(folder, 1, self.library)
        self.uuid = self._gpus.uuid(0)
        self._idle_bytes = self._gpus.device(0).used
        os.environ.update(self._gpus.simulated_environment)
        self.put(0)

    def put(self, reserved_bytes: int) -> None:
        own_bytes = _CONTEXT_BYTES + reserved_bytes
        self._gpus.device(0).used = self._idle_bytes + own_bytes
        self._gpus.put_processes(0, (os.getpid(), own_bytes))
