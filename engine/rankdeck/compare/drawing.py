"""What drawings of a comparison share, on the page and in the app: dashes, round numbers, places of labels.

A run is told apart by its dash and by its letter at the end of its curve; a tint only helps. The tints are
few and calm, the dashes all different.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
            near, parted([ends[at][1] for at in near], LABEL_HEIGHT, low, high), strict=True
        ):
            heights[at] = height
    return heights


def parted(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
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
