"""Parses JSON and TOML from untrusted files, and raises the same kind of error for every malformed file.

Python's own parsers raise RecursionError on deep nesting, and so does code that traverses a deeply nested
value that the parsers could still handle. tomllib takes minutes for a key with a thousand parts. msgspec
raises UnicodeDecodeError on a byte that is not UTF-8. Callers would not expect any of these from a file that
is merely damaged.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
TomlTable = dict[str, Any]
"""A table of a TOML file, or the whole file: values by key, including nested tables."""
JsonObject = dict[str, Any]
"""A JSON object from a file or another process; each value is checked by the code that reads it."""

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
    """Parse JSON; lone surrogates become question marks. Raises: ValueError if the text is not JSON."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if (fault := find_fault(value)) is not None:
        raise ValueError(fault)
    has_escapes = b"\\u" in text if isinstance(text, bytes) else "\\u" in text
    return _replace_surrogates(value) if has_escapes else value


def parse_json_object(text: str | bytes) -> JsonObject:
    """Parse a JSON object with `parse_json`. Raises: ValueError if the text is not JSON, or not an object."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def parse_toml(text: str) -> TomlTable:
    """Parse TOML. Raises: tomllib.TOMLDecodeError, which is a ValueError."""
    try:
        # Long keys are checked before parsing, because tomllib takes minutes for them.
        if _LONG_KEY.search(text) or find_fault(value := tomllib.loads(text)) == _TOO_DEEP:
            raise tomllib.TOMLDecodeError(_TOO_DEEP)
    except RecursionError:
        raise tomllib.TOMLDecodeError(_TOO_DEEP) from None
    return value


def check_depth(*values: Any) -> None:
    """Check how deeply values are nested. A struct calls this in its `__post_init__`, for values that msgspec
    decoded without a schema.

    Raises: ValueError if a value is nested too deeply.
    """
    if find_fault(values) == _TOO_DEEP:
        raise ValueError(_TOO_DEEP)


def find_fault(value: Any) -> str | None:
    """Return why a value is unusable (it is nested too deeply for recursion, or contains too large an
    integer), or None."""
    level, fault = [value], None
    for _ in range(_MAX_LEVELS):
        if any(isinstance(item, int) and not -_MAX_INTEGER < item < _MAX_INTEGER for item in level):
            fault = _TOO_LARGE
        inner = [
            item.values() if isinstance(item, dict) else item
            for item in level
            if isinstance(item, _CONTAINERS)
        ]
        level = [value for values in inner for value in values]
        if not level:
            return fault
    return _TOO_DEEP


def decode_json(decode: Callable[[bytes], T], data: bytes) -> T:
    """Decode JSON with a msgspec decoder; bytes that are not UTF-8 become replacement characters.

    Raises:
        msgspec.DecodeError: the data is not JSON, or does not match the decoder's type.
    """
    try:
        return decode(data)
    except UnicodeDecodeError:
        return decode_json(decode, data.decode("utf-8", "replace").encode())
    except RecursionError:
        from msgspec import DecodeError

        raise DecodeError(_TOO_DEEP) from None


def decode_document(decode: Callable[[bytes], T], data: bytes) -> T:
    """Decode a file's single JSON value as `decode_json` does, and reject integers that are too large."""
    value = decode_json(decode, data)
    # Only an integer of at least 20 digits can be too large, so most documents are parsed once.
    if _LONG_NUMBER.search(data):
        try:
            parse_json(data.decode("utf-8", "replace"))
        except ValueError as error:
            from msgspec import ValidationError

            raise ValidationError(str(error)) from None
    return value


def encode_json(encode: Callable[[Any], bytes], value: Any) -> bytes:
    """Encode a value with a msgspec encoder; lone surrogates, as in file names that are not UTF-8, become
    question marks."""
    try:
        return encode(value)
    except UnicodeEncodeError:
        from msgspec import to_builtins

        return encode(_replace_surrogates(to_builtins(value)))


def _replace_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_replace_surrogates(key): _replace_surrogates(item) for key, item in value.items()}
    return list(map(_replace_surrogates, value)) if isinstance(value, list | tuple) else value


# Finds the line of an option in a TOML file, because tomllib returns values without positions. Headers and
# keys are enough: a value inside an inline table has the line of its table.

KeyPath = tuple[str, ...]

_HEADER = re.compile(r"^\s*\[{1,2}\s*([^\[\]]+?)\s*\]{1,2}\s*(#.*)?$")
_KEY = re.compile(
    r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")


def _split_key(dotted: str) -> KeyPath:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))


def key_lines(text: str) -> dict[KeyPath, int | None]:
    """Return the line number (from 1) of every table header and key in the text, by path."""
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
        # Lines inside a multi-line string are not keys.
        for mark in ('"""', "'''"):
            if line.count(mark) == 1:
                fence = mark
    return lines


def find_line(lines: dict[KeyPath, int | None], key_path: KeyPath) -> int | None:
    """Return the line of a key, or of the closest enclosing table that has a line.

    A table without a header gets the line of the first table inside it. A key whose path maps to None was set
    outside the file (on the command line), so the result is None.
    """
    for end in range(len(key_path), 0, -1):
        if key_path[:end] in lines:
            return lines[key_path[:end]]
    return next((line for inner, line in lines.items() if inner[: len(key_path)] == key_path), None)
