"""Which line of a TOML file an option stands on: tomllib tells values, not places.

A scan of headers and keys is enough, since a value inside an inline table stands on the line of its table.
"""

from __future__ import annotations

import re

Place = tuple[str, ...]

_HEADER = re.compile(r"^\s*\[{1,2}\s*([^\[\]]+?)\s*\]{1,2}\s*(#.*)?$")
_KEY = re.compile(
    r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")


def _parts(dotted: str) -> Place:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))


def key_lines(text: str) -> dict[Place, int | None]:
    """Line (from 1) of every table header and key in the text, by path."""
    lines: dict[Place, int | None] = {}
    table: Place = ()
    fence: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if fence is not None:
            if fence in line:
                fence = None
            continue
        if header := _HEADER.match(line):
            table = _parts(header[1])
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            lines.setdefault(table + _parts(key[1]), number)
        for mark in ('"""', "'''"):
            if line.count(mark) == 1:
                fence = mark
    return lines


def line_of(lines: dict[Place, int | None], place: Place) -> int | None:
    """The line of a path, or of the nearest table around it that is written down; of a table that only tables
    inside it write down, the first of these.

    A path that is entered with None was given elsewhere (on the command line) and has no line.
    """
    for end in range(len(place), 0, -1):
        if place[:end] in lines:
            return lines[place[:end]]
    return next((line for inner, line in lines.items() if inner[: len(place)] == place), None)
