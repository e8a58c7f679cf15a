"""A run as one column of plain figures: what its fold and its background say, and nothing made up.

Each figure has a key of table.ROWS; what the run did not tell has none. Times are without the pauses between
attempts. Making one costs milliseconds for a long run, so the app makes it about once a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np

from rankdeck import events
from rankdeck.base.phrases import phrase
from rankdeck.compare.background import Background, read_background
from rankdeck.compare.naming import RunAt
from rankdeck.run.anatomy import SIMULATED_TIME
from rankdeck.run.batch import batches
from rankdeck.run.breakdown import highest_of
from rankdeck.run.devices import DeviceFigures
from rankdeck.run.fold import Fold
from rankdeck.run.series import Curve
from rankdeck.run.verified import verified_cell, verified_more
from rankdeck.rundir import EventReader

_NEWEST_STEPS = 1 << 14
"""Of so many steps the spread of step times is told."""
_MOST_POINTS = 1 << 20
NOTHING_YET = events.Observed(rank=0, script="")
"""Of a script, before a rank was seen."""
SENT = "sent:"
"""Begins the key of the bytes that one algorithm sends."""


@dataclass(frozen=True)
class Figure:
    """One number. `step`: the step that it is of, where that is not the last one; `low` and `high`: the
    middle half of the values that it stands for. Where words say more than the number they are in `text`, and
    `more` stands behind them."""

    value: float
    step: int | None = None
    low: float | None = None
    high: float | None = None
    text: str = ""
    more: str = ""


@dataclass(frozen=True)
class DeviceShare:
    """The memory of one device: its peak by kind, or what owners held last (`is_peak` False)."""

    label: str
    num_bytes: int | None
    by_kind: Mapping[str, int]
    predicted_bytes: int | None = None
    is_peak: bool = True


@dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison. `pace` and `memory_source` say who made its times and its bytes.

    `device_kind` is gpu, virtual (a rehearsal) or cpu; empty where none is known. `observed` is what was seen
    of a person's own script, NOTHING_YET where it is not known; None of a run that reports itself.
    """

    at: RunAt
    title: str
    outcome: str
    strategy: str
    device_kind: str
    device_names: tuple[str, ...]
    pace: str
    memory_source: str | None
    background: Background
    observed: events.Observed | None
    figures: Mapping[str, Figure]
    devices: tuple[DeviceShare, ...]
    memory_steps: str = ""
    """Of which steps the bytes are, where only some were followed."""
    steps_planned: int | None = None
    global_batch: int | None = None
    problems: tuple[str, ...] = ()
    """What it ended with, a sentence each."""
    mean_loss: Callable[[int, int], float | None] = field(default=lambda _first, _last: None, compare=False)
    """Of the steps from one to another, None where the run has not got there."""

    @property
    def name(self) -> str:
        """What it is called; with its attempt where it is one alone."""
        return self.title if self.at.attempt is None else f"{self.title} @{self.at.attempt}"

    @property
    def memory_words(self) -> str:
        """Who made its bytes; where only some steps were followed, with how many."""
        source = phrase(self.memory_source) if self.memory_source else ""
        if not self.memory_steps:
            return source
        return phrase("{source}, {steps}", source=source, steps=self.memory_steps)

    @property
    def is_alive(self) -> bool:
        return self.outcome == "running"

    def value(self, key: str) -> float | None:
        figure = self.figures.get(key)
        return None if figure is None else figure.value


def figures_of(at: RunAt, fold: Fold, background: Background, outcome: str) -> ComparedRun:
    """What is known of a run, or of an attempt that was folded alone."""
    started, observed = fold.started, _observed(fold, background)
    devices = [device for device in fold.devices.values() if device.info is not None]
    figures = dict(_steps(fold)) | dict(_losses(fold)) | dict(_verified(fold)) | dict(_speed(fold))
    figures |= dict(_memory(fold, background)) | dict(_communication(fold))
    device_kind = (devices[0].kind or "") if devices else ""
    if device_kind == "virtual" and observed is not None:
        device_kind = "cpu"
    return ComparedRun(
        at=at,
        title=background.title,
        outcome=outcome,
        strategy=_strategy(fold, background),
        device_kind=device_kind,
        device_names=tuple(device.info.title for device in devices if device.info is not None),
        pace=SIMULATED_TIME if started is not None and started.pace == "simulated" else "",
        memory_source=fold.source,
        background=background,
        observed=observed,
        figures=figures,
        devices=tuple(_shares(background, devices, device_kind)),
        memory_steps=_memory_steps(fold),
        steps_planned=fold.num_steps_planned,
        global_batch=None if started is None else started.global_batch,
        problems=tuple(problem.message for problem in fold.problems if problem.severity == "error"),
        mean_loss=partial(_mean, fold.losses),
    )


