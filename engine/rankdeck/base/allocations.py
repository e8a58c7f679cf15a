"""Parses an out-of-memory message: the requested size, the device, and the memory that was left.

torch writes this as prose, which differs between versions (2.0, 2.1 to 2.3, 2.4 and later) and between CUDA,
ROCm and the CPU. Values that a message does not contain are None. Read diagnose/out_of_memory.py next.
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
    """The values of an out-of-memory message.

    `device` is torch's index of the device in the process that ran out of memory. `in_use_bytes` is the
    memory of this process, including memory outside torch's allocator. `unused_bytes` is memory that the
    allocator has reserved but does not use, in blocks that are too small for the request. `others_bytes` is
    the memory of other processes.
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
    """Parse the message of a torch.OutOfMemoryError, or of torch's CPU allocator."""
    device = _DEVICE.search(text)
    others = [_parse_size(match[1]) or 0 for match in _OTHER_PROCESS.finditer(text)]
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
    match = pattern.search(text)
    return None if match is None else _parse_size(next(filter(None, match.groups())))


def _parse_size(text: str) -> int | None:
    try:
        return parse_bytes(text.replace(" bytes", "").replace("bytes", ""))
    except ValueError:
        return None
