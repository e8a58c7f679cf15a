"""What is planned for: devices, their size and speed, whether GPU rules hold, and who else is on them."""

from __future__ import annotations

from dataclasses import dataclass

from rankdeck.config.gpu_models import GpuModel, Rates


@dataclass(frozen=True)
class TargetDevice:
    """`total_bytes` is None where nobody named a size; `gpu` is None for a virtual device."""

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
    """

    words: str
    devices: tuple[TargetDevice, ...]
    like_cuda: bool
    host_bytes: int | None = None

    @property
    def num_devices(self) -> int:
        return len(self.devices)

    @property
    def devices_use(self) -> str:
        """What a configuration for it says under devices.use, so that it is refused what GPUs refuse."""
        if self.like_cuda:
            return "gpu:" + ",".join(str(index) for index in range(self.num_devices))
        return f"cpu:{self.num_devices}"
