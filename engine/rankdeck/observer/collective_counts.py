"""Counts the collectives of each step by the line that calls them, so that ranks can be compared.

Only calls of the main thread on the default process group count, because every rank takes part in them. Only
changes from one step to the next are reported: in most scripts, each step makes the same calls. Read
collectives.py first.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .session import RankSession

PART = "collectives"
_MAX_CHANGES = 4096
_POINT_TO_POINT = ("send", "recv", "batch_isend_irecv", "send_object_list", "recv_object_list")


class CollectiveCounts:
    """The calls since the last step, and the changes that have not been reported yet."""

    def __init__(self, distributed: Any, session: RankSession) -> None:
        self._distributed, self._session = distributed, session
        self.forget()

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[tuple[str, Any, int], int] = {}
        """Number of calls by function name and by the caller's code object and line."""
        self._last: dict[tuple[str, Any, int], int] = {}
        """Calls of the last step, in the same form."""
        self._changes: list[tuple[int, dict[str, int]]] = []
        self._num_changes = 0
        self._until = 0
        self._num_leaders = 0

    def on_leader_chosen(self, _: Any) -> None:
        """Count the optimizers that have been the leading one. After a second one, whose steps are not
        comparable, changes are no longer reported."""
        self._num_leaders += 1

    def add(self, name: str, frame: Any, values: Iterable[Any]) -> None:
        """Count a call of the function `name` in `frame`; `values` are the call's arguments."""
        if name in _POINT_TO_POINT or threading.current_thread() is not threading.main_thread():
            return
        group_type = self._distributed.ProcessGroup
        for value in values:
            if isinstance(value, group_type) and value is not self._distributed.group.WORLD:
                return
        key = name, frame.f_code, frame.f_lineno
        self._calls[key] = self._calls.get(key, 0) + 1
        if len(self._calls) == 1:
            self._session.on_step.add(PART, self.on_step)

    def on_step(self, _: Any) -> None:
        """Compare a step's calls with those of the previous step."""
        calls, self._calls = self._calls, {}
        if self._num_leaders > 1 or self._num_changes >= _MAX_CHANGES:
            return
        with self._lock:
            self._until = self._session.step
            if calls != self._last:
                self._num_changes += 1
                self._changes.append((self._until, {_site(key): count for key, count in calls.items()}))
        self._last = calls

    def take(self) -> dict[str, Any]:
        """Return the new changes as fields of events.Collectives."""
        with self._lock:
            changes, self._changes = self._changes, []
            return {
                "counted_until": self._until,
                "changed_steps": [step for step, _ in changes],
                "changed_calls": [calls for _, calls in changes],
            }


def _site(key: tuple[str, Any, int]) -> str:
    name, code, line = key
    return "%s %s:%d" % (name, code.co_filename, line)
