"""Store growing curves so that any window of them can be drawn in constant time.

A `Series` stores the newest points individually and, above them, tiers of bins: a bin of tier k is the
minimum and maximum of 8**k points and starts at a multiple of 8**k, so bins do not shift while points arrive.
Every tier stores a fixed number of its newest bins: older data is coarser, and memory stays bounded (a day at
1000 points a second: about 16 MB). A `Curve` shows the series of consecutive attempts as one. run_state.py
fills the series, and charts draw windows of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TIER_FACTOR = 8
_MAX_APPEND = 65_536
_MAX_FLOAT32 = float(np.finfo(np.float32).max)


class Window(NamedTuple):
    """Bins to draw: each bin's first x, minimum y and maximum y. `low is high` if every bin is a single
    point."""

    x: Floats
    low: NDArray[np.floating]
    high: NDArray[np.floating]

    def polyline(self) -> tuple[Floats, NDArray[np.floating]]:
        """Return (x, y) of one line through the minimum and maximum of every bin."""
        if self.low is self.high:
            return self.x, self.low
        y = np.empty(2 * len(self.x), dtype=self.low.dtype)
        y[0::2], y[1::2] = self.low, self.high
        return np.repeat(self.x, 2), y


class ColumnBuffer:
    """Arrays of shape (rows, columns); each append adds the same number of columns to all of them. If
    `capacity` is set, only the newest columns are stored; `first` is the absolute index of the oldest."""

    def __init__(self, arrays: Sequence[tuple[int, type]], capacity: int | None = None) -> None:
        self._arrays: list[NDArray[Any]] = [np.empty((num_rows, 256), dtype) for num_rows, dtype in arrays]
        self._capacity = capacity
        self.first = self._begin = self._end = 0

    def __len__(self) -> int:
        return self._end - self._begin

    def __deepcopy__(self, _memo: object) -> ColumnBuffer:
        """Copy the stored columns, without spare capacity."""
        other = ColumnBuffer((), self._capacity)
        other._arrays = [self[index].copy() for index in range(len(self._arrays))]
        other.first, other._end = self.first, len(self)
        return other

    def __getitem__(self, index: int) -> NDArray[Any]:
        """Return the stored columns of the array at `index`."""
        return self._arrays[index][:, self._begin : self._end]

    @property
    def end(self) -> int:
        """The absolute index after the newest column."""
        return self.first + self._end - self._begin

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self._arrays)

    def append(self, num_new: int, *new_columns: NDArray[Any] | float) -> None:
        """Append `num_new` columns to each array."""
        if self._end + num_new > self._arrays[0].shape[1]:
            self._reserve(num_new)
        end = self._end + num_new
        for array, columns in zip(self._arrays, new_columns, strict=True):
            array[:, self._end : end] = columns
        self._end = end
        if self._capacity is not None and end - self._begin > self._capacity:
            self.forget(end - self._begin - self._capacity)

    def forget(self, num_oldest: int) -> None:
        self._begin += num_oldest
        self.first += num_oldest

    def truncate(self, end: int) -> None:
        """Discard the columns from absolute index `end` on."""
        if end < self.first:
            self.first, self._begin, self._end = end, 0, 0
        elif end < self.end:
            self._end = self._begin + end - self.first

    def _reserve(self, num_new: int) -> None:
        num_held, length = len(self), self._arrays[0].shape[1]
        if num_held + num_new > length // 2:
            length = 2 * (num_held + num_new)
        if self._capacity is not None:
            length = min(length, self._capacity + max(num_new, self._capacity // 8))
        for index, array in enumerate(self._arrays):
            target = array if length == array.shape[1] else np.empty((len(array), length), array.dtype)
            target[:, :num_held] = self[index]
            self._arrays[index] = target
        self._begin, self._end = 0, num_held


class Series:
    """An append-only curve y(x), or several over the same x, with a min/max pyramid.

    x never decreases; y may be NaN, which minimum and maximum ignore. The arrays of `_raw` are x, the curves,
    and for a keyed series the keys; those of a tier are x, and the minima of all curves followed by their
    maxima. Source: the level-of-detail pyramid of waveform editors, with a factor of 8 between tiers.
    """

    def __init__(
        self,
        raw_capacity: int = 1_000_000,
        tier_capacity: int = 32_768,
        *,
        num_curves: int = 1,
        keyed: bool = False,
    ) -> None:
        assert raw_capacity >= 4 * TIER_FACTOR and tier_capacity >= 4 * TIER_FACTOR
        arrays: list[tuple[int, type]] = [(1, np.float64), (num_curves, np.float32)]
        self._raw = ColumnBuffer([*arrays, (1, np.float64)] if keyed else arrays, raw_capacity)
        self._is_keyed = keyed
        self._num_curves = num_curves
        self._tiers: list[ColumnBuffer] = []
        self._tier_capacity = tier_capacity
        # A single append must not drop points that are in no bin yet.
        self._max_append = min(_MAX_APPEND, raw_capacity // 2, tier_capacity * TIER_FACTOR // 2)

    def __len__(self) -> int:
        """Return the number of appended points that were not cut, whether or not they are still stored."""
        return self._raw.end

    @property
    def first_x(self) -> float | None:
        """The oldest x that a window can show."""
        firsts = [track[0][0, 0] for track in (self._raw, *self._tiers) if len(track)]
        return float(min(firsts)) if len(self) and firsts else None

    @property
    def last_x(self) -> float | None:
        """The newest x, or the start of the last bin if `cut` left no individual points."""
        return next((float(track[0][0, -1]) for track in (self._raw, *self._tiers) if len(track)), None)

    @property
    def last_y(self) -> float | None:
        return self.last_of()

    def last_of(self, curve: int = 0) -> float | None:
        """Return the newest y of a curve; None if no individual points are stored."""
        return float(self._raw[1][curve, -1]) if len(self._raw) else None

    @property
    def num_bytes(self) -> int:
        """Memory in use, in bytes."""
        return self._raw.num_bytes + sum(tier.num_bytes for tier in self._tiers)

    def append(self, x: float, y: float, *keys: float) -> None:
        """Append one point to a series of one curve, like `append_many`; y must fit into a float32."""
        last_x = self.last_x
        self._raw.append(1, x if last_x is None else max(x, last_x), y, *keys)
        self._fill_tiers()

    def append_many(
        self, x: Sequence[float] | Floats, y: Sequence[Any] | NDArray[Any], keys: Sequence[float] = ()
    ) -> None:
        """Append points in order: n values of x, and y of shape (n) or (curves, n).

        An x less than an earlier x (after a clock was set back) is replaced by the largest x so far. `keys`
        (keyed series only) are the values that `cut` compares instead of x; they never decrease either.
        """
        if len(x) == len(y) == 1 and isinstance(y[0], int | float) and abs(y[0]) <= _MAX_FLOAT32:
            self.append(x[0], y[0], *keys)  # many devices report one point each
            return
        xs = np.asarray(x, dtype=np.float64)
        with np.errstate(over="ignore"):
            ys = np.asarray(y).astype(np.float32).reshape(self._num_curves, len(xs))
        last_x = self.last_x
        if last_x is not None and len(xs) and xs[0] < last_x:
            xs = np.maximum(xs, last_x)
        if len(xs) > 1 and (xs[1:] < xs[:-1]).any():
            xs = np.maximum.accumulate(xs)
        rest: list[NDArray[Any]] = [ys]
        if self._is_keyed:
            rest.append(np.asarray(keys, dtype=np.float64))
        for start in range(0, len(xs), self._max_append):
            piece = slice(start, start + self._max_append)
            self._raw.append(len(xs[piece]), xs[piece], *[array[..., piece] for array in rest])
            self._fill_tiers()

    def _fill_tiers(self) -> None:
        source = self._raw
        level = 0
        while (complete := source.end // TIER_FACTOR) > 0:
            if level == len(self._tiers):
                arrays: list[tuple[int, type]] = [(1, np.float64), (2 * self._num_curves, np.float32)]
                self._tiers.append(ColumnBuffer(arrays, self._tier_capacity))
            tier = self._tiers[level]
            if complete == tier.end:
                return
            bins = slice(tier.end * TIER_FACTOR - source.first, complete * TIER_FACTOR - source.first)
            y = source[1][:, bins].reshape(len(source[1]), -1, TIER_FACTOR)
            # numpy reduces 17 times as fast along the first axis as along a last axis of length eight.
            y = np.ascontiguousarray(y.transpose(2, 0, 1))
            low = np.fmin.reduce(y[:, : self._num_curves], axis=0)
            high = np.fmax.reduce(y[:, -self._num_curves :], axis=0)
            tier.append(
                complete - tier.end, source[0][:, bins][:, ::TIER_FACTOR], np.concatenate([low, high])
            )
            source = tier
            level += 1

    def cut(self, last: float) -> None:
        """Discard the points whose x (or key) is greater than `last`. Points stored individually are cut
        exactly. Further back, whole bins are discarded, including the bin that contains `last`; a keyed
        series discards all its points instead."""
        keys = self._raw[2 if self._is_keyed else 0][0]
        count = self._raw.first + int(np.searchsorted(keys, last, side="right"))
        if count == self._raw.first and count > 0:
            count = self._count_in_tiers(last)
        if count < len(self):
            self._truncate(count)

    def _count_in_tiers(self, last: float) -> int:
        """Return the number of points in the complete bins up to x `last`."""
        for level, tier in enumerate(() if self._is_keyed else self._tiers, start=1):
            bins = int(np.searchsorted(tier[0][0], last, side="right"))
            if tier.first == 0 or bins > 0:
                return (tier.first + max(0, bins - 1)) * int(TIER_FACTOR**level)
        return 0

    def _truncate(self, count: int) -> None:
        tracks = [self._raw, *self._tiers]
        for level in range(1, len(tracks)):
            # The next bin to be filled starts among columns that are gone: cut back to its start.
            if count // TIER_FACTOR**level * TIER_FACTOR < tracks[level - 1].first:
                count = count // TIER_FACTOR**level * TIER_FACTOR**level
        for level, track in enumerate(tracks):
            track.truncate(count // TIER_FACTOR**level)

    def window(self, x0: float, x1: float, max_points: int, curve: int = 0) -> Window:
        """Return bins that cover [x0, x1] (about `max_points` or fewer), plus one bin on each side."""
        tracks = [self._raw, *self._tiers]
        for level, track in enumerate(tracks):
            is_coarsest = level == len(tracks) - 1
            x = track[0][0]
            # This track has dropped the start of the window: take a coarser one.
            if not is_coarsest and track.first > 0 and (not len(x) or x[0] > x0):
                continue
            start = max(0, int(np.searchsorted(x, x0, side="right")) - 1)
            end = min(len(x), int(np.searchsorted(x, x1, side="left")) + 1)
            group = 1
            while (end - start) > group * max_points:
                group *= 2
            if group < TIER_FACTOR or is_coarsest:
                bins = self._bins(track, slice(start, end), group, curve)
                return self._with_tail(bins, level, x1, curve) if level and end == len(x) else bins
        raise AssertionError("unreachable")

    def _bins(self, track: ColumnBuffer, columns: slice, group: int, curve: int) -> Window:
        """Merge `columns` of a track into bins of `group` columns, aligned to multiples of `group`."""
        if track is self._raw and group == 1:
            value = track[1][curve, columns].copy()
            return Window(track[0][0, columns].copy(), value, value)
        start = max(0, columns.start - (track.first + columns.start) % group)
        starts = np.maximum(0, np.arange(-((track.first + start) % group), columns.stop - start, group))
        low = np.fmin.reduceat(track[1][curve, start : columns.stop], starts)
        high = np.fmax.reduceat(track[1][curve - self._num_curves, start : columns.stop], starts)
        return Window(track[0][0, start : columns.stop][starts], low, high)

    def _with_tail(self, bins: Window, level: int, x1: float, curve: int) -> Window:
        """Add a bin for the newest points, which do not fill a bin of the tier yet."""
        unbinned = max(0, self._tiers[level - 1].end * TIER_FACTOR**level - self._raw.first)
        x = self._raw[0][0, unbinned:]
        num_points = min(len(x), int(np.searchsorted(x, x1, side="left")) + 1)
        if num_points == 0:
            return bins
        tail = self._raw[1][curve, unbinned : unbinned + num_points]
        return Window(
            np.append(bins.x, x[num_points - 1]),
            np.append(bins.low, np.fmin.reduce(tail)),
            np.append(bins.high, np.fmax.reduce(tail)),
        )

    def points(self, curve: int = 0) -> tuple[Floats, NDArray[np.float32]]:
        """Return (x, y) of the points that are still stored individually, for exports."""
        return self._raw[0][0].copy(), self._raw[1][curve].copy()


class Curve:
    """One curve across a run's consecutive attempts; `get_series` returns one series per attempt. `zero`, the
    run's start if x is time, is subtracted from every x."""

    def __init__(self, get_series: Callable[[], Sequence[Series]], curve: int = 0, zero: float = 0.0) -> None:
        self._get_series = get_series
        self._curve = curve
        self._zero = zero

    @property
    def _series(self) -> list[Series]:
        return [series for series in self._get_series() if len(series)]

    def __len__(self) -> int:
        return sum(map(len, self._get_series()))

    @property
    def first_x(self) -> float | None:
        return next((x - self._zero for series in self._series if (x := series.first_x) is not None), None)

    @property
    def last_x(self) -> float | None:
        return next(
            (x - self._zero for series in self._series[::-1] if (x := series.last_x) is not None), None
        )

    @property
    def last_y(self) -> float | None:
        return next((series.last_of(self._curve) for series in self._series[::-1]), None)

    def window(self, x0: float, x1: float, max_points: int) -> Window:
        """Return a window like `Series.window`, across all attempts."""
        x0, x1, all_series = x0 + self._zero, x1 + self._zero, self._series
        if len(all_series) > 1:
            # In a live view, or long after a resume, only the newest series is visible: skip the others.
            later = range(len(all_series) - 1, 0, -1)
            start = next((at for at in later if (all_series[at].first_x or 0.0) <= x0), 0)
            all_series = all_series[start:]
        if len(all_series) > 1:
            end = next(
                (at for at, series in enumerate(all_series) if (series.last_x or 0.0) >= x1), len(all_series)
            )
            all_series = all_series[: end + 1]
        windows = [series.window(x0, x1, max_points, self._curve) for series in all_series]
        if not windows:
            return Window(*[np.empty(0)] * 3)
        if len(windows) == 1:
            return windows[0]._replace(x=windows[0].x - self._zero)
        x = np.concatenate([window.x for window in windows]) - self._zero
        low = np.concatenate([window.low for window in windows])
        if all(window.low is window.high for window in windows):
            return Window(x, low, low)
        return Window(x, low, np.concatenate([window.high for window in windows]))

    def points(self) -> tuple[Floats, NDArray[np.float32]]:
        """Return (x, y) of the points that are still stored individually, for exports."""
        points = [series.points(self._curve) for series in self._series]
        if not points:
            return np.empty(0), np.empty(0, dtype=np.float32)
        return np.concatenate([x for x, _ in points]) - self._zero, np.concatenate([y for _, y in points])


