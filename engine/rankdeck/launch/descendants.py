"""Processes below this one, from /proc alone. Standard library only, as all of the guard."""

from __future__ import annotations

import os
from pathlib import Path

SUSPENDED = "T"
"""By a signal (SIGSTOP), and not by a debugger."""
SUSPENSION_REPORT_S = 3.0
_MAX_COUNTED_S = 1.5


def state_and_parent(pid: int | str) -> tuple[str, int]:
    """The kernel's letter for what a process does, and its parent. Raises: OSError where it is gone."""
    state, parent = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:2]
    return state.decode(), int(parent)


def descendants() -> list[tuple[int, str]]:
    """Everything below this process as (pid, state)."""
    children: dict[int, list[tuple[int, str]]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = state_and_parent(entry.name)
        except OSError:
            continue
        children.setdefault(parent, []).append((int(entry.name), state))
    below: list[tuple[int, str]] = []
    waiting = [os.getpid()]
    while waiting:
        for child in children.get(waiting.pop(), []):
            below.append(child)
            waiting.append(child[0])
    return below


class SuspensionDetector:
    """Sees that a child has been suspended for a while, and says so once of each time."""

    def __init__(self) -> None:
        self._checked_s = self._suspended_s = 0.0
        self._is_reported = False

    def check(self, pid: int, now_s: float) -> bool:
        """Of the time since the last look not all counts: both may have been suspended together."""
        since_s, self._checked_s = min(now_s - self._checked_s, _MAX_COUNTED_S), now_s
        try:
            is_suspended = state_and_parent(pid)[0] == SUSPENDED
        except OSError:
            is_suspended = False
        self._suspended_s = self._suspended_s + since_s if is_suspended else 0.0
        was_told, self._is_reported = self._is_reported, self._suspended_s > SUSPENSION_REPORT_S
        return self._is_reported and not was_told
