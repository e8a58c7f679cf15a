"""Writes heartbeats of an observed rank into its slot of the page shared with its supervisor.

The layout is that of base/heartbeat.py in rankdeck; a test compares the two. A slot has two records, which
are written in turn. Each record starts and ends with its sequence number.
"""

from __future__ import annotations

import mmap
import os
import struct
from time import monotonic

_BEAT = struct.Struct("<qqdd24sq")
_SLOT_BYTES = 2 * _BEAT.size
_pages: list[mmap.mmap] = []
"""All mapped pages, which are never closed: closing a page also closes its file descriptor, whose number may
by then belong to another file of the script."""


class HeartbeatSlot:
    """Slot of rank `rank` in the page at `path`.

    Raises:
        OSError, ValueError: the page does not exist, or has no slot for this rank.
    """

    def __init__(self, path: str, rank: int) -> None:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(handle).st_size < (rank + 1) * _SLOT_BYTES:
                raise ValueError("the heartbeat page has no slot for rank %d" % rank)
            self._page = mmap.mmap(handle, 0)
            _pages.append(self._page)
        finally:
            os.close(handle)
        self._slot = rank * _SLOT_BYTES
        # Continue after the numbers of an earlier writer: the same rank, before it replaced itself with exec.
        both = [_BEAT.unpack_from(self._page, self._slot + index * _BEAT.size) for index in (0, 1)]
        self._number = max(beat[0] for beat in both)
        self._names: dict[str, bytes] = {}
        self._last_beat_s = self._longest_gap_s = 0.0
        self._step = 0

    def beat(self, step: int, phase: str) -> None:
        """Report that this process is now in `phase` of step `step`."""
        name = self._names.get(phase)
        if name is None:
            name = self._names[phase] = phase.encode()[:24].decode(errors="ignore").encode()
        now, number = monotonic(), self._number + 1
        if self._step > 0 and now - self._last_beat_s > self._longest_gap_s:
            self._longest_gap_s = now - self._last_beat_s
        offset = self._slot + number % 2 * _BEAT.size
        _BEAT.pack_into(self._page, offset, number, step, now, self._longest_gap_s, name, number)
        self._number, self._step, self._last_beat_s = number, step, now
