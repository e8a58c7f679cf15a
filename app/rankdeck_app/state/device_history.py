"""Every metric of every GPU since the app began to look, as series that any window can be drawn of.

x is seconds since then. Where nothing was read for longer than the metric stays true, or the device had no
value, a NaN parts the curve: a line is never drawn through what nobody measured. The further back, the
coarser (series.py), so memory stays bounded: about 150 kB a metric after a day.
"""

from __future__ import annotations

import math

from rankdeck.run.series import Series
from rankdeck.telemetry.readings import METRICS, SampleLine, throttle_words

THROTTLED = "throttled"
_RAW_POINTS, _TIER_BINS = 4_096, 2_048


class DeviceHistory:
    """Fed with the sampler's samples."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], Series] = {}

    def series(self, uuid: str, metric: str) -> Series:
        """The metric of the device; empty where it was never read."""
        series = self._series.get((uuid, metric))
        if series is None:
            series = self._series[(uuid, metric)] = Series(_RAW_POINTS, _TIER_BINS)
        return series

    def add(self, line: SampleLine, now_s: float) -> None:
        """`now_s`: when the line came, in seconds since the beginning."""
        for entry in line.devices:
            for metric, reading in entry.readings.items():
                if metric not in METRICS:
                    continue
                series = self.series(entry.uuid, metric)
                if reading.state == "value" and reading.value is not None:
                    at_s = now_s - reading.age_s
                    self._put(series, metric, at_s, float(reading.value))
                    if metric == "throttle":
                        slowed = float(bool(throttle_words(int(reading.value))))
                        self._put(self.throttled(entry.uuid), metric, at_s, slowed)
                elif series.last_y is not None and math.isfinite(series.last_y):
                    series.append(now_s, math.nan)

    def throttled(self, uuid: str) -> Series:
        """1 while anything that is worth telling lowers the clocks, 0 while nothing does."""
        return self.series(uuid, THROTTLED)

    def _put(self, series: Series, metric: str, at_s: float, value: float) -> None:
        stale_after_s = METRICS[metric].stale_after_s
        last_s = series.last_x
        if last_s is not None and at_s - last_s > stale_after_s:
            series.append_many((last_s + stale_after_s, at_s), (math.nan, value))
        else:
            series.append(at_s, value)
