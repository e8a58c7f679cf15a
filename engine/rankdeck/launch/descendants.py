"""Find the descendants of this process in /proc. Standard library only, like the whole guard."""

from __future__ import annotations

import os
from pathlib import Path

SUSPENDED = "T"
"""State letter of a process that a signal (SIGSTOP), not a debugger, has suspended."""
SUSPENSION_REPORT_S = 3.0
_MAX_COUNTED_S = 1.5


def state_and_parent(pid: int | str) -> tuple[str, int]:
    """Return the kernel's state letter for a process, and the pid of its parent.

    Raises:
        OSError: the process is gone.
    """
    # The process name before the last ")" may contain spaces and parentheses itself.
    state, parent = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:2]
    return state.decode(), int(parent)


def descendants() -> list[tuple[int, str]]:
    """Return every descendant of this process as (pid, state)."""
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
    """Detector of a child that has been suspended for `SUSPENSION_REPORT_S`; reports each suspension once."""

    def __init__(self) -> None:
        self._checked_s = self._suspended_s = 0.0
        self._is_reported = False

    def check(self, pid: int, now_s: float) -> bool:
        """Check the child and return whether to report a suspension now.

        Each check adds at most `_MAX_COUNTED_S` to the suspension's duration, because this process may itself
        have been suspended since the previous check.
        """
        since_s, self._checked_s = min(now_s - self._checked_s, _MAX_COUNTED_S), now_s
        try:
            is_suspended = state_and_parent(pid)[0] == SUSPENDED
        except OSError:
            is_suspended = False
        self._suspended_s = self._suspended_s + since_s if is_suspended else 0.0
        was_told, self._is_reported = self._is_reported, self._suspended_s > SUSPENSION_REPORT_S
        return self._is_reported and not was_told
