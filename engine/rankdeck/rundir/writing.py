"""Appending events: each writer owns its files, so nothing is ever locked to write."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path

from rankdeck import events
from rankdeck.rundir.lines import decode_or_none, lines_from_end


class EventWriter:
    """Appends events to one file: one line per event, one write per line, `seq` without gaps. Of a file that
    is there already, it goes on where that ends.

    A full disk never raises: the line is dropped, counted, and said as soon as there is room again. `dropped`
    counts them, and `unsaid` those of which no event tells. `goes_on`: the file had events before.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)  # the run itself, if it is gone, stays gone
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._seq = _next_seq(self._handle, path)
        self.goes_on = self._seq > 0
        self.unsaid = 0
        self._reason = ""
        self.error_number = 0
        """Why a line was dropped last (errno)."""
        self.dropped = 0

    def write(self, event: events.Event, *, sync: bool = False) -> bool:
        """Whether the event is in the file.

        `sync` also waits for the disk (life-cycle events only: 150 us).
        """
        if self.unsaid and not self._put(events.Dropped(lines=self.unsaid, reason=self._reason)):
            return self._drop()
        self.unsaid = 0
        if not self._put(event):
            return self._drop()
        if sync:
            try:
                os.fdatasync(self._handle)
            except OSError as error:
                self._note(error)
        return True

    def _put(self, event: events.Event) -> bool:
        event.seq = self._seq
        event.t = time.time()
        line = events.encode(event)
        written = 0
        try:
            while written < len(line):  # a second write says why the first one was short
                written += os.write(self._handle, line[written:])
        except OSError as error:
            self._note(error)
            if written:
                # Take the torn part back, so that no reader sees half a fact.
                with contextlib.suppress(OSError):
                    os.ftruncate(self._handle, os.fstat(self._handle).st_size - written)
            return False
        self._seq += 1
        return True

    def _note(self, error: OSError) -> None:
        self._reason, self.error_number = error.strerror or str(error), error.errno or errno.EIO

    def _drop(self) -> bool:
        # A dropped line leaves a gap in seq: a reader sees that something is missing even if this is never
        # said.
        self._seq += 1
        self.unsaid += 1
        self.dropped += 1
        return False

    @property
    def drop_reason(self) -> str:
        return self._reason

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _next_seq(handle: int, path: Path) -> int:
    """The number after that of the last event; a line that its writer did not end is ended here."""
    size = os.fstat(handle).st_size
    if not size:
        return 0
    if os.pread(handle, 1, size - 1) != b"\n":
        os.write(handle, b"\n")
    for lines_after, line in enumerate(lines_from_end(path)):
        event = decode_or_none(line)
        if event is not None:
            return event.seq + 1 + lines_after
    return 0
