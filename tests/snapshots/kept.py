"""The documents that are kept, and how what is said now differs from them."""

from __future__ import annotations

import difflib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

KEPT = Path(__file__).with_name("kept.tar.xz")


def read() -> dict[str, str]:
    """Documents by name."""
    with tarfile.open(KEPT) as packed:
        return {member.name: packed.extractfile(member).read().decode() for member in packed}  # type: ignore[union-attr]


def write(documents: Iterable[tuple[str, str]]) -> int:
    """Keep these alone; how many they are."""
    documents = sorted(documents)
    with tarfile.open(KEPT, "w:xz", preset=9) as packed:
        for name, text in documents:
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            packed.addfile(entry, io.BytesIO(text.encode()))
    return len(documents)


def difference(name: str, then: str, now: str) -> str:
    """Lines of what is gone or changed, empty where nothing is; new keys of a .json document are neither."""
    if then == now:
        return ""
    if name.endswith(".json"):
        before, after = json.loads(then), json.loads(now)
        now = json.dumps(_without_new(before, after), indent=1)
        then = json.dumps(before, indent=1)
    lines = difflib.unified_diff(
        then.splitlines(), now.splitlines(), f"{name} then", f"{name} now", "", "", 2
    )
    return "\n".join(lines)


def _without_new(then: Any, now: Any) -> Any:
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        return {key: _without_new(then[key], now[key]) if key in now else "(gone)" for key in then}
    if isinstance(then, list) and isinstance(now, list):
        values = [_without_new(before, after) for before, after in zip(then, now, strict=False)]
        return [*values, *now[len(then) :]]
    return now