class Ema:
    """Exponential moving averages of several rows, updated in batches of columns; a NaN leaves its row
    unchanged.

    Each average is bias-corrected from the start, or resumes from an earlier average. Source: Kingma and Ba,
    Adam (2015), section 3.
    """

    def __init__(self, alpha: float, num_rows: int = 1) -> None:
        assert 0 < alpha < 1
        self._alpha = alpha
        self._sum = np.zeros((num_rows, 1))
        self._weight = np.zeros((num_rows, 1))

    def resume_from(self, row: int, value: float, num_values: int) -> None:
        """Resume averaging in `row`: `value` is the average of its `num_values` values so far."""
        self._weight[row] = 1.0 - (1.0 - self._alpha) ** num_values
        self._sum[row] = value * self._weight[row]

    def state(self) -> tuple[Floats, Floats]:
        """Return the state of all rows, for `restore`."""
        return self._sum.copy(), self._weight.copy()

    def restore(self, state: tuple[Floats, Floats]) -> None:
        self._sum, self._weight = state

    def extend(self, values: Floats) -> Floats:
        """Return the averages after each column of `values`, an array of shape (rows, n); NaN until a row's
        first finite value."""
        # In pieces, because (1 - alpha)**-n exceeds the range of a float at about n = 700 / alpha.
        length = int(500 / -np.log1p(-self._alpha))
        pieces = [values[:, start : start + length] for start in range(0, values.shape[1], length)]
        return np.concatenate([np.empty((len(values), 0)), *map(self._extend, pieces)], axis=1)

    def _extend(self, values: Floats) -> Floats:
        is_known = np.isfinite(values)
        decay = np.cumprod(np.where(is_known, 1.0 - self._alpha, 1.0), axis=1)
        finite_values = np.where(is_known, values, 0.0)
        sums = decay * (self._sum + self._alpha * np.cumsum(finite_values / decay, axis=1))
        weights = 1.0 - decay * (1.0 - self._weight)
        self._sum, self._weight = sums[:, -1:], weights[:, -1:]
        averages: Floats = np.divide(sums, weights, out=np.full_like(sums, np.nan), where=weights > 0)
        return averages
