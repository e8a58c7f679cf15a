"""Beats of an observed rank in its slot of the page that it shares with its supervisor.

The same bytes as base/heartbeat.py in rankdeck, which a test holds: each beat goes into one of two places in
turn, with its number in front and behind.
"""

from __future__ import annotations

import mmap
import os
import struct
from time import monotonic

_BEAT = struct.Struct("<qqdd24sq")
_SLOT_BYTES = 2 * _BEAT.size
_pages: list[mmap.mmap] = []
"""All that were mapped. Each has a descriptor, whose number may be the script's by the time it is let go."""


class HeartbeatSlot:
    """Slot `rank` of the page at `path`.

    Raises:
        OSError, ValueError: there is no such page, or it has no such slot.
    """

    def __init__(self, path: str, rank: int) -> None:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(handle).st_size < (rank + 1) * _SLOT_BYTES:
                raise ValueError("the page of heartbeats has no slot for rank %d" % rank)
            self._page = mmap.mmap(handle, 0)
            _pages.append(self._page)
        finally:
            os.close(handle)
        self._slot = rank * _SLOT_BYTES
        # Whoever had the slot before (the same rank, before it executed itself anew) is overtaken.
        both = [_BEAT.unpack_from(self._page, self._slot + place * _BEAT.size) for place in (0, 1)]
        self._number = max(beat[0] for beat in both)
        self._names: dict[str, bytes] = {}
        self._last_beat_s = self._longest_gap_s = 0.0
        self._step = 0

    def beat(self, step: int, phase: str) -> None:
        """Say that `step` is in `phase` now."""
        name = self._names.get(phase)
        if name is None:
            name = self._names[phase] = phase.encode()[:24].decode(errors="ignore").encode()
        now, number = monotonic(), self._number + 1
        if self._step > 0 and now - self._last_beat_s > self._longest_gap_s:
            self._longest_gap_s = now - self._last_beat_s
        place = self._slot + number % 2 * _BEAT.size
        _BEAT.pack_into(self._page, place, number, step, now, self._longest_gap_s, name, number)
        self._number, self._step, self._last_beat_s = number, step, now
