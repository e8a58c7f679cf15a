"""The torch devices behind a rank's devices, and whether they are those that were chosen. Read worker.py
before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rankdeck import events
from rankdeck.base.errors import MachineError
from rankdeck.base.phrases import phrase


def torch_devices(
    infos: Sequence[events.DeviceInfo], local_rank: int
) -> tuple[list[torch.device], list[str | None]]:
    """The devices, and the UUIDs that they say themselves (None for virtual ones). The first is made CUDA's
    current one.

    Raises: MachineError when a GPU is not the one that was chosen.
    """
    if infos[0].kind == "virtual":
        return [torch.device("cpu")] * len(infos), [None] * len(infos)
    if torch.cuda.device_count() < len(infos):
        raise MachineError(
            phrase(
                "torch sees {num_seen} CUDA devices where {num_chosen} were chosen.",
                num_seen=torch.cuda.device_count(),
                num_chosen=len(infos),
            ),
            advice=phrase("Install a CUDA build of torch that fits the driver, or rehearse on cpu:N."),
        )
    first = 0 if len(infos) > 1 else local_rank
    devices = [torch.device("cuda", first + index) for index in range(len(infos))]
    uuids = [_uuid_of(device, info) for device, info in zip(devices, infos, strict=True)]
    for info, uuid in zip(infos, uuids, strict=True):
        if info.uuid is not None and info.uuid != uuid:
            raise MachineError(
                phrase(
                    "{device} was chosen as {chosen}, but torch's device is {uuid}.",
                    device=info.name,
                    chosen=info.uuid,
                    uuid=uuid,
                ),
                advice=phrase("Unset CUDA_VISIBLE_DEVICES, or choose the GPU by its UUID."),
            )
    torch.cuda.set_device(devices[0])
    return devices, [*uuids]


def _uuid_of(device: Any, info: events.DeviceInfo) -> str:
    """The UUID that torch tells of a device, written as NVML writes it: torch leaves out what it names."""
    kind = "MIG" if (info.uuid or "").startswith("MIG-") else "GPU"
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"{kind}-{uuid}"
