"""The lines of an adopted configuration: tables, values, and comments above what they are about."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import tomlkit

WIDTH = 100


@dataclass(frozen=True)
class Entry:
    """One line with the comment above it; without a value only the comment."""

    key: str
    value: Any = None
    notes: list[str] = field(default_factory=list)


def toml_of(head: Iterable[str], name: str, tables: Mapping[str, list[Entry]]) -> str:
    """The whole file."""
    lines = [*_comment(head), f"name = {in_one_line(name)}"]
    for table, entries in tables.items():
        written = [line for entry in entries for line in _lines(entry)]
        if written:
            lines += ["", f"[{table}]", *written]
    return "\n".join(lines) + "\n"


def _lines(entry: Entry) -> Iterable[str]:
    yield from _comment(entry.notes)
    if entry.value is not None:
        yield f"{entry.key} = {in_one_line(entry.value)}"


def _comment(notes: Iterable[str]) -> Iterable[str]:
    """Sentences are wrapped; code, which is indented, stays as it is."""
    for note in notes:
        parts = [note] if note.startswith(" ") else textwrap.wrap(note, WIDTH) or [""]
        yield from (f"# {part}".rstrip() for part in parts)


def in_one_line(value: Any) -> str:
    """As TOML in one line."""
    if isinstance(value, dict):
        pairs = ", ".join(
            f"{tomlkit.key(key).as_string()} = {in_one_line(inner)}" for key, inner in value.items()
        )
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(in_one_line, value))}]"
    if isinstance(value, float):
        return repr(value)
    return str(tomlkit.item(value).as_string())
