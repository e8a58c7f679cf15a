"""How fast a run goes: figures over the steps of consecutive attempts, without the time between them.

Between the end of one attempt and the start of the next a person slept or a scheduler queued: the first step
of an attempt takes its own `step_s`, not the time since the attempt before. steps.py says when the figures
are exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rankdeck.run.series import Floats
from rankdeck.run.steps import StepTable

WARM_UP_SHARE = 0.2
_RECENT_SHARE = 0.75


class Attempted(NamedTuple):
    """The rows of one attempt, and the samples of a step that does not say how many it had."""

    table: StepTable
    batch: float


def samples_per_s(attempts: Sequence[Attempted], share: float = WARM_UP_SHARE) -> float | None:
    """Over the run after the first `share` of its steps, evaluations included."""
    stretch = _stretch(attempts, max(1, int(sum(len(one.table) for one in attempts) * share)))
    return None if stretch is None else stretch[1] / stretch[0]


def remaining_s(attempts: Sequence[Attempted], num_steps: int, step: int) -> float | None:
    """Seconds from `step` to `num_steps` at the pace of the last quarter of the steps done."""
    num_rows = sum(len(one.table) for one in attempts)
    start = max(1, int(num_rows * _RECENT_SHARE))
    stretch = _stretch(attempts, start)
    return None if stretch is None else max(0, num_steps - step) * stretch[0] / (num_rows - start)


def recent_samples_per_s(attempts: Sequence[Attempted], window_s: float) -> float | None:
    """Samples a second over the last `window_s` seconds of steps."""
    if not attempts or not len(attempts[-1].table.rows[0]):
        return None
    num_rows = sum(len(one.table) for one in attempts)
    ended = attempts[-1].table.column("ended")
    num_recent = len(ended) - int(np.searchsorted(ended, ended[-1] - window_s))
    stretch = _stretch(attempts, max(1, min(num_rows - num_recent, num_rows - 2) + 1))
    return None if stretch is None else stretch[1] / stretch[0]


def _stretch(attempts: Sequence[Attempted], start: int) -> tuple[float, float] | None:
    """(seconds, samples) from the end of the row before index `start` to the last row's end; None where they
    do not span any time."""
    seconds, samples, offset = 0.0, 0.0, 0
    for one in attempts:
        num_rows = len(one.table)
        index = start - offset
        offset += num_rows
        if not num_rows or index >= num_rows:
            continue
        own_s, own_samples = _span(one, max(0, index - 1), is_first=index <= 0)
        seconds, samples = seconds + own_s, samples + own_samples
    return (seconds, samples) if seconds > 0 and math.isfinite(seconds) else None


def _span(one: Attempted, after: int, *, is_first: bool) -> tuple[float, float]:
    """(seconds, samples) of an attempt's rows behind row `after`; of all of them where `is_first`."""
    table = one.table
    held = after - table.num_gone
    ended = table.column("ended")
    last = float(ended[-1]) if len(ended) else table.last_gone
    if is_first:
        assert table.first is not None
        own_s = float(np.fmax(0.0, table.first.step_s))
        return last - table.first.ended + own_s, table.samples_gone + _samples(one, 0)
    if held >= 0:
        return last - float(ended[held]), _samples(one, held + 1)
    mark = next((mark for mark in table.marks if mark.row >= after), table.marks[-1])
    return last - mark.ended, table.samples_gone - mark.samples + _samples(one, 0)


def _samples(one: Attempted, begin: int) -> float:
    """The samples of the rows held from place `begin` on."""
    samples = one.table.column("samples")[begin:]
    return float(np.where(np.isnan(samples), one.batch, samples).sum())


def step_times(attempts: Sequence[Attempted]) -> dict[str, float | None]:
    """Median and 99th percentile of the seconds from a step's end to the next one's within an attempt.

    The first step is left out: no step ended before it.
    """
    held = [np.diff(one.table.column("ended"), prepend=one.table.last_gone) for one in attempts]
    times = np.sort(np.concatenate([np.empty(0), *(part[np.isfinite(part)] for part in held)]))
    gone = [one.table for one in attempts if one.table.num_gone]
    if not len(times):
        return {"median": None, "p99": None}
    if gone:
        return _from_bins(times, gone)
    middle = len(times) // 2
    median = times[middle] if len(times) % 2 else (times[middle - 1] + times[middle]) / 2
    p99 = times[min(len(times) - 1, math.ceil(0.99 * len(times)) - 1)]
    return {"median": float(median), "p99": float(p99)}


def _from_bins(times: Floats, gone: Sequence[StepTable]) -> dict[str, float | None]:
    """The same with the bins of rows that are not held any more."""
    values = np.concatenate([times, *(table.times_of_bins() for table in gone)])
    counts = np.concatenate([np.ones(len(times)), *(table.times_gone for table in gone)])
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(counts[order])
    places = np.searchsorted(reached, [0.5 * reached[-1], 0.99 * reached[-1]])
    median, p99 = values[order][places].tolist()
    return {"median": median, "p99": p99}
