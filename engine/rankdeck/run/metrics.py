"""What a script has logged itself (events.Metrics): a curve per name, in the script's own count of steps.

Where the script gives no steps, or begins to count anew (an epoch's batches), its values stand over the steps
that were seen of it, and where none were seen over how often it has told them. Of ranks that log under the
same name through the same library the lowest is shown. Only so many names are kept, and how many are not is
said: a name that is made of a step would fill the memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from rankdeck import events
from rankdeck.run.bounds import MAX_STEP
from rankdeck.run.series import ColumnBuffer, Floats, Series

MAX_NAMES = 500
_MAX_NAME_LENGTH = 200
_MAX_CUT_NAMES = 10_000
MAX_POINTS = 1 << 14
_MAX_BINS = 1 << 11


class MetricKey(NamedTuple):
    """Whose call it was (events.Metrics.through), and the name that was given."""

    through: str
    name: str


@dataclass
class MetricColumns:
    """Values that one rank logged under one name; a step is NaN where none was given."""

    steps: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def extend(self, more: MetricColumns) -> None:
        self.steps += more.steps
        self.after += more.after
        self.times += more.times
        self.values += more.values


def split_columns(event: events.Metrics) -> dict[MetricKey, MetricColumns]:
    """The values of one event by name, without those that are none. Columns end where the shortest does."""
    places = [
        (_to_float(step), _to_float(after), t)
        for step, t, after in zip(event.steps, event.times, event.after, strict=False)
    ]
    found = {}
    for name, values in event.values.items():
        columns = MetricColumns()
        for (step, after, t), value in zip(places, values, strict=False):
            if value is not None and math.isfinite(value):
                columns.steps.append(step)
                columns.after.append(after)
                columns.times.append(t)
                columns.values.append(value)
        if columns.values:
            found[MetricKey(event.through, name)] = columns
    return found


def has_equal_columns(event: events.Metrics) -> bool:
    """Whether its columns are of one length."""
    lengths = {len(event.steps), len(event.times), len(event.after), *map(len, event.values.values())}
    return len(lengths) <= 1


def _to_float(step: int | None) -> float:
    return float(step) if step is not None and -MAX_STEP <= step <= MAX_STEP else math.nan


class LoggedMetric:
    """The values of one name, as one attempt's `rank` logged them."""

    def __init__(self, rank: int, max_points: int | None = MAX_POINTS) -> None:
        self.rank = rank
        self.series = _new_series()
        self.last: float | None = None
        self.first_x: float | None = None
        self._x_axis: Literal["own steps", "times told", "steps seen"] = "own steps"
        # Where a value was logged in the script's own steps, in those that were seen, when, and the value.
        self._points = ColumnBuffer([(4, np.float64)], max_points)

    def __len__(self) -> int:
        return len(self.series)

    @property
    def last_step(self) -> int | None:
        """In the script's own count, or where it has none in steps seen or times told."""
        x = self.series.last_x
        return None if x is None else int(x)

    def append(self, columns: MetricColumns) -> None:
        points = np.array([columns.steps, columns.after, columns.times, columns.values])
        points[1] = np.nan_to_num(points[1])
        self._points.append(points.shape[1], points)
        over = self._choose_x_axis(points)
        if over != self._x_axis:
            self._x_axis = over
            self.series = _new_series()
            points = self._points[0]
            self.first_x = None
        x = self._newest_x(points)
        self.series.append_many(x, points[3])
        if self.first_x is None:
            self.first_x = float(x[0])
        self.last = float(points[3, -1])

    def _choose_x_axis(self, points: Floats) -> Literal["own steps", "times told", "steps seen"]:
        """What the values stand over now that there are these."""
        last_x = self.series.last_x
        goes_on = np.diff(points[0], prepend=-np.inf if last_x is None else last_x) >= 0
        if self._x_axis == "own steps" and goes_on.all():
            return "own steps"
        return (
            "steps seen" if self._x_axis == "steps seen" or (self._points[0][1] > 0).any() else "times told"
        )

    def cut_before(self, x: float) -> None:
        """A later attempt logs from `x` on: what was logged here there is history."""
        self.series.cut(float(np.nextafter(x, -np.inf)))
        held = np.maximum.accumulate(self._newest_x(self._points[0])) if len(self._points) else np.empty(0)
        self._points.truncate(self._points.first + int(np.searchsorted(held, x)))

    def points(self) -> tuple[Floats, Floats, Floats]:
        """(steps, Unix times, values) of those that are held one by one."""
        held = self._points[0]
        return self._newest_x(held).copy(), held[2].copy(), held[3].copy()

    def _newest_x(self, points: Floats) -> Floats:
        if self._x_axis == "times told":
            return np.arange(self._points.end - points.shape[1], self._points.end, dtype=np.float64) + 1
        x: Floats = points[0 if self._x_axis == "own steps" else 1]
        return x


class LoggedMetrics:
    """The names of one attempt, at most MOST_NAMES, with `points_held` of each one by one; None is all names
    and all points."""

    def __init__(self, max_points: int | None = MAX_POINTS) -> None:
        self._max_points = max_points
        self.by_key: dict[MetricKey, LoggedMetric] = {}
        self._cut_keys: set[MetricKey] = set()

    @property
    def num_cut_names(self) -> int:
        """Names that are not kept."""
        return len(self._cut_keys)

    def add(self, rank: int, key: MetricKey, columns: MetricColumns) -> None:
        known = self.by_key.get(key)
        if known is None or rank < known.rank:
            if known is None and self._is_over_limit(key):
                if len(self._cut_keys) < _MAX_CUT_NAMES:
                    self._cut_keys.add(key)
                return
            known = self.by_key[key] = LoggedMetric(rank, self._max_points)
        if rank == known.rank:
            known.append(columns)

    def _is_over_limit(self, key: MetricKey) -> bool:
        is_bound = self._max_points is not None
        return is_bound and (len(self.by_key) >= MAX_NAMES or len(key.name) > _MAX_NAME_LENGTH)


def _new_series() -> Series:
    return Series(MAX_POINTS, _MAX_BINS)
