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
_MAX_LEVELS = 64
_MAX_INTEGER = 1 << 64
_CONTAINERS = (dict, list, tuple)
_LONG_NUMBER = re.compile(rb"\d{20}")
_LONG_KEY = re.compile(
    rf"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{_MAX_LEVELS}}}""", re.ASCII
)


def parse_json(text: str | bytes) -> Any:
    """Halves of characters that no UTF-8 has become question marks. Raises: ValueError, it is no JSON."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if (fault := find_fault(value)) is not None:
        raise ValueError(fault)
    has_escapes = b"\\u" in text if isinstance(text, bytes) else "\\u" in text
    return _replace_surrogates(value) if has_escapes else value


def parse_json_object(text: str | bytes) -> JsonObject:
    """As `parse_json`. Raises: ValueError, it is no JSON, or no object."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ValueError("it holds no object")
    return value


def parse_toml(text: str) -> TomlTable:
    """Raises: tomllib.TOMLDecodeError, which is a ValueError."""
    try:
        if _LONG_KEY.search(text) or find_fault(value := tomllib.loads(text)) == _TOO_DEEP:
            raise tomllib.TOMLDecodeError(_TOO_DEEP)
    except RecursionError:
        raise tomllib.TOMLDecodeError(_TOO_DEEP) from None
    return value


def check_depth(*values: Any) -> None:
    """For the `__post_init__` of what msgspec decodes, where anything may stand.

    Raises: ValueError.
    """
    if find_fault(values) == _TOO_DEEP:
        raise ValueError(_TOO_DEEP)


def find_fault(value: Any) -> str | None:
    """Why nobody goes through a value, or counts with it: nested so deeply that recursion ends, or with whole
    numbers that no double holds and no table shows."""
    level, fault = [value], None
    for _ in range(_MAX_LEVELS):
        if any(isinstance(one, int) and not -_MAX_INTEGER < one < _MAX_INTEGER for one in level):
            fault = _TOO_LARGE
        inner = [
            one.values() if isinstance(one, dict) else one for one in level if isinstance(one, _CONTAINERS)
        ]
        level = [value for values in inner for value in values]
        if not level:
            return fault
    return _TOO_DEEP


def decode_json(decode: Callable[[bytes], T], data: bytes) -> T:
    """What a decoder of msgspec makes of JSON; bytes that are not UTF-8 become replacement signs.

    Raises:
        msgspec.DecodeError: it is no JSON, or says something else than the decoder is for.
    """
    try:
        return decode(data)
    except UnicodeDecodeError:
        return decode_json(decode, data.decode("utf-8", "replace").encode())
    except RecursionError:
        from msgspec import DecodeError

        raise DecodeError(_TOO_DEEP) from None


def decode_document(decode: Callable[[bytes], T], data: bytes) -> T:
    """As `decode_json`, of a file that is one value: no number in it is absurd."""
    value = decode_json(decode, data)
    if _LONG_NUMBER.search(data):
        try:
            parse_json(data.decode("utf-8", "replace"))
        except ValueError as error:
            from msgspec import ValidationError

            raise ValidationError(str(error)) from None
    return value


def encode_json(encode: Callable[[Any], bytes], value: Any) -> bytes:
    """What an encoder of msgspec makes of it; half characters, as names of files that are not UTF-8 bring
    them, become question marks."""
    try:
        return encode(value)
    except UnicodeEncodeError:
        from msgspec import to_builtins

        return encode(_replace_surrogates(to_builtins(value)))


def _replace_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_replace_surrogates(key): _replace_surrogates(one) for key, one in value.items()}
    return list(map(_replace_surrogates, value)) if isinstance(value, list | tuple) else value


# Which line of a TOML file an option stands on: tomllib tells values, not places.
#
# A scan of headers and keys is enough, since a value inside an inline table stands on the line of its
# table.

KeyPath = tuple[str, ...]

_HEADER = re.compile(r"^\s*\[{1,2}\s*([^\[\]]+?)\s*\]{1,2}\s*(#.*)?$")
_KEY = re.compile(
    r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")


def _split_key(dotted: str) -> KeyPath:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))


def key_lines(text: str) -> dict[KeyPath, int | None]:
    """Line (from 1) of every table header and key in the text, by path."""
    lines: dict[KeyPath, int | None] = {}
    table: KeyPath = ()
    fence: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if fence is not None:
            if fence in line:
                fence = None
            continue
        if header := _HEADER.match(line):
            table = _split_key(header[1])
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            lines.setdefault(table + _split_key(key[1]), number)
        for mark in ('"""', "'''"):
            if line.count(mark) == 1:
                fence = mark
    return lines


def find_line(lines: dict[KeyPath, int | None], place: KeyPath) -> int | None:
    """The line of a path, or of the nearest table around it that is written down; of a table that only tables
    inside it write down, the first of these.

    A path that is entered with None was given elsewhere (on the command line) and has no line.
    """
    for end in range(len(place), 0, -1):
        if place[:end] in lines:
            return lines[place[:end]]
    return next((line for inner, line in lines.items() if inner[: len(place)] == place), None)
