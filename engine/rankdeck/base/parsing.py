"""JSON and TOML that may come from anywhere: what they say, or one sort of error, however broken they are.

Python's own parsers answer a deep nesting with RecursionError, and msgspec one byte that is not UTF-8 with
UnicodeDecodeError, which nobody expects of a file that is merely damaged.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_TOO_DEEP = "it is nested too deeply"


def json_of(text: str | bytes) -> Any:
    """Raises: ValueError, it is no JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def toml_of(text: str) -> dict[str, Any]:
    """Raises: tomllib.TOMLDecodeError, which is a ValueError."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError(_TOO_DEEP) from None


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
    return list(map(_whole, value)) if isinstance(value, list) else value
