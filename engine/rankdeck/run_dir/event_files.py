"""Write event files, and read their first and last events."""

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

# Decoding a line of 64 MiB took 16 s and 3 GB.
MAX_LINE_BYTES = 8 << 20
"""Maximum length of a line in an event file; reading stops at a longer line, and the file counts as damaged.
"""
_MAX_TAIL_BYTES = 4 << 20


def parse_attempt(file_name: str) -> int:
    """Return the attempt number in a file name: 12 for "rank-0.12.jsonl", 0 if the name has none."""
    fields = file_name.rsplit(".", 2)
    return int(fields[1]) if len(fields) == 3 and fields[1].isdecimal() else 0


def decode_or_none(line: bytes) -> events.AnyEvent | None:
    try:
        return events.decode(line)
    except msgspec.DecodeError:
        return None


def lines_from_end(path: Path, chunk_bytes: int = 1 << 18) -> Iterator[bytes]:
    """Yield the last lines of a file (about 4 MiB), newest first, reading a chunk at a time.

    An unterminated last line is left out. Yield nothing if the file does not exist.
    """
    try:
        end, data = files.read_tail(path, chunk_bytes)
    except OSError:
        return
    lines = data.split(b"\n")[:-1]
    min_offset = max(0, end - _MAX_TAIL_BYTES)
    while True:
        partial_line = lines.pop(0) if end and lines else b""
        yield from reversed(lines)
        if end <= min_offset:
            return
        start = max(0, end - chunk_bytes)
        try:
            lines = (files.read_at(path, start, end - start) + partial_line).split(b"\n")
        except OSError:
            return
        end = start


def events_from_end(path: Path) -> Iterator[events.AnyEvent]:
    """Yield the events of a file, newest first, skipping lines that are not events."""
    return (event for line in lines_from_end(path) if (event := decode_or_none(line)) is not None)


def first_events(path: Path, num_bytes: int = 1 << 16) -> list[events.AnyEvent]:
    """Return the events in a file's first `num_bytes` bytes; empty if the file does not exist."""
    try:
        lines = files.read_at(path, 0, num_bytes).split(b"\n")[:-1]
    except OSError:
        return []
    return [event for line in lines if (event := decode_or_none(line)) is not None]


# Writing events: each writer has its own files, so that no write needs a lock.


class EventWriter:
    """Writer of events to one file: one line and one write per event, with consecutive `seq` numbers.

    Events are appended to an existing file; `is_continued` is true if that file had events. A full disk never
    raises an error: the line is dropped and counted, and the count is reported once there is space again.
    `dropped` counts all dropped lines, `num_unreported` those that no event has reported yet.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)  # without parents: a run that was removed stays removed
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._seq = _next_seq(self._handle, path)
        self.is_continued = self._seq > 0
        self.num_unreported = 0
        self.drop_reason, self.error_number = "", 0
        """Reason why the latest line was dropped, as text and as errno."""
        self.dropped = 0

    def write(self, event: events.Event, *, sync: bool = False) -> bool:
        """Append an event and return whether it is in the file.

        If `sync` is true, also wait until the line is on disk. This takes 150 us, so use it only for
        life-cycle events.
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
            while written < len(line):  # after a short write, the next one raises the reason
                written += os.write(self._handle, line[written:])
        except OSError as error:
            self._record_error(error)
            if written:
                # Remove the partial line, so that no reader sees half an event.
                with contextlib.suppress(OSError):
                    os.ftruncate(self._handle, os.fstat(self._handle).st_size - written)
            return False
        self._seq += 1
        return True

    def _record_error(self, error: OSError) -> None:
        self.drop_reason, self.error_number = error.strerror or str(error), error.errno or errno.EIO

    def _drop_event(self) -> bool:
        # A dropped line leaves a gap in seq: readers see that something is missing even if no event ever
        # reports it.
        self._seq += 1
        self.num_unreported += 1
        self.dropped += 1
        return False

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _next_seq(handle: int, path: Path) -> int:
    """Return the `seq` after the file's last event; first terminate the last line if it is unfinished."""
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