def _observed(fold: Fold, background: Background) -> events.Observed | None:
    if fold.script.is_observed or "script" in background.tables:
        return fold.script.lead or NOTHING_YET
    return None


def outcome_of(at: RunAt, fold: Fold, background: Background, of_run: str) -> str:
    """How the run stands, or how an attempt that another one followed ended."""
    if at.attempt is None or not background.is_past:
        return of_run
    ended = fold.attempts[at.attempt].ended if at.attempt in fold.attempts else None
    return "lost" if ended is None else ended.outcome


def _strategy(fold: Fold, background: Background) -> str:
    if fold.script.lead is not None:
        return fold.script.lead.wrapper or ""
    if fold.started is not None:
        return fold.started.strategy or ""
    strategy = background.tables.get("strategy")
    return str(strategy.get("use", "")) if isinstance(strategy, dict) else ""


Found = Iterator[tuple[str, Figure]]


def _steps(fold: Fold) -> Found:
    if fold.step:
        yield "step", Figure(fold.step)
    tables = [one.table for one in fold.attempts.values() if one.table.rows.shape[1]]
    first = [table.first for table in tables]
    begun = [row.ended - _known(row.step_s) for row in first if row is not None]
    seconds = sum(float(table.column("ended")[-1]) - at for table, at in zip(tables, begun, strict=False))
    if tables and math.isfinite(seconds):
        yield "trained_s", Figure(max(0.0, seconds))


def _losses(fold: Fold) -> Found:
    newest = fold.newest("loss")
    if newest is not None:
        step, loss = newest
        yield "loss", Figure(loss, None if step == fold.step else step)
    if (lowest := _lowest(fold.losses)) is not None:
        yield "lowest_loss", lowest
    known = [one for attempt in fold.attempts.values() for one in attempt.evaluations if one.loss is not None]
    if not known:
        return
    last, best = known[-1], min(known, key=lambda one: one.loss or 0.0)
    yield "held_out", Figure(last.loss or 0.0, None if last.step == fold.step else last.step)
    yield "best_held_out", Figure(best.loss or 0.0, best.step)
    if last.accuracy is not None:
        yield "accuracy", Figure(last.accuracy, None if last.step == fold.step else last.step)


def _lowest(curve: Curve) -> Figure | None:
    """Of all steps, and the step that it is of; of a step long ago the first one of its bin."""
    if curve.first_x is None or curve.last_x is None:
        return None
    window = curve.window(curve.first_x, curve.last_x, _MOST_POINTS)
    known = np.flatnonzero(np.isfinite(window.low))
    if not len(known):
        return None
    place = known[int(np.argmin(window.low[known]))]
    return Figure(float(window.low[place]), int(window.x[place]))


def _verified(fold: Fold) -> Found:
    if (found := fold.verified) is not None:
        largest = math.nan if found.largest is None else found.largest
        yield "verified", Figure(largest, text=verified_cell(found), more=verified_more(found))


