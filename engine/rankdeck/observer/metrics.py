"""Buffers values that a script logs, and returns them as columns for events.

A value is recorded as it is at the time of the call. A tensor on a GPU is read like a loss (readings.py), and
a row with pending numbers waits, so that neither a step nor the exit blocks on a GPU. One logger may call
another (a trainer calls its callback, which calls a writer): `enter` identifies the outermost call, and only
that call is recorded. loggers.py and log.py provide the values.
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
"""Maximum number of rows to keep while no file can be written; the oldest are dropped first."""
_MAX_DEPTH = 4


class LoggedRow:
    """Values logged by one call, or by several calls for the same step."""

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
        """Return whether both rows can become one: they belong to the same logger and step, and have no name
        in common. Many loggers pass only one value per call."""
        return (
            self.through == other.through
            and self.step is not None
            and self.step == other.step
            and self.after == other.after
            and self.values.keys().isdisjoint(other.values)
        )


class LoggedColumns(NamedTuple):
    """The fields of an events.Metrics event except the rank, in the event's order."""

    through: str
    steps: list[int | None]
    times: list[float]
    after: list[int]
    values: dict[str, list[float | None]]


class MetricBuffer:
    """Rows that have not been written yet; thread-safe.

    `added` is called after a row is added. `read` returns a Reading for a tensor that is not on a CPU.
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
        """Enter a logger's call; return whether it is this thread's outermost logger call. `leave` marks its
        end."""
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
        """Add a row with the numbers in `values`; a nested value is named outer + `separator` + inner.

        If `skip_repeats` is True, a row with the same names, step and values as the last row is dropped.
        """
        readings: dict[str, Reading] = {}
        self._collect(values, "", separator, readings, _MAX_DEPTH)
        if not readings:
            return
        row = LoggedRow(through, _to_int(step), time.time(), self._steps_so_far(), readings)
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
        """Remove the rows before the first pending row, and return them as one event per logger. If `ending`
        is True, wait briefly for pending values."""
        with self._lock:
            rows, self._rows = self._rows, []
        by_logger: dict[str, list[LoggedRow]] = {}
        for index, row in enumerate(rows):
            values = poll_readings(functools.partial(_numbers, dict(row.values)), row.since_s, ending)
            if values is None:
                with self._lock:
                    self._rows[:0] = rows[index:]
                break
            row.values = dict(zip(row.values, values))
            by_logger.setdefault(row.through, []).append(row)
        return [_columns(through, logger_rows) for through, logger_rows in by_logger.items()]

    def forget(self) -> None:
        """Discard all rows and create a new lock, so that a forked child does not repeat its parent's
        values."""
        self._lock = threading.Lock()
        self._rows, self._last = [], {}

    def _collect(
        self, values: Mapping[Any, Any], before: str, between: str, readings: dict[str, Reading], deep: int
    ) -> None:
        for key, value in values.items():
            name = before + str(key)
            if hasattr(value, "items") and not hasattr(value, "item"):
                if deep:
                    self._collect(value, name + between, between, readings, deep - 1)
                continue
            reading = self._to_reading(value)
            if reading is not None:
                readings[name] = reading

    def _to_reading(self, value: Any) -> Any:
        """Return a number as a float, a tensor that is not on a CPU as a Reading, and None for anything
        else."""
        if isinstance(value, bool):
            return None
        if isinstance(value, (int, float)):
            # float() raises OverflowError for larger integers.
            return float(value) if -1e308 < value < 1e308 else math.nan
        if hasattr(value, "item"):
            if hasattr(value, "__tensor_flatten__") or hasattr(value, "fake_mode"):
                return None  # A wrapper tensor may run a collective, which only this rank would call.
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
    for index, row in enumerate(rows):
        for name, value in row.values.items():
            column = values.get(name)
            if column is None:
                column = values[name] = [None] * len(rows)
            column[index] = _finite_or_none(value)
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
    """Return a step as an integer. Loggers accept an integer, or a tensor or array with one element."""
    if step is None or isinstance(step, bool):
        return None
    if hasattr(step, "item"):
        step = step.item()
    try:
        return int(step)
    except (TypeError, ValueError, OverflowError):
        return None


def _has_all(earlier: dict[str, Reading], values: dict[str, Reading]) -> bool:
    """Return whether `earlier` contains all of `values`; a pending value never counts as contained."""
    return all(isinstance(value, float) and earlier.get(name) == value for name, value in values.items())
