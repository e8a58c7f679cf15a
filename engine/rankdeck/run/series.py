"""Numbers that only ever grow at the end, kept so that any window of them can be drawn in constant time.

A `Series` holds the newest points as they came and, above them, tiers of bins: a bin of tier k is the least
and the greatest of 8**k points and begins at a multiple of 8**k, so bins never swim while points arrive.
Every tier slides over a fixed number of bins: the further back, the coarser, and memory stays bounded (a
day at 1000 points a second: about 16 MB). A `Curve` shows the series of consecutive attempts as one. fold.py
fills series, charts draw windows of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
T = TypeVar("T", bound=np.generic)

FACTOR = 8
_LARGEST_APPEND = 65_536


class Window(NamedTuple):
    """What to draw: bins with their first x, least and greatest y. `low is high` where every bin is a
    single point.
    """

    x: Floats
    low: NDArray[np.floating]
    high: NDArray[np.floating]

    def polyline(self) -> tuple[Floats, NDArray[np.floating]]:
        """(x, y) of one line that touches the least and the greatest value of every bin."""
        if self.low is self.high:
            return self.x, self.low
        y = np.empty(2 * len(self.x), dtype=self.low.dtype)
        y[0::2], y[1::2] = self.low, self.high
        return np.repeat(self.x, 2), y


class _Track:
    """Parallel columns that slide: at least the newest `capacity` rows are there, `first` is the absolute
    index of the oldest.
    """

    def __init__(self, capacity: int, value_columns: int) -> None:
        self.capacity = capacity
        self.first = 0
        self._begin = 0
        self._end = 0
        self._x = np.empty(min(capacity, 256), dtype=np.float64)
        self._values = [np.empty(len(self._x), dtype=np.float32) for _ in range(value_columns)]

    @property
    def end(self) -> int:
        """The absolute index behind the newest row."""
        return self.first + self._end - self._begin

    @property
    def x(self) -> Floats:
        return self._x[self._begin : self._end]

    def value(self, column: int) -> NDArray[np.float32]:
        """The least (0) or the greatest (-1) values; the same column where rows are single points."""
        return self._values[column][self._begin : self._end]

    @property
    def num_bytes(self) -> int:
        return self._x.nbytes + sum(column.nbytes for column in self._values)

    def append(self, x: Floats, values: Sequence[NDArray[np.float32]]) -> None:
        self._make_room(len(x))
        new_end = self._end + len(x)
        self._x[self._end : new_end] = x
        for column, value in zip(self._values, values, strict=True):
            column[self._end : new_end] = value
        self._end = new_end
        surplus = self._end - self._begin - self.capacity
        if surplus > 0:
            self._begin += surplus
            self.first += surplus

    def truncate(self, end: int) -> None:
        """Forget the rows from the absolute index `end` on."""
        if end < self.first:
            self.first, self._begin, self._end = end, 0, 0
        elif end < self.end:
            self._end = self._begin + end - self.first

    def _make_room(self, num_rows: int) -> None:
        if self._end + num_rows <= len(self._x):
            return
        held = self._end - self._begin
        largest = self.capacity + max(num_rows, self.capacity // 8)
        wanted = len(self._x) if held + num_rows <= len(self._x) // 2 else 2 * (held + num_rows)
        length = min(largest, max(wanted, held + num_rows))
        self._x = self._moved(self._x, length)
        self._values = [self._moved(column, length) for column in self._values]
        self._begin, self._end = 0, held

    def _moved(self, column: NDArray[T], length: int) -> NDArray[T]:
        target = column if length == len(column) else np.empty(length, dtype=column.dtype)
        target[: self._end - self._begin] = column[self._begin : self._end]
        return target


class Series:
    """An append-only curve y(x) with a min/max pyramid. x never goes back; y may be NaN, which least and
    greatest pass over.

    Source: the level-of-detail pyramid of waveform editors, with a factor of 8 between tiers.
    """

    def __init__(
        self, raw_capacity: int = 1_000_000, tier_capacity: int = 32_768, *, keyed: bool = False
    ) -> None:
        assert raw_capacity >= 4 * FACTOR and tier_capacity >= 4 * FACTOR
        self._raw = _Track(raw_capacity, 1)
        self._keys = _Track(raw_capacity, 0) if keyed else None
        self._tiers: list[_Track] = []
        self._tier_capacity = tier_capacity
        self._largest_append = min(_LARGEST_APPEND, raw_capacity // 2, tier_capacity * FACTOR // 2)

    def __len__(self) -> int:
        """The number of points ever appended."""
        return self._raw.end

    @property
    def first_x(self) -> float | None:
        """The oldest x that a window can show."""
        oldest = self._tiers[-1] if self._tiers else self._raw
        return float(min(oldest.x[0], self._raw.x[0])) if len(self) else None

    @property
    def last_x(self) -> float | None:
        return float(self._raw.x[-1]) if len(self) else None

    @property
    def last_y(self) -> float | None:
        return float(self._raw.value(0)[-1]) if len(self) else None

    @property
    def num_bytes(self) -> int:
        """Memory held, in bytes."""
        return self._raw.num_bytes + sum(tier.num_bytes for tier in self._tiers)

    def append(self, x: float, y: float) -> None:
        self.append_many((x,), (y,))

    def append_many(self, x: ArrayLike, y: ArrayLike, keys: ArrayLike | None = None) -> None:
        """Appends points in order. An x that goes back (a clock that was set) counts as the last x.

        `keys` (a keyed series only): what `cut` compares with instead of x; they never go back either.
        """
        xs = np.asarray(x, dtype=np.float64)
        with np.errstate(over="ignore"):
            ys = np.asarray(y).astype(np.float32)
        assert xs.shape == ys.shape and xs.ndim == 1
        known = None if keys is None else np.asarray(keys, dtype=np.float64)
        for start in range(0, len(xs), self._largest_append):
            part = slice(start, start + self._largest_append)
            self._append_part(xs[part], ys[part])
            if self._keys is not None and known is not None:
                self._keys.append(known[part], ())

    def cut(self, last: float) -> None:
        """Forgets the points beyond x (or key) `last`.

        Exact among the points that are held one by one. Further back whole bins go, the one that holds `last`
        with them; of a keyed series everything.
        """
        keys = self._raw.x if self._keys is None else self._keys.x
        count = self._raw.first + int(np.searchsorted(keys, last, side="right"))
        if count == self._raw.first and count > 0:
            count = self._count_in_tiers(last)
        if count < len(self):
            self._truncate(count)

    def _count_in_tiers(self, last: float) -> int:
        """The points of the whole bins up to x `last`."""
        for level, tier in enumerate(self._tiers if self._keys is None else (), start=1):
            bins = int(np.searchsorted(tier.x, last, side="right"))
            if tier.first == 0 or bins > 0:
                return (tier.first + max(0, bins - 1)) * int(FACTOR**level)
        return 0

    def _truncate(self, count: int) -> None:
        tracks = [self._raw, *self._tiers]
        for level in range(1, len(tracks)):
            # The bin that is to be filled next begins among rows that are gone: it begins anew.
            if count // FACTOR**level * FACTOR < tracks[level - 1].first:
                count = count // FACTOR**level * FACTOR**level
        for level, track in enumerate(tracks):
            track.truncate(count // FACTOR**level)
        if self._keys is not None:
            self._keys.truncate(count)

    def _append_part(self, xs: Floats, ys: NDArray[np.float32]) -> None:
        last_x = self.last_x
        if last_x is not None and xs[0] < last_x:
            xs = np.maximum(xs, last_x)
        if len(xs) > 1 and (xs[1:] < xs[:-1]).any():
            xs = np.maximum.accumulate(xs)
        self._raw.append(xs, (ys,))
        self._fill_tiers()

    def _fill_tiers(self) -> None:
        source = self._raw
        level = 0
        while (complete := source.end // FACTOR) > 0:
            if level == len(self._tiers):
                self._tiers.append(_Track(self._tier_capacity, 2))
            tier = self._tiers[level]
            if complete == tier.end:
                return
            rows = slice(tier.end * FACTOR - source.first, complete * FACTOR - source.first)
            low = np.fmin.reduce(source.value(0)[rows].reshape(-1, FACTOR), axis=1)
            high = np.fmax.reduce(source.value(-1)[rows].reshape(-1, FACTOR), axis=1)
            tier.append(source.x[rows][::FACTOR], (low, high))
            source = tier
            level += 1

    def window(self, x0: float, x1: float, max_points: int) -> Window:
        """Bins that cover [x0, x1] and reach one bin beyond on both sides, at most about `max_points` of
        them.
        """
        tracks = [self._raw, *self._tiers]
        for level, track in enumerate(tracks):
            is_coarsest = level == len(tracks) - 1
            x = track.x
            if not is_coarsest and track.first > 0 and x[0] > x0:
                continue
            begin = max(0, int(np.searchsorted(x, x0, side="right")) - 1)
            end = min(len(x), int(np.searchsorted(x, x1, side="left")) + 1)
            group = 1
            while (end - begin) > group * max_points:
                group *= 2
            if group < FACTOR or is_coarsest:
                bins = self._bins(track, slice(begin, end), group)
                return self._with_tail(bins, track, FACTOR**level, x1) if level and end == len(x) else bins
        raise AssertionError("unreachable")

    def _bins(self, track: _Track, rows: slice, group: int) -> Window:
        """Rows in groups that begin at multiples of `group`, wherever the window begins."""
        if track is self._raw and group == 1:
            value = track.value(0)[rows].copy()
            return Window(track.x[rows].copy(), value, value)
        begin = max(0, rows.start - (track.first + rows.start) % group)
        starts = np.maximum(0, np.arange(-((track.first + begin) % group), rows.stop - begin, group))
        low = np.fmin.reduceat(track.value(0)[begin : rows.stop], starts)
        high = np.fmax.reduceat(track.value(-1)[begin : rows.stop], starts)
        return Window(track.x[begin : rows.stop][starts], low, high)

    def _with_tail(self, bins: Window, track: _Track, points_per_row: int, x1: float) -> Window:
        """The bins, and one more for the newest points, which fill no row of the tier yet."""
        unbinned = max(0, track.end * points_per_row - self._raw.first)
        x = self._raw.x[unbinned:]
        num_points = min(len(x), int(np.searchsorted(x, x1, side="left")) + 1)
        if num_points == 0:
            return bins
        tail = self._raw.value(0)[unbinned : unbinned + num_points]
        return Window(
            np.append(bins.x, x[num_points - 1]),
            np.append(bins.low, np.fmin.reduce(tail)),
            np.append(bins.high, np.fmax.reduce(tail)),
        )

    def points(self) -> tuple[Floats, NDArray[np.float32]]:
        """(x, y) of the points that are still held one by one, for exports."""
        return self._raw.x.copy(), self._raw.value(0).copy()


class Curve:
    """The series of a run's attempts, one behind the other, drawn as one; `parts` gives them when asked.

    `zero` is taken from every x: the start of the run, where x is time.
    """

    def __init__(self, parts: Callable[[], Sequence[Series]], zero: float = 0.0) -> None:
        self._all_parts = parts
        self._zero = zero

    @classmethod
    def of(cls, parts: Sequence[Series], zero: float) -> Curve:
        """Of series that are known and only grow."""
        return cls(lambda: parts, zero)

    @property
    def _parts(self) -> list[Series]:
        return [part for part in self._all_parts() if len(part)]

    def __len__(self) -> int:
        return sum(map(len, self._all_parts()))

    @property
    def first_x(self) -> float | None:
        first = next((part.first_x for part in self._parts), None)
        return None if first is None else first - self._zero

    @property
    def last_x(self) -> float | None:
        last = next((part.last_x for part in reversed(self._parts)), None)
        return None if last is None else last - self._zero

    @property
    def last_y(self) -> float | None:
        return next((part.last_y for part in reversed(self._parts)), None)

    @property
    def num_bytes(self) -> int:
        """Memory held, in bytes."""
        return sum(part.num_bytes for part in self._all_parts())

    def window(self, x0: float, x1: float, max_points: int) -> Window:
        """As of one series: `Series.window`."""
        x0, x1, parts = x0 + self._zero, x1 + self._zero, self._parts
        begin = max((at for at, part in enumerate(parts) if (part.first_x or 0.0) <= x0), default=0)
        end = min((at for at, part in enumerate(parts) if (part.last_x or 0.0) >= x1), default=len(parts))
        found = [part.window(x0, x1, max_points) for part in parts[begin : end + 1]]
        if not found:
            nothing = np.empty(0)
            return Window(nothing, nothing, nothing)
        x = np.concatenate([window.x for window in found]) - self._zero
        low = np.concatenate([window.low for window in found])
        if all(window.low is window.high for window in found):
            return Window(x, low, low)
        return Window(x, low, np.concatenate([window.high for window in found]))

    def points(self) -> tuple[Floats, NDArray[np.float32]]:
        """(x, y) of the points that are still held one by one, for exports."""
        found = [part.points() for part in self._parts]
        if not found:
            return np.empty(0), np.empty(0, dtype=np.float32)
        return np.concatenate([x for x, _ in found]) - self._zero, np.concatenate([y for _, y in found])


class Ema:
    """An exponential moving average that is fed in pieces and starts unbiased; a NaN leaves it where it is.

    Source: the bias correction of Kingma and Ba, Adam (2015), section 3.
    """

    _BLOCK = 256

    def __init__(self, alpha: float) -> None:
        assert 0 < alpha <= 1
        self._alpha = alpha
        self._sum = 0.0
        self._weight = 0.0

    @property
    def value(self) -> float | None:
        return self._sum / self._weight if self._weight else None

    def extend(self, y: ArrayLike) -> Floats:
        """The average after each of the values; NaN until the first finite one."""
        values = np.asarray(y, dtype=np.float64)
        finite = np.isfinite(values)
        averages = np.concatenate(
            [[self.value if self.value is not None else np.nan], self._finite(values[finite])]
        )
        place: Floats = averages[np.cumsum(finite)]
        return place

    def _finite(self, values: Floats) -> Floats:
        out = np.empty(len(values))
        keep = 1.0 - self._alpha
        # In blocks, because keep**-n leaves the range of a float at about n = 700 / alpha.
        block = max(1, min(self._BLOCK, int(500 / -np.log(keep)))) if keep > 0 else 1
        powers = keep ** np.arange(1, block + 1)
        for start in range(0, len(values), block):
            part = values[start : start + block]
            decay = powers[: len(part)]
            sums = decay * (self._sum + self._alpha * np.cumsum(part / decay)) if keep > 0 else part
            weights = 1.0 - decay * (1.0 - self._weight)
            out[start : start + block] = sums / weights
            self._sum, self._weight = float(sums[-1]), float(weights[-1])
        return out
