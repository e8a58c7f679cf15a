"""Share a sampler's current call with its watcher in shared memory: the device, the call, and its start time.

A library that crashes ends its process without a message. The sampler marks each call before it makes the
call: the last mark names the device of a crashed call, so that the next sampler can skip that device, and an
old mark means that a call has hung. If the process crashes, faulthandler writes the crashed thread's stack
into the same file, behind the mark. If the stack shows that the thread that waits for events crashed, no
device is to blame.
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
"""Stand-in for a device's name while a sampler waits for events. If the sampler crashes during that wait, the
next one does not wait for events."""


class CallMark(NamedTuple):
    """The sampler's most recent mark. `device` is "" if no device is being read. `age_s` is None before the
    first mark."""

    device: str
    call: str
    age_s: float | None


class CrashMarker:
    """Shared memory in an unnamed file. The watcher creates the file; the sampler inherits the file
    descriptor."""

    def __init__(self, handle: int) -> None:
        self.fd = handle
        self._map = mmap.mmap(handle, _LAYOUT.size)

    @classmethod
    def create(cls) -> CrashMarker:
        with tempfile.TemporaryFile() as file:
            file.truncate(_LAYOUT.size)
            # dup, because the file's own descriptor closes with the block.
            return cls(os.dup(file.fileno()))

    def mark(self, device: str, call: str = "") -> None:
        """Record that `call` on `device` starts now; a `device` of "" means no device."""
        _LAYOUT.pack_into(self._map, 0, time.monotonic(), device.encode()[:120], call.encode())

    def enable_crash_stack(self) -> None:
        """Make this process write the crashed thread's stack to the file if it crashes."""
        os.lseek(self.fd, _LAYOUT.size, os.SEEK_SET)
        # Only the crashed thread's stack, which shows whether the event thread or the reading thread crashed.
        faulthandler.enable(self.fd, all_threads=False)

    def clear(self) -> None:
        """Remove the mark and the stack."""
        os.ftruncate(self.fd, _LAYOUT.size)
        _LAYOUT.pack_into(self._map, 0, 0.0, b"", b"")

    def read(self) -> CallMark:
        at_s, *texts = _LAYOUT.unpack_from(self._map, 0)
        device, call = (text.rstrip(b"\0").decode(errors="replace") for text in texts)
        return CallMark(device, call, time.monotonic() - at_s if at_s else None)

    def has_crashed_in(self, function: str) -> bool:
        """Check whether the crashed thread was inside `function`."""
        stack = os.pread(self.fd, _STACK_BYTES, _LAYOUT.size)
        return f" in {function}\n".encode() in stack

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)
