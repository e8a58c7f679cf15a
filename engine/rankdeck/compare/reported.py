"""What a run came to, in words: memory beside its prediction, time by phase, figures, what to try next.

One source for two presentations: the page of `rankdeck report` and the summary above a dashboard.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from rankdeck.base.phrases import marked, phrase
from rankdeck.base.units import format_bytes
from rankdeck.compare import words
from rankdeck.compare.figures import ComparedRun
from rankdeck.compare.suggesting import NextStep, suggestions
from rankdeck.compare.table import compare
from rankdeck.run.anatomy import SIMULATED_TIME, totals_s
from rankdeck.run.fold import Fold

SUMMED_UP = (
    "step", "loss", "held_out", "best_held_out", "accuracy", "samples_per_s", "steps_per_s", "step_s",
    "trained_s", "wait", "bubble", "imbalance", "sent",
)  # fmt: skip
"""Keys of rows of a comparison, in the order of the table."""


class ReportedDevice(NamedTuple):
    """What a device held at its peak beside what was predicted."""

    label: str
    measured: str
    predicted: str
    error: str
    kinds: str


class PhaseTable(NamedTuple):
    """The last sampled step: seconds by phase, a row each, a column by device. `summed` has the median of the
    devices and the longest instead.
    """

    step: int
    devices: list[str]
    rows: list[tuple[str, list[str]]]
    summed: list[tuple[str, list[str]]]
    note: str


class SummedUp(NamedTuple):
    """One figure: what it is, how much, and what else there is to say of it."""

    key: str
    label: str
    text: str
    more: str


ERROR_SIGN = marked("+ is predicted above measured")
"""What the sign of a prediction's error says."""


class Reported(NamedTuple):
    """`memory_source` says who made the bytes."""

    figures: list[SummedUp]
    devices: list[ReportedDevice]
    is_predicted: bool
    memory_source: str | None
    phases: PhaseTable | None
    next_steps: list[NextStep]


def reported(run: ComparedRun, fold: Fold) -> Reported:
    """Looks at the run's folder for what can be done next: not for the thread of a window."""
    rows = compare([run]).rows
    return Reported(
        [SummedUp(row.key, row.label, row.cell(0), row.more(0)) for row in rows if row.key in SUMMED_UP],
        list(_devices(run)),
        any(device.predicted_bytes is not None for device in run.devices),
        run.memory_words or None,
        _phases(run, fold),
        suggestions(run),
    )


def _devices(run: ComparedRun) -> Iterator[ReportedDevice]:
    for device in run.devices:
        measured, predicted = device.num_bytes, device.predicted_bytes
        error = f"{(predicted / measured - 1) * 100:+.2f} %" if predicted and measured else words.UNKNOWN
        largest = sorted(device.by_kind.items(), key=lambda kind: -kind[1])[:4]
        yield ReportedDevice(
            device.label,
            words.UNKNOWN if measured is None else format_bytes(measured),
            words.UNKNOWN if predicted is None else format_bytes(predicted),
            error,
            ", ".join(f"{kind} {format_bytes(size)}" for kind, size in largest if size),
        )


def _phases(run: ComparedRun, fold: Fold) -> PhaseTable | None:
    sampled = fold.anatomy
    if sampled is None:
        return None
    by_device = [dict(totals_s(row)) for row in sampled.rows]
    names = dict.fromkeys(name for totals in by_device for name in totals)
    known = {name: [one[name] for one in by_device if name in one] for name in names}
    labels = {place: device.label for place, device in enumerate(run.devices)}
    return PhaseTable(
        sampled.step,
        [labels.get(row.device, str(row.device)) for row in sampled.rows],
        [
            (name, [words.step_time(one[name]) if name in one else words.UNKNOWN for one in by_device])
            for name in names
        ],
        [
            (name, [words.step_time(median(times)), words.step_time(max(times))])
            for name, times in known.items()
        ],
        phrase(SIMULATED_TIME) if sampled.simulated else words.kind_in_words(run),
    )
