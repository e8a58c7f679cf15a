"""CUDA_VISIBLE_DEVICES of whoever starts a run (a person, a scheduler): what `auto` and `gpu:all` mean.

A GPU that is named is taken whatever the variable says, because people name them by what nvidia-smi shows.
Its numbers count in CUDA's order, which is nvidia-smi's only with CUDA_DEVICE_ORDER=PCI_BUS_ID or where all
GPUs are of one model. As CUDA does, everything after the first entry that names no GPU is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rankdeck.base.errors import DeviceError
from rankdeck.telemetry.listing import GpuStatus

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus(gpus: Sequence[GpuStatus], environment: Mapping[str, str]) -> list[GpuStatus]:
    """The GPUs that the variable leaves, in its order; all where it is not set.

    Raises:
        DeviceError: it counts in an order that only CUDA knows.
    """
    text = environment.get(VARIABLE)
    if text is None:
        return list(gpus)
    visible: list[GpuStatus] = []
    for entry in (entry.strip() for entry in text.split(",")):
        if entry.isdecimal():
            _check_order(text, gpus, environment)
            matching = [gpu for gpu in gpus if gpu.parent is None and gpu.index == int(entry)]
        else:
            matching = [gpu for gpu in gpus if entry and gpu.uuid.startswith(entry)]
        if len(matching) != 1:
            break
        visible.append(matching[0])
    return visible


def _check_order(text: str, gpus: Sequence[GpuStatus], environment: Mapping[str, str]) -> None:
    models = {gpu.name for gpu in gpus if gpu.parent is None}
    if len(models) > 1 and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise DeviceError(
            f"{VARIABLE}={text} counts in CUDA's own order, and the GPUs here are of several models.",
            code="visible-devices",
            advice="Set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs as nvidia-smi counts: --devices gpu:0,1.",
        )
