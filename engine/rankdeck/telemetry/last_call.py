"""Where a sampler is, for whoever watches it: the device that it asks and when, in memory that both share.

A library that crashes takes its process along without a word. What was noted last tells which device it
was asked about, so that the next sampler can leave that one out; an old note tells that a call does not come
back.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time

_LAYOUT = struct.Struct("d120s")


class LastCall:
    """A few bytes of a file without a name. The watcher makes it, the sampler opens it by its descriptor."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._map = mmap.mmap(handle, _LAYOUT.size)

    @classmethod
    def new(cls) -> LastCall:
        with tempfile.TemporaryFile() as file:
            file.truncate(_LAYOUT.size)
            return cls(os.dup(file.fileno()))

    def note(self, device: str) -> None:
        """`device` is asked from now on; "" is none."""
        _LAYOUT.pack_into(self._map, 0, time.monotonic(), device.encode()[:120])

    def clear(self) -> None:
        """As before the first one."""
        _LAYOUT.pack_into(self._map, 0, 0.0, b"")

    def read(self) -> tuple[str, float | None]:
        """(the device, or "", and how many seconds ago that was; None before the first)."""
        at_s, device = _LAYOUT.unpack_from(self._map, 0)
        return device.rstrip(b"\0").decode(errors="replace"), time.monotonic() - at_s if at_s else None

    def close(self) -> None:
        self._map.close()
        os.close(self.handle)
