"""Write single values into a user's TOML document, preserving its comments and order."""

from __future__ import annotations

from typing import Any

import tomlkit
from tomlkit.items import InlineTable

KeyPath = tuple[str, ...]
_INLINE_TABLES = {"args", "optimizer", "schedule"}


def write_value(document: Any, key_path: KeyPath, value: Any) -> None:
    """Set the key at `key_path` to `value`, or remove the key if `value` is None.

    Missing tables are created. The short form `strategy = "dp"` is first converted to a table with the key
    `use`.
    """
    table = document
    for depth, key in enumerate(key_path[:-1]):
        inner = table.get(key)
        if isinstance(inner, str) or inner is None:
            if value is None and inner is None:
                return
            fresh: Any = tomlkit.inline_table() if key in _INLINE_TABLES or depth else tomlkit.table()
            if isinstance(inner, str):
                fresh["use"] = inner
                table.remove(key)
            table[key] = fresh
            inner = table[key]
        if not isinstance(inner, dict):
            return
        table = inner
    if value is None:
        table.pop(key_path[-1], None)
    else:
        table[key_path[-1]] = list(value) if isinstance(value, tuple) else value
    if isinstance(table, InlineTable):
        _rewrite_inline_table(document, key_path[:-1], table)


def _rewrite_inline_table(document: Any, key_path: KeyPath, table: Any) -> None:
    """Rewrite an inline table, because tomlkit omits the space before a key that is added to it."""
    holder = document
    for key in key_path[:-1]:
        holder = holder[key]
    fresh = tomlkit.inline_table()
    values = table.unwrap()
    if "use" in values:
        fresh["use"] = values.pop("use")
    fresh.update(values)
    holder[key_path[-1]] = fresh
