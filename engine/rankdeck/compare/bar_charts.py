"""Build the data of bar charts: memory by device, throughput, step time, pipeline bubble and bytes sent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rankdeck.base.phrases import join_phrases
from rankdeck.base.units import format_bytes
from rankdeck.compare import formatting
from rankdeck.compare.table import Comparison, ComparisonRow, run_letter
from rankdeck.run.imbalance import find_imbalance, lead_device

BAR_KEYS = ("samples_per_s", "steps_per_s", "step_s", "bubble", "sent")


class Bar(NamedTuple):
    """One bar. `share` and `predicted_share` are percentages of the longest bar; None if unknown."""

    letter: str
    text: str
    share: float | None
    is_best: bool = False
    is_lead: bool = False
    predicted_share: float | None = None
    note: str = ""


class BarGroup(NamedTuple):
    label: str
    bars: list[Bar]


def bar_charts(comparison: Comparison) -> list[BarGroup]:
    """Return charts of throughput, step time, pipeline bubble and bytes sent, with a bar per run."""
    rows = {row.key: row for row in comparison.rows}
    return [BarGroup(rows[key].label, _metric_bars(rows[key])) for key in BAR_KEYS if key in rows]


def _metric_bars(row: ComparisonRow) -> list[Bar]:
    longest = max(
        (metric_value.value for metric_value in row.metric_values if metric_value is not None), default=0.0
    )
    return [
        Bar(
            run_letter(index),
            row.cell(index),
            None if metric_value is None else _share(metric_value.value, longest),
            is_best=index in row.best,
            note=row.differences[index],
        )
        for index, metric_value in enumerate(row.metric_values)
    ]


def memory_bars(comparison: Comparison) -> list[BarGroup]:
    """Return a group of memory bars for each device index, with a bar per run.

    A bar's `is_lead` marks a device that uses notably more memory than the other devices of its run.
    """
    runs = comparison.runs
    sizes = [device.num_bytes for run in runs for device in run.devices]
    predicted = [device.predicted_bytes for run in runs for device in run.devices]
    longest = max((size for size in [*sizes, *predicted] if size is not None), default=0)
    leads = [
        lead_device(find_imbalance({index: device.num_bytes for index, device in enumerate(run.devices)}))
        for run in runs
    ]
    groups = []
    for index in range(max((len(run.devices) for run in runs), default=0)):
        bars = []
        for number, run in enumerate(runs):
            if index >= len(run.devices):
                continue
            device = run.devices[index]
            share = None if device.num_bytes is None else _share(device.num_bytes, longest)
            text = formatting.UNKNOWN if device.num_bytes is None else format_bytes(device.num_bytes)
            foretold = None if device.predicted_bytes is None else _share(device.predicted_bytes, longest)
            bars.append(
                Bar(
                    run_letter(number),
                    text,
                    share,
                    is_lead=leads[number] == index,
                    predicted_share=foretold,
                )
            )
        labels = dict.fromkeys(run.devices[index].label for run in runs if index < len(run.devices))
        groups.append(BarGroup(join_phrases(labels, formatting.SLASH_LIST), bars))
    return groups


def _share(value: float, longest: float) -> float:
    return round(100 * value / longest, 2) if longest > 0 else 0.0


# Shared by the charts of a comparison on the page and in the app: dashes, round ticks, label positions.
#
# The dash and the letter at the end of its curve identify a run; the tint only helps. There are only a few
# muted tints, but all dashes differ.

DASHES: tuple[tuple[float, ...], ...] = (
    (),
    (7, 4),
    (2, 3),
    (9, 3, 2, 3),
    (14, 5),
    (2, 6),
    (6, 3, 2, 3, 2, 3),
    (14, 4, 5, 4),
)
"""Lengths of dashes and gaps in pixels, by run index; the first run's line is solid."""
NUM_TINTS = 4
LABEL_WIDTH, LABEL_HEIGHT = 16, 13


def round_step(span: float, max_steps: int) -> float:
    """Return the smallest step, (1, 2 or 5) x 10^n, that divides a span into at most `max_steps` steps."""
    if not span > 0 or not math.isfinite(span):
        return 1.0
    power = 10.0 ** math.floor(math.log10(span / max_steps))
    return next(power * factor for factor in (1, 2, 5, 10, 20) if span / (power * factor) <= max_steps)


def ticks(low: float, high: float, max_ticks: int) -> list[float]:
    """Return the round numbers from `low` to `high` at which an axis has ticks."""
    step = round_step(high - low, max_ticks)
    # The tolerance keeps ends that rounding puts just outside.
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(multiple * step, 12) for multiple in range(first, last + 1)]


def label_heights(ends: Sequence[tuple[float, float]], low: float, high: float) -> list[float]:
    """Return the y coordinates of the letters that label the curves at their ends (x, y).

    Letters that would overlap are moved apart.
    """
    groups: list[list[int]] = []
    for at in sorted(range(len(ends)), key=lambda at: ends[at][0]):
        if groups and ends[at][0] - ends[groups[-1][-1]][0] < LABEL_WIDTH:
            groups[-1].append(at)
        else:
            groups.append([at])
    heights = [y for _, y in ends]
    for near in groups:
        for at, height in zip(
            near, space_labels([ends[at][1] for at in near], LABEL_HEIGHT, low, high), strict=True
        ):
            heights[at] = height
    return heights


def space_labels(preferred_positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return label positions that are as close as possible to `preferred_positions`.

    They are at least `gap` apart and between `low` and `high`, as far as space allows.
    """
    order = sorted(range(len(preferred_positions)), key=lambda at: preferred_positions[at])
    positions = list(preferred_positions)
    below = low - gap
    for at in order:
        below = positions[at] = max(positions[at], below + gap)
    # Second pass from the top: labels that were pushed beyond `high` move down again.
    above = high + gap
    for at in reversed(order):
        above = positions[at] = min(positions[at], above - gap)
    return positions
