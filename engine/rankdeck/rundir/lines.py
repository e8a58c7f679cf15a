"""What the names and the lines of a run's event files say, and the events at a file's end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from rankdeck import events
from rankdeck.base import files

LONGEST_LINE_BYTES = 8 << 20
"""No line of an event file is longer: a file that has one is damaged from there on."""
_LOOKED_BACK_BYTES = 4 << 20


def attempt_of(file_name: str) -> int:
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
    least = max(0, end - _LOOKED_BACK_BYTES)
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
