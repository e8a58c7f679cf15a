"""JSON and TOML that may come from anywhere: what they say, or one sort of error, however broken they are.

Python's own parsers answer a deep nesting with RecursionError, as does whoever goes through one that they
could still read; tomllib takes minutes for one key of a thousand parts; and msgspec answers one byte that is
not UTF-8 with UnicodeDecodeError. Nobody expects any of it of a file that is merely damaged.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
TomlTable = dict[str, Any]
"""A table of a TOML file, or the whole file: values by key, with tables inside."""
JsonObject = dict[str, Any]
"""As a file or another process has it: its reader checks what is in it."""

_TOO_DEEP = "it is nested too deeply"
_TOO_LARGE = "a number is too large"
_MOST_LEVELS = 64
_LARGEST = 1 << 64
_NESTS = (dict, list, tuple)
_LONG_NUMBER = re.compile(rb"\d{20}")
_LONG_KEY = re.compile(
    rf"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{_MOST_LEVELS}}}""", re.ASCII
)


def json_of(text: str | bytes) -> Any:
    """Halves of characters that no UTF-8 has become question marks. Raises: ValueError, it is no JSON."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if (fault := fault_of(value)) is not None:
        raise ValueError(fault)
    has_escapes = b"\\u" in text if isinstance(text, bytes) else "\\u" in text
    return _whole(value) if has_escapes else value


def json_object(text: str | bytes) -> JsonObject:
    """As `json_of`. Raises: ValueError, it is no JSON, or no object."""
    value = json_of(text)
    if not isinstance(value, dict):
        raise ValueError("it holds no object")
    return value


def toml_of(text: str) -> TomlTable:
    """Raises: tomllib.TOMLDecodeError, which is a ValueError."""
    try:
        if _LONG_KEY.search(text) or fault_of(value := tomllib.loads(text)) == _TOO_DEEP:
            raise tomllib.TOMLDecodeError(_TOO_DEEP)
    except RecursionError:
        raise tomllib.TOMLDecodeError(_TOO_DEEP) from None
    return value


def refuse_deep(*values: Any) -> None:
    """For the `__post_init__` of what msgspec decodes, where anything may stand.

    Raises: ValueError.
    """
    if fault_of(values) == _TOO_DEEP:
        raise ValueError(_TOO_DEEP)


def fault_of(value: Any) -> str | None:
    """Why nobody goes through a value, or counts with it: nested so deeply that recursion ends, or with whole
    numbers that no double holds and no table shows."""
    level, fault = [value], None
    for _ in range(_MOST_LEVELS):
        if any(isinstance(one, int) and not -_LARGEST < one < _LARGEST for one in level):
            fault = _TOO_LARGE
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, _NESTS)]
        level = [value for values in inner for value in values]
        if not level:
            return fault
    return _TOO_DEEP


def decoded(decode: Callable[[bytes], T], data: bytes) -> T:
    """What a decoder of msgspec makes of JSON; bytes that are not UTF-8 become replacement signs.

    Raises:
        msgspec.DecodeError: it is no JSON, or says something else than the decoder is for.
    """
    try:
        return decode(data)
    except UnicodeDecodeError:
        return decoded(decode, data.decode("utf-8", "replace").encode())
    except RecursionError:
        from msgspec import DecodeError

        raise DecodeError(_TOO_DEEP) from None


def document_of(decode: Callable[[bytes], T], data: bytes) -> T:
    """As `decoded`, of a file that is one value: no number in it is absurd."""
    value = decoded(decode, data)
    if _LONG_NUMBER.search(data):
        try:
            json_of(data.decode("utf-8", "replace"))
        except ValueError as error:
            from msgspec import ValidationError

            raise ValidationError(str(error)) from None
    return value


def encoded(encode: Callable[[Any], bytes], value: Any) -> bytes:
    """What an encoder of msgspec makes of it; half characters, as names of files that are not UTF-8 bring
    them, become question marks."""
    try:
        return encode(value)
    except UnicodeEncodeError:
        from msgspec import to_builtins

        return encode(_whole(to_builtins(value)))


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_whole(key): _whole(one) for key, one in value.items()}
    return list(map(_whole, value)) if isinstance(value, list | tuple) else value


# Which line of a TOML file an option stands on: tomllib tells values, not places.
#
# A scan of headers and keys is enough, since a value inside an inline table stands on the line of its
# table.

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
