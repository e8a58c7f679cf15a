"""A curve is never drawn through what nobody measured."""

from __future__ import annotations

import numpy as np

from rankdeck_app.state.device_feed import DeviceHistory
from tests.helpers.device_lines import sample


def test_values_have_the_time_of_their_reading() -> None:
    history = DeviceHistory()
    history.add(sample("GPU-0", power_w=100.0, utilisation=0.5), 1.0)
    history.add(sample("GPU-0", power_w=200.0), 1.5)
    x, y = history.series("GPU-0", "power_w").points()
    assert x.tolist() == [1.0, 1.5] and y.tolist() == [100.0, 200.0]
    assert len(history.series("GPU-0", "utilisation")) == 1


def test_a_gap_ends_the_curve_at_the_stale_time() -> None:
    history = DeviceHistory()
    history.add(sample("GPU-0", used_bytes=5.0), 1.0)
    history.add(sample("GPU-0", used_bytes=6.0), 9.0)
    x, y = history.series("GPU-0", "used_bytes").points()
    assert x.tolist() == [1.0, 2.5, 9.0] and np.isnan(y[1])


def test_missing_values_end_the_curve_with_one_nan() -> None:
    history = DeviceHistory()
    history.add(sample("GPU-0", {"fan": "unsupported"}, power_w=100.0), 1.0)
    for second in range(2, 5):
        history.add(sample("GPU-0", {"power_w": "error", "fan": "unsupported"}), float(second))
    _, y = history.series("GPU-0", "power_w").points()
    assert y[0] == 100.0 and np.isnan(y[1]) and len(y) == 2
    assert len(history.series("GPU-0", "fan")) == 0


def test_only_notable_throttle_reasons_raise_the_throttling_curve() -> None:
    history = DeviceHistory()
    for second, bits in enumerate((0, 0x1, 0x20, 0x4)):
        history.add(sample("GPU-0", throttle=bits), float(second))
    assert history.throttled_series("GPU-0").points()[1].tolist() == [0, 0, 1, 1]


def test_memory_is_bounded_over_days() -> None:
    history = DeviceHistory()
    series = history.series("GPU-0", "used_bytes")
    series.append_many(np.arange(0, 2 * 86_400, 0.1), np.zeros(2 * 864_000))
    assert series.num_bytes < 400_000
