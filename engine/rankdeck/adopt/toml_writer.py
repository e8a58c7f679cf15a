"""Formats an adopted configuration: tables and values, with comments above them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import tomlkit

COMMENT_WIDTH = 100


@dataclass(frozen=True)
class TomlEntry:
    """A `key = value` line and the comment above it; only the comment if `value` is None."""

    key: str
    value: Any = None
    notes: list[str] = field(default_factory=list)


def format_toml(header_lines: Iterable[str], name: str, tables: Mapping[str, list[TomlEntry]]) -> str:
    """Format the whole file: the header as comments, the `name` of runs with this file, and the tables."""
    lines = [*_comment_lines(header_lines), f"name = {format_inline(name)}"]
    for table, entries in tables.items():
        written = [line for entry in entries for line in _entry_lines(entry)]
        if written:
            lines += ["", f"[{table}]", *written]
    return "\n".join(lines) + "\n"


def _entry_lines(entry: TomlEntry) -> Iterable[str]:
    yield from _comment_lines(entry.notes)
    if entry.value is not None:
        yield f"{entry.key} = {format_inline(entry.value)}"


def _comment_lines(notes: Iterable[str]) -> Iterable[str]:
    """Yield the notes as comment lines: sentences are wrapped, and indented code is left as it is."""
    for note in notes:
        lines = [note] if note.startswith(" ") else textwrap.wrap(note, COMMENT_WIDTH) or [""]
        yield from (f"# {line}".rstrip() for line in lines)


def format_inline(value: Any) -> str:
    """Format a value as TOML on one line."""
    if isinstance(value, dict):
        pairs = ", ".join(
            f"{tomlkit.key(key).as_string()} = {format_inline(inner)}" for key, inner in value.items()
        )
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(format_inline, value))}]"
    if isinstance(value, float):
        return repr(value)
    return str(tomlkit.item(value).as_string())
