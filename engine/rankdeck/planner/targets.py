"""What is planned for: devices, their size and speed, whether GPU rules hold, and who else is on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rankdeck.config.gpu_models import GpuModel, Rates


def usable_bytes(total_bytes: int | None, driver_bytes: int | None) -> int | None:
    """What programs can have of a device's memory; None where nobody named its size."""
    return None if total_bytes is None else total_bytes - (driver_bytes or 0)


@dataclass(frozen=True)
class TargetDevice:
    """`total_bytes` is what programs can have, None where nobody named a size; `gpu` is None for a virtual
    device."""

    name: str | None
    total_bytes: int | None
    others_bytes: int = 0
    gpu: GpuModel | None = None

    @property
    def room_bytes(self) -> int | None:
        """What is there for a run, None where nobody named a size."""
        return None if self.total_bytes is None else self.total_bytes - self.others_bytes

    @property
    def kind(self) -> tuple[GpuModel | None, int | None]:
        """Devices of one kind need the same for the same tensors."""
        return self.gpu, self.room_bytes

    @property
    def rates(self) -> Rates | None:
        return None if self.gpu is None else self.gpu.rates


@dataclass(frozen=True)
class Target:
    """`words` name it for people ("8 x A100-80GB"). `like_cuda`: these are GPUs, whoever has them.

    `host_bytes`: the memory that virtual devices have together, None where that is not this machine's.
    `by_host`: how many of the devices each host has, in a run of several.
    """

    words: str
    devices: tuple[TargetDevice, ...]
    like_cuda: bool
    host_bytes: int | None = None
    by_host: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_devices(self) -> int:
        return len(self.devices)

    def as_tables(self, across: Sequence[str]) -> dict[str, Any]:
        """What a configuration for it says of devices and hosts, so that it is refused what these refuse."""
        hosts = {name: self._use(count) for name, count in self.by_host.items()}
        of_hosts = {"use": list(hosts), "devices": hosts, "across": list(across)} if hosts else {}
        return {"devices": {"use": self._use(self.num_devices)}, "hosts": of_hosts}

    def _use(self, count: int) -> str:
        return "gpu:" + ",".join(map(str, range(count))) if self.like_cuda else f"cpu:{count}"
