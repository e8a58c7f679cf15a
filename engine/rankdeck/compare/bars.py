"""Figures as bars on one scale, as data: memory by device, throughput, bubble and bytes."""

from __future__ import annotations

from typing import NamedTuple

from rankdeck.base.phrases import listed
from rankdeck.base.units import format_bytes
from rankdeck.compare import words
from rankdeck.compare.table import Comparison, FigureRow, letter_of
from rankdeck.run.imbalance import imbalance_of, lead_of

BARS = ("samples_per_s", "steps_per_s", "step_s", "bubble", "sent")


class Bar(NamedTuple):
    """`share` and `predicted_share` are of the longest bar, in percent; None is unknown."""

    letter: str
    words: str
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
    return [BarGroup(rows[key].label, _bars(rows[key])) for key in BARS if key in rows]


def _bars(row: FigureRow) -> list[Bar]:
    longest = max((figure.value for figure in row.figures if figure is not None), default=0.0)
    return [
        Bar(
            letter_of(place),
            row.cell(place),
            None if figure is None else _share(figure.value, longest),
            is_best=place in row.best,
            note=row.differences[place],
        )
        for place, figure in enumerate(row.figures)
    ]


def memory_bars(comparison: Comparison) -> list[BarGroup]:
    """Each device of one run beside the same place of the others; amber where it stands out of its run."""
    runs = comparison.runs
    sizes = [device.num_bytes for run in runs for device in run.devices]
    predicted = [device.predicted_bytes for run in runs for device in run.devices]
    longest = max((size for size in [*sizes, *predicted] if size is not None), default=0)
    leads = [
        lead_of(imbalance_of({place: device.num_bytes for place, device in enumerate(run.devices)}))
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
            told = words.UNKNOWN if device.num_bytes is None else format_bytes(device.num_bytes)
            foretold = None if device.predicted_bytes is None else _share(device.predicted_bytes, longest)
            bars.append(
                Bar(
                    letter_of(number),
                    told,
                    share,
                    is_lead=leads[number] == place,
                    predicted_share=foretold,
                )
            )
        labels = dict.fromkeys(run.devices[place].label for run in runs if place < len(run.devices))
        groups.append(BarGroup(listed(labels, words.BESIDE), bars))
    return groups


def _share(value: float, longest: float) -> float:
    return round(100 * value / longest, 2) if longest > 0 else 0.0
