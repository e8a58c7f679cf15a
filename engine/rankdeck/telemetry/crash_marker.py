"""Where a sampler is, for whoever watches it: the device that it asks, for what and when, in memory that both
share.

A library that crashes takes its process along without a word. What was noted last tells which device it was
asked about, so that the next sampler can leave that one out; an old note tells that a call does not come
back. Behind the note Python writes the stack of the thread that crashed: one of a sampler waits for events,
and no device is to blame for that one.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import struct
import tempfile
import time
from typing import NamedTuple

_LAYOUT = struct.Struct("d120s80s")
_STACK_BYTES = 1 << 14
EVENTS = "events"
"""What is left out, as a device is, where waiting for the driver's events has ended a sampler."""


class CallMark(NamedTuple):
    """`device`: "" where none is asked. `age_s`: None before the first note."""

    device: str
    call: str
    age_s: float | None


class CrashMarker:
    """A few bytes of a file without a name. The watcher makes it, the sampler opens it by its descriptor."""

    def __init__(self, handle: int) -> None:
        self.fd = handle
        self._map = mmap.mmap(handle, _LAYOUT.size)

    @classmethod
    def create(cls) -> CrashMarker:
        with tempfile.TemporaryFile() as file:
            file.truncate(_LAYOUT.size)
            return cls(os.dup(file.fileno()))

    def mark(self, device: str, call: str = "") -> None:
        """`device` is asked for `call` from now on; "" is none."""
        _LAYOUT.pack_into(self._map, 0, time.monotonic(), device.encode()[:120], call.encode())

    def enable_crash_stack(self) -> None:
        """From now on a crash of this process leaves the stack of the thread that met it."""
        os.lseek(self.fd, _LAYOUT.size, os.SEEK_SET)
        faulthandler.enable(self.fd, all_threads=False)

    def clear(self) -> None:
        """As before the first one."""
        os.ftruncate(self.fd, _LAYOUT.size)
        _LAYOUT.pack_into(self._map, 0, 0.0, b"", b"")

    def read(self) -> CallMark:
        at_s, *texts = _LAYOUT.unpack_from(self._map, 0)
        device, call = (text.rstrip(b"\0").decode(errors="replace") for text in texts)
        return CallMark(device, call, time.monotonic() - at_s if at_s else None)

    def has_crashed_in(self, function: str) -> bool:
        """Whether the thread that crashed was within the function."""
        stack = os.pread(self.fd, _STACK_BYTES, _LAYOUT.size)
        return f" in {function}\n".encode() in stack

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)
