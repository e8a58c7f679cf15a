"""The words of an allocation that failed -> figures: how much was asked for, of which device, what was left.

torch says it in prose, which has changed (2.0, 2.1 to 2.3, 2.4 and later differ), and differs between CUDA,
ROCm and the CPU. What a message does not say is None. Read diagnose/out_of_memory.py next.
"""

from __future__ import annotations

import re

import msgspec

from rankdeck.base.units import parse_bytes

_SIZE = r"([\d.]+ ?(?:bytes|[KMGT]iB))"
_REQUESTED = re.compile(rf"[Tt]ried to allocate {_SIZE}")
_DEVICE = re.compile(r"\bGPU (\d+)\b")
_CAPACITY = re.compile(rf"total capac(?:i)?ty of {_SIZE}|{_SIZE} total capacity")
_FREE = re.compile(rf"of which {_SIZE} is free|{_SIZE} free\b")
_IN_USE = re.compile(rf"this process has {_SIZE} memory in use")
_ALLOCATED = re.compile(rf"{_SIZE} is allocated by PyTorch|{_SIZE} already allocated")
_UNUSED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_OTHER_PROCESS = re.compile(rf"Process \d+ has {_SIZE} memory in use")


class Allocation(msgspec.Struct, omit_defaults=True, frozen=True):
    """`device` is torch's own number of it, in its process. `in_use_bytes`: of this process, what is not
    torch's included; `unused_bytes`: reserved by torch's allocator, and in no piece that was large enough;
    `others_bytes`: of other processes.
    """

    asked_bytes: int | None = None
    device: int | None = None
    capacity_bytes: int | None = None
    free_bytes: int | None = None
    in_use_bytes: int | None = None
    allocated_bytes: int | None = None
    unused_bytes: int | None = None
    others_bytes: int | None = None


def parse_allocation(text: str) -> Allocation:
    """What the message of a torch.OutOfMemoryError, or of torch's CPU allocator, says."""
    device = _DEVICE.search(text)
    others = [_parse_size(found[1]) or 0 for found in _OTHER_PROCESS.finditer(text)]
    return Allocation(
        asked_bytes=_find(_REQUESTED, text),
        device=None if device is None else int(device[1]),
        capacity_bytes=_find(_CAPACITY, text),
        free_bytes=_find(_FREE, text),
        in_use_bytes=_find(_IN_USE, text),
        allocated_bytes=_find(_ALLOCATED, text),
        unused_bytes=_find(_UNUSED, text),
        others_bytes=sum(others) if others else None,
    )


def _find(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return None if found is None else _parse_size(next(filter(None, found.groups())))


def _parse_size(words: str) -> int | None:
    try:
        return parse_bytes(words.replace(" bytes", "").replace("bytes", ""))
    except ValueError:
        return None
