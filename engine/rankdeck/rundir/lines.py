"""What the names and the lines of a run's event files say."""

from __future__ import annotations

import msgspec

from rankdeck import events


def attempt_of(file_name: str) -> int:
    """12 for "rank-0.12.jsonl"; 0 where the name tells none."""
    parts = file_name.rsplit(".", 2)
    return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() else 0


def decode_or_none(line: bytes) -> events.AnyEvent | None:
    try:
        return events.decode(line)
    except msgspec.DecodeError:
        return None
