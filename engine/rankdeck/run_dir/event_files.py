"""What the names and the lines of a run's event files say, and the events at a file's end."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rankdeck import events
from rankdeck.base import files

MAX_LINE_BYTES = 8 << 20
"""No line of an event file is longer: a file that has one is damaged from there on."""
_MAX_TAIL_BYTES = 4 << 20


def parse_attempt(file_name: str) -> int:
    """12 for "rank-0.12.jsonl"; 0 where the name tells none."""
    parts = file_name.rsplit(".", 2)
    return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() else 0


def decode_or_none(line: bytes) -> events.AnyEvent | None:
    try:
        return events.decode(line)
    except msgspec.DecodeError:
        return None


def lines_from_end(path: Path, chunk_bytes: int = 1 << 18) -> Iterator[bytes]:
    """The last lines of a file (some MiB of them), the last one first, read a chunk at a time; a last line
    without its end is left out. Nothing where there is no such file."""
    try:
        end, data = files.read_tail(path, chunk_bytes)
    except OSError:
        return
    lines = data.split(b"\n")[:-1]
    least = max(0, end - _MAX_TAIL_BYTES)
    while True:
        head = lines.pop(0) if end and lines else b""
        yield from reversed(lines)
        if end <= least:
            return
        start = max(0, end - chunk_bytes)
        try:
            lines = (files.read_at(path, start, end - start) + head).split(b"\n")
        except OSError:
            return
        end = start


def events_from_end(path: Path) -> Iterator[events.AnyEvent]:
    """The events of a file, the last one first; lines that are none are passed over."""
    return (event for line in lines_from_end(path) if (event := decode_or_none(line)) is not None)


def first_events(path: Path, num_bytes: int = 1 << 16) -> list[events.AnyEvent]:
    """The events in the first bytes of a file; empty where there is no such file."""
    try:
        lines = files.read_at(path, 0, num_bytes).split(b"\n")[:-1]
    except OSError:
        return []
    return [event for line in lines if (event := decode_or_none(line)) is not None]


# Appending events: each writer owns its files, so nothing is ever locked to write.


class EventWriter:
    """Appends events to one file: one line per event, one write per line, `seq` without gaps. Of a file that
    is there already, it goes on where that ends.

    A full disk never raises: the line is dropped, counted, and said as soon as there is room again. `dropped`
    counts them, and `num_unreported` those of which no event tells. `is_continued`: the file had events
    before.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)  # the run itself, if it is gone, stays gone
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._seq = _next_seq(self._handle, path)
        self.is_continued = self._seq > 0
        self.num_unreported = 0
        self.drop_reason, self.error_number = "", 0
        """Why a line was dropped last, in words and as errno."""
        self.dropped = 0

    def write(self, event: events.Event, *, sync: bool = False) -> bool:
        """Whether the event is in the file.

        `sync` also waits for the disk (life-cycle events only: 150 us).
        """
        if self.num_unreported and not self._write_line(
            events.Dropped(lines=self.num_unreported, reason=self.drop_reason)
        ):
            return self._drop_event()
        self.num_unreported = 0
        if not self._write_line(event):
            return self._drop_event()
        if sync:
            try:
                os.fdatasync(self._handle)
            except OSError as error:
                self._record_error(error)
        return True

    def _write_line(self, event: events.Event) -> bool:
        event.seq = self._seq
        event.t = time.time()
        line = events.encode(event)
        written = 0
        try:
            while written < len(line):  # a second write says why the first one was short
                written += os.write(self._handle, line[written:])
        except OSError as error:
            self._record_error(error)
            if written:
                # Take the torn part back, so that no reader sees half a fact.
                with contextlib.suppress(OSError):
                    os.ftruncate(self._handle, os.fstat(self._handle).st_size - written)
            return False
        self._seq += 1
        return True

    def _record_error(self, error: OSError) -> None:
        self.drop_reason, self.error_number = error.strerror or str(error), error.errno or errno.EIO

    def _drop_event(self) -> bool:
        # A dropped line leaves a gap in seq: a reader sees that something is missing even if this is never
        # said.
        self._seq += 1
        self.num_unreported += 1
        self.dropped += 1
        return False

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
