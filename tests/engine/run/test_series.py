"""A window of a series shows the true least and greatest values, however the points came and however many
there were.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest

from rankdeck.run.series import Ema, Series, Window


def grow_series(y: np.ndarray, series: Series, seed: int = 0) -> Series:
    """The series after `y` arrived in pieces of random length."""
    rng = np.random.default_rng(seed)
    start = 0
    while start < len(y):
        stop = start + int(rng.integers(1, 5000))
        chunk = y[start:stop]
        series.append_many(np.arange(start, start + len(chunk), dtype=float), chunk)
        start = stop
    return series


@pytest.fixture(scope="module")
def walk() -> np.ndarray:
    return np.cumsum(np.random.default_rng(1).normal(size=300_000)).astype(np.float32)


@pytest.mark.parametrize(("x0", "x1"), [(0, 299_999), (12_345, 23_456), (50_000, 50_100), (290_001, 299_999)])
def test_a_window_holds_the_extremes_of_its_points(walk: np.ndarray, x0: int, x1: int) -> None:
    window = grow_series(walk, Series()).window(x0, x1, 800)
    assert len(window.x) <= 802
    inside = walk[x0 : x1 + 1]
    assert np.nanmin(window.low) <= inside.min() and np.nanmax(window.high) >= inside.max()
    assert np.all(np.diff(window.x) >= 0)
    assert window.x[0] <= x0 and window.x[-1] >= x1 - 8 * (x1 - x0) / 800
    full = grow_series(walk, Series()).window(0, len(walk) - 1, 800)
    assert full.low.min() == walk.min() and full.high.max() == walk.max()


def test_bins_keep_their_edges_while_points_arrive(walk: np.ndarray) -> None:
    series = grow_series(walk[:200_000], Series())
    before = series.window(0, 150_000, 500)
    series.append_many(np.arange(200_000, 200_500, dtype=float), walk[200_000:200_500])
    after = series.window(0, 150_000, 500)
    np.testing.assert_array_equal(before.x, after.x)
    np.testing.assert_array_equal(before.high, after.high)


def test_points_in_pieces_or_at_once_give_the_same_bins(walk: np.ndarray) -> None:
    series = Series()
    series.append_many(np.arange(len(walk)), walk)
    expected, actual = series.window(0, 3e5, 700), grow_series(walk, Series(), seed=3).window(0, 3e5, 700)
    for left, right in zip(expected, actual, strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_long_series_keeps_old_extremes_in_bounded_memory() -> None:
    series = Series(raw_capacity=4096, tier_capacity=1024)
    y = np.zeros(2_000_000, dtype=np.float32)
    y[1_700_000], y[1_900_000] = 7.0, -3.0
    series.append_many(np.arange(len(y), dtype=float), y)
    num_bytes = series.num_bytes
    window = series.window(1_650_000, 1_999_999, 600)
    assert window.high.max() == 7.0 and window.low.min() == -3.0
    assert window.x[0] <= 1_650_000
    series.append_many(np.arange(2_000_000, 4_000_000, dtype=float), y)
    assert series.num_bytes <= num_bytes + 1024 * 40
    assert len(series) == 4_000_000


def test_the_newest_point_is_always_in_the_window(walk: np.ndarray) -> None:
    series = grow_series(walk[:100_003], Series())
    series.append(100_003, 1e6)
    window = series.window(0, 100_003, 300)
    assert window.x[-1] == 100_003 and window.high[-1] == 1e6


def test_nan_is_skipped_and_all_nan_stays_nan() -> None:
    series = Series()
    y = np.full(64, np.nan)
    y[40] = 2.0
    series.append_many(np.arange(64.0), y)
    window = series.window(0, 64, 8)
    assert np.nanmax(window.high) == 2.0 and np.isnan(window.low[0])


def test_few_points_are_returned_unchanged() -> None:
    series = Series()
    series.append_many([1, 2, 3], [5, 4, 3])
    x, y = series.window(0, 10, 100).polyline()
    assert x.tolist() == [1, 2, 3] and y.tolist() == [5, 4, 3]
    assert (series.first_x, series.last_x, series.last_y) == (1, 3, 3)


def test_an_empty_series_has_an_empty_window() -> None:
    assert len(Series().window(0, 1, 10).x) == 0 and Series().last_y is None


def test_decreasing_x_counts_as_the_last_x() -> None:
    series = Series()
    series.append_many([1.0, 5.0, 3.0], [0, 0, 0])
    series.append_many([2.0], [0])
    assert series.points()[0].tolist() == [1, 5, 5, 5]


def reference_ema(values: list[float], alpha: float) -> list[float]:
    total = weight = 0.0
    out = []
    for value in values:
        total, weight = (1 - alpha) * total + alpha * value, (1 - alpha) * weight + alpha
        out.append(total / weight)
    return out


@pytest.mark.parametrize("alpha", [0.002, 0.02, 0.5, 0.99])
def test_emas_in_pieces_equal_the_recursion(alpha: float) -> None:
    values = np.random.default_rng(2).normal(size=(2, 3000))
    ema = Ema(alpha, 2)
    pieces = np.concatenate([ema.extend(chunk) for chunk in np.split(values, [7, 1500], axis=1)], axis=1)
    for row, expected in zip(pieces, values, strict=True):
        np.testing.assert_allclose(row, reference_ema(expected.tolist(), alpha), rtol=1e-9, atol=1e-9)


def test_an_ema_skips_nan() -> None:
    (out,) = Ema(0.5).extend(np.array([[np.nan, 1.0, np.nan, 3.0]]))
    assert np.isnan(out[0]) and out[1] == out[2] == 1.0 and out[3] > 2


def test_an_ema_resumes_from_another_value() -> None:
    values = np.random.default_rng(3).normal(size=(1, 400))
    ema, (expected,) = Ema(0.02), Ema(0.02).extend(values)
    ema.resume_from(0, expected[29], 30)
    np.testing.assert_allclose(ema.extend(values[:, 30:])[0], expected[30:], rtol=1e-9)


def test_a_polyline_touches_the_minimum_and_maximum_of_each_bin() -> None:
    x, low, high = np.arange(3.0), np.array([0.0, 1.0, 2.0]), np.array([5.0, 6.0, 7.0])
    line_x, line_y = Window(x, low, high).polyline()
    assert line_x.tolist() == [0, 0, 1, 1, 2, 2] and line_y.tolist() == [0, 5, 1, 6, 2, 7]


def test_a_series_cut_within_a_bin_keeps_its_first_x() -> None:
    series = Series(keyed=True)
    series.append_many(np.arange(20.0), np.arange(20.0), np.arange(20.0))
    series.cut(3.0)
    assert (series.first_x, series.last_x, len(series)) == (0.0, 3.0, 4)
    assert series.window(0.0, 9.0, 100).x.tolist() == [0.0, 1.0, 2.0, 3.0]
    series.cut(-1.0)
    assert series.first_x is None


def test_a_copied_series_is_independent_and_small() -> None:
    series = Series(raw_capacity=64, tier_capacity=32)
    for start in range(0, 200, 7):
        series.append_many(np.arange(start, start + 7.0), np.arange(7.0))
    copied = copy.deepcopy(series)
    assert copied.num_bytes < series.num_bytes
    for curve in (series, copied):
        np.testing.assert_equal(curve.window(0, 300, 1000), series.window(0, 300, 1000))
    copied.append_many([500.0], [1.0])
    assert (len(copied), len(series), series.last_x) == (204, 203, 202.0)
    series.append_many([500.0], [1.0])
    np.testing.assert_equal(copied.window(0, 600, 1000), series.window(0, 600, 1000))


@pytest.mark.parametrize("keyed", [False, True])
def test_single_appends_equal_one_append(keyed: bool) -> None:
    x = [1.0, 2.0, 1.5, 3.0, 3.0, *np.arange(4.0, 900.0)]
    y: list[float] = [0, 1e30, -1e39, np.nan, 1e39, *np.sin(np.arange(896.0)).tolist()]
    keys = np.arange(len(x), dtype=float).tolist() if keyed else []
    together, alone = Series(64, 64, keyed=keyed), Series(64, 64, keyed=keyed)
    together.append_many(x, y, keys)
    for at in range(len(x)):
        alone.append_many(x[at : at + 1], y[at : at + 1], keys[at : at + 1])
    for series in (together, alone):
        series.cut(700)
    expected, other = together.window(0, 900, 10_000), alone.window(0, 900, 10_000)
    for name in ("x", "low", "high"):
        np.testing.assert_array_equal(getattr(expected, name), getattr(other, name))
    assert len(together) == len(alone)


def test_a_curve_cut_before_all_single_points_continues() -> None:
    x = np.arange(900.0)
    series = Series(64, 64)
    series.append_many(x, x)
    series.cut(700)
    last = series.last_x
    assert last is not None and 688 <= last <= 700 and series.last_y is None
    assert series.window(0, 900, 100).x[-1] <= 700
    series.append_many([701.0, 702.0], [1.0, 2.0])
    assert (series.last_x, series.last_y) == (702.0, 2.0) and series.window(600, 900, 100).x[-1] == 702.0
