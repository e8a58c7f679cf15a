"""Store the values that a script has logged (events.Metrics): a curve per name, by the script's own step
count.

If the script passes no steps or restarts its count (for example in every epoch), its values are drawn against
the observed steps; if no steps were observed, against the number of calls. If several ranks log the same name
through the same library, the lowest rank's values are shown. The number of names is limited, because names
that contain a step number would otherwise fill the memory; the number of omitted names is reported.
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
# The set of omitted names must not fill the memory either.
_MAX_CUT_NAMES = 10_000
MAX_POINTS = 1 << 14
_MAX_BINS = 1 << 11


class MetricKey(NamedTuple):
    """The API through which a value was logged (events.Metrics.through), and the name given to the value."""

    through: str
    name: str


@dataclass
class MetricColumns:
    """Values that one rank logged under one name; a step is NaN if the script passed no step."""

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
    """Split the values of one event by name, without missing values. The shortest column limits the
    length."""
    positions = [
        (_to_float(step), _to_float(after), t)
        # Columns of damaged events may differ in length.
        for step, t, after in zip(event.steps, event.times, event.after, strict=False)
    ]
    columns_by_key = {}
    for name, values in event.values.items():
        columns = MetricColumns()
        for (step, after, t), value in zip(positions, values, strict=False):
            if value is not None and math.isfinite(value):
                columns.steps.append(step)
                columns.after.append(after)
                columns.times.append(t)
                columns.values.append(value)
        if columns.values:
            columns_by_key[MetricKey(event.through, name)] = columns
    return columns_by_key


def has_equal_columns(event: events.Metrics) -> bool:
    """Check whether all columns have the same length."""
    lengths = {len(event.steps), len(event.times), len(event.after), *map(len, event.values.values())}
    return len(lengths) <= 1


def _to_float(step: int | None) -> float:
    return float(step) if step is not None and -MAX_STEP <= step <= MAX_STEP else math.nan


class LoggedMetric:
    """Values that rank `rank` logged under one name in one attempt."""

    def __init__(self, rank: int, max_points: int | None = MAX_POINTS) -> None:
        self.rank = rank
        self.series = _new_series()
        self.last: float | None = None
        self.first_x: float | None = None
        self._x_axis: Literal["own steps", "times told", "steps seen"] = "own steps"
        # Rows: the script's own step, the observed step, the Unix time, and the value.
        self._points = ColumnBuffer([(4, np.float64)], max_points)

    def __len__(self) -> int:
        return len(self.series)

    @property
    def last_step(self) -> int | None:
        """The newest x value: a step in the script's own count, an observed step, or a number of calls."""
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
            # The axis has changed, so draw all points held again.
            points = self._points[0]
            self.first_x = None
        x = self._newest_x(points)
        self.series.append_many(x, points[3])
        if self.first_x is None:
            self.first_x = float(x[0])
        self.last = float(points[3, -1])

    def _choose_x_axis(self, points: Floats) -> Literal["own steps", "times told", "steps seen"]:
        """Return the x axis to use once `points` have been added."""
        last_x = self.series.last_x
        goes_on = np.diff(points[0], prepend=-np.inf if last_x is None else last_x) >= 0
        if self._x_axis == "own steps" and goes_on.all():
            return "own steps"
        return (
            "steps seen" if self._x_axis == "steps seen" or (self._points[0][1] > 0).any() else "times told"
        )

    def cut_before(self, x: float) -> None:
        """Discard the values from `x` on, because a later attempt logs them again."""
        # cut() keeps the points up to its argument; x itself must go.
        self.series.cut(float(np.nextafter(x, -np.inf)))
        x_values = (
            np.maximum.accumulate(self._newest_x(self._points[0])) if len(self._points) else np.empty(0)
        )
        self._points.truncate(self._points.first + int(np.searchsorted(x_values, x)))

    def points(self) -> tuple[Floats, Floats, Floats]:
        """Return (steps, Unix times, values) of the points in memory, at most the newest `max_points`."""
        columns = self._points[0]
        return self._newest_x(columns).copy(), columns[2].copy(), columns[3].copy()

    def _newest_x(self, points: Floats) -> Floats:
        if self._x_axis == "times told":
            return np.arange(self._points.end - points.shape[1], self._points.end, dtype=np.float64) + 1
        x: Floats = points[0 if self._x_axis == "own steps" else 1]
        return x


class LoggedMetrics:
    """Metrics of one attempt: at most MAX_NAMES names with `max_points` points each (None: no limits)."""

    def __init__(self, max_points: int | None = MAX_POINTS) -> None:
        self._max_points = max_points
        self.by_key: dict[MetricKey, LoggedMetric] = {}
        self._cut_keys: set[MetricKey] = set()

    @property
    def num_cut_names(self) -> int:
        """Number of names whose values are not stored: overlong names, and names beyond MAX_NAMES."""
        return len(self._cut_keys)

    def add(self, rank: int, key: MetricKey, columns: MetricColumns) -> None:
        metric = self.by_key.get(key)
        if metric is None or rank < metric.rank:
            if metric is None and self._is_over_limit(key):
                if len(self._cut_keys) < _MAX_CUT_NAMES:
                    self._cut_keys.add(key)
                return
            metric = self.by_key[key] = LoggedMetric(rank, self._max_points)
        if rank == metric.rank:
            metric.append(columns)

    def _is_over_limit(self, key: MetricKey) -> bool:
        is_bound = self._max_points is not None
        return is_bound and (len(self.by_key) >= MAX_NAMES or len(key.name) > _MAX_NAME_LENGTH)


def _new_series() -> Series:
    return Series(MAX_POINTS, _MAX_BINS)
