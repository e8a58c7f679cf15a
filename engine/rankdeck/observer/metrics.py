"""Values that a script logs itself, kept until the next flush and then written as columns.

A value is taken as it was when it was logged: a tensor on a GPU is read as losses are (readings.py), and a
row whose numbers are still on their way waits, so that neither a step nor the end waits for a GPU. One logger
may call another (a trainer its callback, that one a writer): `outermost` lets the first of them tell, and the
others pass. loggers.py and log.py bring the values.
"""

from __future__ import annotations

import functools
import math
import numbers
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from .readings import poll_readings, read_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .readings import Reading

MAX_ROWS = 10_000
"""Rows that wait for a file: where there is none to be had no more than these are kept, the last."""
_MAX_DEPTH = 4


class LoggedRow:
    """What one call, or several of one step, have logged."""

    __slots__ = ("after", "at_s", "since_s", "step", "through", "values")

    def __init__(
        self, through: str, step: int | None, at_s: float, after: int, values: dict[str, Reading]
    ) -> None:
        self.through = through
        self.step = step
        self.at_s = at_s
        self.since_s = time.perf_counter()
        self.after = after
        self.values = values

    def can_merge(self, other: LoggedRow) -> bool:
        """Whether the other's values are more of the same step: many loggers take one value a call."""
        return (
            self.through == other.through
            and self.step is not None
            and self.step == other.step
            and self.after == other.after
            and self.values.keys().isdisjoint(other.values)
        )


class LoggedColumns(NamedTuple):
    """What an event of events.Metrics says beside its rank, in its order."""

    through: str
    steps: list[int | None]
    times: list[float]
    after: list[int]
    values: dict[str, list[float | None]]


class MetricBuffer:
    """Rows that are not written yet; safe to use from several threads.

    `added` is called whenever there is a row to be written; `read` gives a Reading of a tensor that is not on
    a CPU.
    """

    def __init__(
        self, added: Callable[[], None], steps_so_far: Callable[[], int], read: Callable[[Any], Any]
    ) -> None:
        self._on_row_added = added
        self._steps_so_far = steps_so_far
        self._read = read
        self._calls = threading.local()
        self._lock = threading.Lock()
        self._rows: list[LoggedRow] = []
        self._last: dict[str, LoggedRow] = {}

    def enter(self) -> bool:
        """A logger's call begins: whether it is the outermost of this thread. `leave` ends it."""
        depth = getattr(self._calls, "depth", 0)
        self._calls.depth = depth + 1
        return not depth

    def leave(self) -> None:
        self._calls.depth -= 1

    def add(
        self,
        through: str,
        values: Mapping[Any, Any],
        step: object = None,
        *,
        separator: str = "/",
        skip_repeats: bool = False,
    ) -> None:
        """Keep the numbers among `values`; those of nested ones are called outer + `separator` + inner.

        `skip_repeats`: what the row before told with the same names, step and values is not told again.
        """
        found: dict[str, Reading] = {}
        self._collect(values, "", separator, found, _MAX_DEPTH)
        if not found:
            return
        row = LoggedRow(through, _to_int(step), time.time(), self._steps_so_far(), found)
        with self._lock:
            last = self._last.get(through)
            if (
                skip_repeats
                and last is not None
                and last.step == row.step
                and _has_all(last.values, row.values)
            ):
                return
            if last is not None and self._rows and self._rows[-1] is last and last.can_merge(row):
                last.values.update(row.values)
                return
            self._rows.append(row)
            self._last[through] = row
            if len(self._rows) > MAX_ROWS:
                del self._rows[0]
        self._on_row_added()

    def take(self, ending: bool = False) -> list[LoggedColumns]:
        """One event for each logger; from the first row on that still waits, rows stay."""
        with self._lock:
            rows, self._rows = self._rows, []
        by_logger: dict[str, list[LoggedRow]] = {}
        for place, row in enumerate(rows):
            values = poll_readings(functools.partial(_numbers, dict(row.values)), row.since_s, ending)
            if values is None:
                with self._lock:
                    self._rows[:0] = rows[place:]
                break
            row.values = dict(zip(row.values, values))
            by_logger.setdefault(row.through, []).append(row)
        return [_columns(through, told) for through, told in by_logger.items()]

    def forget(self) -> None:
        """Start empty: a forked child tells nothing of what its parent has logged, and its lock is new."""
        self._lock = threading.Lock()
        self._rows, self._last = [], {}

    def _collect(
        self, values: Mapping[Any, Any], before: str, between: str, found: dict[str, Reading], deep: int
    ) -> None:
        for key, value in values.items():
            name = before + str(key)
            if hasattr(value, "items") and not hasattr(value, "item"):
                if deep:
                    self._collect(value, name + between, between, found, deep - 1)
                continue
            kept = self._to_reading(value)
            if kept is not None:
                found[name] = kept

    def _to_reading(self, value: Any) -> Any:
        """A number as a float, a tensor that is not on a CPU as a Reading; None for anything else."""
        if isinstance(value, bool):
            return None
        if isinstance(value, (int, float)):
            return float(value) if -1e308 < value < 1e308 else math.nan
        if hasattr(value, "item"):
            if hasattr(value, "__tensor_flatten__") or hasattr(value, "fake_mode"):
                return (
                    None  # What wraps others may answer with a collective, which only this rank would call.
                )
            count = value.numel() if hasattr(value, "numel") else getattr(value, "size", 1)
            if count != 1:
                return None
            if getattr(getattr(value, "device", None), "type", "cpu") != "cpu":
                return self._read(value)
            value = value.item()
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            return None
        return float(value)


def _columns(through: str, rows: list[LoggedRow]) -> LoggedColumns:
    values: dict[str, list[float | None]] = {}
    for place, row in enumerate(rows):
        for name, value in row.values.items():
            column = values.get(name)
            if column is None:
                column = values[name] = [None] * len(rows)
            column[place] = _finite_or_none(value)
    return LoggedColumns(
        through,
        steps=[row.step for row in rows],
        times=[row.at_s for row in rows],
        after=[row.after for row in rows],
        values=values,
    )


def _numbers(values: dict[str, Reading]) -> list[Any]:
    return [read_value(value) for value in values.values()]


def _finite_or_none(value: Reading) -> float | None:
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def _to_int(step: Any) -> int | None:
    """A step as loggers take it: a whole number, or a tensor or array of one."""
    if step is None or isinstance(step, bool):
        return None
    if hasattr(step, "item"):
        step = step.item()
    try:
        return int(step)
    except (TypeError, ValueError, OverflowError):
        return None


def _has_all(known: dict[str, Reading], values: dict[str, Reading]) -> bool:
    """Whether all of these were known; of what has yet to be read that is not said."""
    return all(isinstance(value, float) and known.get(name) == value for name, value in values.items())
