"""Parses the text that selects devices: `auto`, `cpu:4`, `gpu:all`, `gpu:0,2`, `gpu:GPU-<uuid>,...`.

This file only reads the text. telemetry/nvml.py lists the GPUs that exist, and launch/ turns a selection into
the devices of a run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rankdeck.base.errors import DeviceError
from rankdeck.base.phrases import phrase

MAX_VIRTUAL_DEVICES = 64
_FORMS_ADVICE = phrase(
    "Use auto, cpu:N (a rehearsal on N virtual devices), gpu:all, gpu:0,2 or gpu:GPU-<uuid>."
)


@dataclass(frozen=True)
class DeviceSelection:
    """The devices that the user selected.

    `kind`: auto | cpu | gpu. `count` is set for cpu; `gpus` contains indices or UUIDs as typed, empty for
    gpu:all.
    """

    kind: str
    count: int | None = None
    gpus: tuple[str, ...] = ()

    @property
    def known_count(self) -> int | None:
        """Number of devices; None if it depends on the machine."""
        return self.count if self.kind == "cpu" else (len(self.gpus) or None)


def parse_devices(text: str) -> DeviceSelection:
    """Parse a device selection.

    Raises:
        DeviceError: the text is not a device selection; the advice lists the valid forms.
    """
    kind, colon, rest = text.strip().partition(":")
    if kind == "auto" and not colon:
        return DeviceSelection("auto")
    if kind == "cpu":
        if not colon:
            return DeviceSelection("cpu", 1)
        # int() alone would also accept signs, underscores, spaces and other scripts' digits.
        if re.fullmatch(r"[0-9]+", rest) and 1 <= int(rest) <= MAX_VIRTUAL_DEVICES:
            return DeviceSelection("cpu", int(rest))
        raise DeviceError(
            phrase('"{text}" is not a valid number of virtual devices.', text=text),
            advice=phrase("Use cpu:1 to cpu:{most}.", most=MAX_VIRTUAL_DEVICES),
        )
    # torch spells GPUs cuda:0, so that is accepted too.
    if kind in ("gpu", "cuda") and rest == "all":
        return DeviceSelection("gpu")
    if kind in ("gpu", "cuda") and rest:
        names = tuple(name.strip() for name in rest.split(","))
        bad = [name for name in names if not re.fullmatch(r"[0-9]+|(GPU|MIG)-[0-9a-fA-F-]+", name)]
        if bad:
            message = phrase(
                '"{name}" in "{text}" is neither a GPU index nor a GPU UUID.', name=bad[0], text=text
            )
            raise DeviceError(message, advice=_FORMS_ADVICE)
        if len(set(names)) < len(names):
            message = phrase('"{text}" lists the same GPU twice.', text=text)
            raise DeviceError(message, advice=phrase("List each GPU only once."))
        return DeviceSelection("gpu", gpus=names)
    raise DeviceError(phrase('"{text}" is not a valid device selection.', text=text), advice=_FORMS_ADVICE)
