"""Everything below this process, from /proc alone. Standard library only, as all of the guard."""

from __future__ import annotations

import os
from pathlib import Path


def descendants() -> list[tuple[int, str]]:
    """Everything below this process as (pid, state)."""
    children: dict[int, list[tuple[int, str]]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        children.setdefault(int(parent), []).append((int(entry.name), state.decode()))
    below: list[tuple[int, str]] = []
    waiting = [os.getpid()]
    while waiting:
        for child in children.get(waiting.pop(), []):
            below.append(child)
            waiting.append(child[0])
    return below