def _mean(curve: Curve, first: int, last: int) -> float | None:
    """Of raw losses: averages of runs of different length are smoothed by different amounts."""
    window = curve.window(first, last, 4096)
    values = (window.low.astype(np.float64) + window.high) / 2
    known = values[(window.x >= first) & (window.x <= last) & np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def _speed(fold: Fold) -> Found:
    middle_s, (low_s, high_s) = fold.step_times()["median"], _middle_half(fold)
    if middle_s is not None:
        yield "step_s", Figure(middle_s, low=low_s, high=high_s)
    for key, rate in (("samples_per_s", fold.samples_per_s()), ("steps_per_s", fold.steps_per_s())):
        if rate is not None and middle_s and low_s and high_s:  # a rate is as sure as its steps are alike
            yield key, Figure(rate, low=rate * middle_s / high_s, high=rate * middle_s / low_s)
        elif rate is not None:
            yield key, Figure(rate)
    if fold.script.wait_share is not None:
        yield "wait", Figure(fold.script.wait_share)
    measured, theory = fold.bubble or (None, None)
    if measured is not None:
        yield "bubble", Figure(measured)
    if theory is not None:
        yield "bubble_theory", Figure(theory)


def _middle_half(fold: Fold) -> tuple[float | None, float | None]:
    """Between which two times half of the newest steps took."""
    times = [
        np.diff(one.table.column("ended")[-_NEWEST_STEPS:])
        for one in fold.attempts.values()
        if one.table.rows.shape[1] > 1
    ]
    known = np.concatenate([np.empty(0), *times])[-_NEWEST_STEPS:]
    known = known[np.isfinite(known)]
    if len(known) < 4:
        return None, None
    low, high = np.percentile(known, (25, 75)).tolist()
    return low, high


def _memory_steps(fold: Fold) -> str:
    sampled = [device.num_sampled for device in fold.devices.values() if device.num_sampled]
    is_known = fold.source is not None and bool(sampled)
    return highest_of(min(sampled), fold.num_steps_measured) if is_known else ""


def _memory(fold: Fold, background: Background) -> Found:
    devices = fold.devices.values()
    peaks = [device.peak_bytes for device in devices if device.peak_bytes is not None]
    if peaks and len(peaks) == len(devices):
        yield "peak", Figure(max(peaks))
        yield "peak_sum", Figure(sum(peaks))
    live = [device.live_bytes for device in devices if device.is_of_owners and device.live_bytes is not None]
    if live and len(live) == len(devices):
        yield "held", Figure(max(live))
    imbalance = fold.imbalance()
    if imbalance is not None:
        yield "peak_others", Figure(imbalance.median_bytes)
        if imbalance.ratio is not None:
            yield "imbalance", Figure(imbalance.ratio)
    line = background.prediction
    if line is not None and not line.is_bound and line.devices:
        yield "predicted_peak", Figure(max(device.active_bytes for device in line.devices))
    busy = [device.utilisation_mean for device in devices if device.utilisation_mean is not None]
    if busy:
        yield "busy", Figure(float(median(busy)))


def _communication(fold: Fold) -> Found:
    """Of all ranks together, as far as they have told; each algorithm by itself as well."""
    comm = fold.comm
    world_size = fold.started.world_size if fold.started is not None else len(comm)
    if comm and len(comm) >= world_size:
        yield "sent", Figure(sum(sum(sent.values()) for sent in comm.values()))
        for name in sorted({name for sent in comm.values() for name in sent}):
            yield f"{SENT}{name}", Figure(sum(sent.get(name, 0) for sent in comm.values()))
    synced = [one.sync_s for one in fold.sync.values() if one.sync_s is not None]
    if synced:
        yield "sync_s", Figure(max(synced))


def _shares(background: Background, devices: list[DeviceFigures], kind: str) -> Iterator[DeviceShare]:
    line = background.prediction
    planned = line.devices if line is not None and not line.is_bound else []
    predicted = {device.device: device.active_bytes for device in planned}
    for device in devices:
        label = f"CPU {device.device}" if kind == "cpu" else device.label
        held = (device.live_bytes, device.live_by_kind) if device.is_of_owners else None
        num_bytes, by_kind = held or (device.peak_bytes, device.peak_by_kind)
        yield DeviceShare(
            label, num_bytes, by_kind or {}, predicted.get(device.device), is_peak=not device.is_of_owners
        )


def _known(value: float) -> float:
    return value if math.isfinite(value) else 0.0


# Runs read from their directories, for whoever does not follow them: the command line.


class ReadRun(NamedTuple):
    """A run's figures, and the fold that its curves are drawn from."""

    figures: ComparedRun
    fold: Fold


def read(at: RunAt) -> ReadRun:
    """Everything that a run, or one attempt of it alone, has told until now."""
    fold = Fold()
    for batch in batches(reader_of(at)):
        fold.apply(batch)
    background = read_background(at)
    outcome = outcome_of(at, fold, background, at.run.outcome())
    return ReadRun(figures_of(at, fold, background, outcome), fold)


def reader_of(at: RunAt) -> EventReader:
    """What reads the events of a run, or of one attempt alone."""
    return EventReader(at.run, first_attempt=at.attempt or 0, last_attempt=at.attempt)
