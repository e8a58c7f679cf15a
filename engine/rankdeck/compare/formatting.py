"""Format metrics, differences and runs; the terminal, the page and the app use the same texts."""

from __future__ import annotations

import math
from pathlib import Path

from rankdeck.base.phrases import phrase
from rankdeck.base.units import format_bytes, format_count, format_duration, format_loss, format_rate
from rankdeck.compare.run_metrics import ComparedRun, MetricValue
from rankdeck.config.catalog import STRATEGIES

UNKNOWN = "–"
SAME = phrase("same")
_NOISE_RATIO = 5e-4
"""Relative difference below which values count as equal.

Strategies that compute the same loss add up its terms in different orders, so their results differ slightly.
"""
COUNT, LOSS, RATE, STEP_TIME, DURATION, BYTES, RATIO, SHARE, ACCURACY, TEXT = (
    "count", "loss", "rate", "step time", "duration", "bytes", "ratio", "share", "accuracy", "text",
)  # fmt: skip
"""Units of metrics."""
SLASH_LIST = "{before} / {one}"


def format_value(unit: str, metric: MetricValue | None) -> str:
    """Format a value: '6.3131', '12.3 ms', '38.7 GiB'; a dash if unknown."""
    if metric is None:
        return UNKNOWN
    value = metric.value
    if unit == TEXT:
        return metric.text
    return {
        COUNT: format_count,
        LOSS: format_loss,
        RATE: format_rate,
        STEP_TIME: format_step_time,
        DURATION: lambda seconds: format_duration(seconds, clock_from_s=100),
        BYTES: format_bytes,
        RATIO: lambda ratio: f"{ratio:.1f}×",
        SHARE: lambda share: f"{100 * share:.1f} %",
        ACCURACY: lambda share: f"{100 * share:.2f} %",
    }[unit](value)


def format_detail(unit: str, metric: MetricValue | None) -> str:
    """Format the small text shown after a value: its step, or its interquartile range."""
    if metric is None or unit == TEXT:
        return "" if metric is None else metric.detail
    if metric.step is not None:
        return phrase("at step {step}", step=format_count(metric.step))
    if metric.low is not None and metric.high is not None:
        low, high = (format_value(unit, MetricValue(half)) for half in (metric.low, metric.high))
        return phrase("{low} to {high}", low=low, high=high)
    return ""


def format_step_time(seconds: float) -> str:
    """Format a step time with three digits: '1.25 s', '125 ms', '12.5 ms', '840 µs'."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        value = seconds * factor
        # Below 1, because three digits would round the value up to 1000 of the smaller unit.
        if value >= 0.9995 or unit == "µs":
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
    raise AssertionError("unreachable")


def is_same_value(unit: str, metric: MetricValue, other: MetricValue) -> bool:
    """Return whether two values are formatted alike, or differ only by noise."""
    if format_value(unit, metric) == format_value(unit, other):
        return True
    return abs(metric.value - other.value) < _NOISE_RATIO * min(abs(metric.value), abs(other.value))


def format_difference(unit: str, value: MetricValue, base: MetricValue) -> str:
    """Format a run's difference from the baseline: '+12 %', '-0.4 %', '2.4×'; "same" if within noise."""
    if is_same_value(unit, value, base):
        return SAME
    if unit in (SHARE, ACCURACY):
        return phrase("{points:+.1f} points", points=100 * (value.value - base.value))
    if base.value <= 0 or value.value < 0:
        return ""
    ratio = value.value / base.value
    if math.isinf(ratio):
        return ""
    if ratio >= 2:
        return f"{ratio:.3g}×" if ratio < 100 else f"{format_count(ratio)}×"
    percent = 100 * (ratio - 1)
    # The limits are where rounding would add a digit.
    digits = 0 if abs(percent) >= 9.95 else 1 if abs(percent) >= 0.095 else 2
    return f"{percent:+.{digits}f} %"


def format_strategy(run: ComparedRun) -> str:
    """Format the run's strategy ('DDP') or, for a script, the observed wrapper."""
    card = STRATEGIES.get(run.strategy)
    if card is not None:
        return phrase(card.title)
    return run.strategy or (UNKNOWN if run.observed is None else phrase("script"))


def format_devices(run: ComparedRun) -> str:
    """Format the devices: '4 x H100', '4 virtual'; empty if none is known."""
    count = len(run.device_names)
    if not count:
        return ""
    if run.device_kind != "gpu":
        on_cpu = run.device_kind == "cpu"
        return phrase("{count} on CPU", count=count) if on_cpu else phrase("{count} virtual", count=count)
    names = list(dict.fromkeys(run.device_names))
    return f"{count} x {', '.join(names)}" if count > 1 else names[0]


def format_time_source(run: ComparedRun) -> str:
    """Return the source of a run's times, such as 'measured on GPU'."""
    if run.time_source:
        return phrase(run.time_source)
    if run.device_kind == "gpu":
        return phrase("measured on GPU")
    if not run.device_kind:
        return ""
    return phrase("measured on CPU") if run.device_kind == "cpu" else phrase("measured in rehearsal")


def shorten_home(text: str, home: Path | None = None) -> str:
    """Replace the home folder with ~ wherever it occurs, because pages are sent to other people."""
    try:
        folder = str(home or Path.home())
    except RuntimeError:
        return text
    # The root as home folder would match every path.
    if len(folder) < 2:
        return text
    # Only complete path components: /home/ann must not match in /home/anna.
    for end in ("/", "'", '"', " ", ":", ","):
        text = text.replace(f"{folder}{end}", f"~{end}")
    return f"{text.removesuffix(folder)}~" if text.endswith(folder) else text
