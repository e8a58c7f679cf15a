"""Figures as bars on one scale, as data: memory by device, throughput, bubble and bytes."""

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
    """`share` and `predicted_share` are of the longest bar, in percent; None is unknown."""

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
    """Throughput, bubble and bytes, a bar per run."""
    rows = {row.key: row for row in comparison.rows}
    return [BarGroup(rows[key].label, _metric_bars(rows[key])) for key in BAR_KEYS if key in rows]


def _metric_bars(row: ComparisonRow) -> list[Bar]:
    longest = max((figure.value for figure in row.metric_values if figure is not None), default=0.0)
    return [
        Bar(
            run_letter(place),
            row.cell(place),
            None if figure is None else _share(figure.value, longest),
            is_best=place in row.best,
            note=row.differences[place],
        )
        for place, figure in enumerate(row.metric_values)
    ]


def memory_bars(comparison: Comparison) -> list[BarGroup]:
    """Each device of one run beside the same place of the others; amber where it stands out of its run."""
    runs = comparison.runs
    sizes = [device.num_bytes for run in runs for device in run.devices]
    predicted = [device.predicted_bytes for run in runs for device in run.devices]
    longest = max((size for size in [*sizes, *predicted] if size is not None), default=0)
    leads = [
        lead_device(find_imbalance({place: device.num_bytes for place, device in enumerate(run.devices)}))
        for run in runs
    ]
    groups = []
    for place in range(max((len(run.devices) for run in runs), default=0)):
        bars = []
        for number, run in enumerate(runs):
            if place >= len(run.devices):
                continue
            device = run.devices[place]
            share = None if device.num_bytes is None else _share(device.num_bytes, longest)
            told = formatting.UNKNOWN if device.num_bytes is None else format_bytes(device.num_bytes)
            foretold = None if device.predicted_bytes is None else _share(device.predicted_bytes, longest)
            bars.append(
                Bar(
                    run_letter(number),
                    told,
                    share,
                    is_lead=leads[number] == place,
                    predicted_share=foretold,
                )
            )
        labels = dict.fromkeys(run.devices[place].label for run in runs if place < len(run.devices))
        groups.append(BarGroup(join_phrases(labels, formatting.SLASH_LIST), bars))
    return groups


def _share(value: float, longest: float) -> float:
    return round(100 * value / longest, 2) if longest > 0 else 0.0


# What drawings of a comparison share, on the page and in the app: dashes, round numbers, places of labels.
#
# A run is told apart by its dash and by its letter at the end of its curve; a tint only helps. The tints
# are few and calm, the dashes all different.

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
"""Lengths of dash and gap by place, in pixels; the first run's line is whole."""
NUM_TINTS = 4
LABEL_WIDTH, LABEL_HEIGHT = 16, 13


def round_step(span: float, most: int) -> float:
    """The least of 1, 2, 5, 10 ... that takes at most `most` steps over a span."""
    if not span > 0 or not math.isfinite(span):
        return 1.0
    power = 10.0 ** math.floor(math.log10(span / most))
    return next(power * factor for factor in (1, 2, 5, 10, 20) if span / (power * factor) <= most)


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers from `low` to `high`."""
    step = round_step(high - low, most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(place * step, 12) for place in range(first, last + 1)]


def label_heights(ends: Sequence[tuple[float, float]], low: float, high: float) -> list[float]:
    """How high the letter beside each end (x, y) of a curve stands: ends that lie above each other have
    theirs parted."""
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


def space_labels(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places for labels, each as near as can be to the one that it wants, none nearer to another than `gap`
    and all between `low` and `high` as far as there is room."""
    order = sorted(range(len(places)), key=lambda at: places[at])
    found = list(places)
    below = low - gap
    for at in order:
        below = found[at] = max(found[at], below + gap)
    above = high + gap
    for at in reversed(order):
        above = found[at] = min(found[at], above - gap)
    return found
