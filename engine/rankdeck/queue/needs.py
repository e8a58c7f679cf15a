"""The devices that a user's selection asks for. Apart from entry.py, which a listing reads without it."""

from __future__ import annotations

from rankdeck.base.errors import DeviceError
from rankdeck.base.phrases import phrase
from rankdeck.config.devices import parse_devices
from rankdeck.queue.entry import Need


def need_of(text: str, *, num_gpus: int, default_count: int | None = None) -> Need:
    """Return the devices that a selection such as "2", "gpu:0,2", "cpu:4" or "auto" asks for.

    `num_gpus`: number of GPUs of this machine. A plain number means that many GPUs or, without any GPU, CPU
    slots. `default_count`: number of devices if "auto" leaves it open; a machine without GPUs uses 2 slots.

    Raises:
        DeviceError: the text is no selection, or asks for more GPUs than there are.
    """
    if text.strip().isdecimal():
        return _need_of_number(int(text), num_gpus)
    selection = parse_devices(text)
    if selection.kind == "cpu":
        return Need("cpu", selection.count or 1)
    if selection.kind == "auto" and not num_gpus:
        return Need("cpu", default_count or 2)
    if selection.kind == "auto":
        return Need("gpu", default_count or 0)
    if selection.gpus:
        return Need("gpu", len(selection.gpus), list(selection.gpus))
    return _need_of_number(num_gpus, num_gpus)


def _need_of_number(number: int, num_gpus: int) -> Need:
    if number < 1:
        raise DeviceError(
            phrase("A run needs at least one device."), advice=phrase("For example: --devices 2")
        )
    if num_gpus and number > num_gpus:
        raise DeviceError(
            phrase(
                "This machine has {there} GPUs, and {number} were requested.", there=num_gpus, number=number
            ),
            advice=phrase(
                "Ask for fewer, or for virtual devices with --devices cpu:{number}.", number=number
            ),
        )
    return Need("gpu" if num_gpus else "cpu", number)
