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
from rankdeck.compare.run_ref import RunRef
from rankdeck.compare.run_setup import RunSetup, read_run_setup
from rankdeck.run.anatomy import SIMULATED_TIME
from rankdeck.run.batch import iter_batches
from rankdeck.run.breakdown import peak_coverage_text
from rankdeck.run.devices import DeviceState
from rankdeck.run.run_state import RunState
from rankdeck.run.series import Curve
from rankdeck.run.verified import verified_cell, verified_detail
from rankdeck.run_dir import EventReader

_NUM_RECENT_STEPS = 1 << 14
"""Of so many steps the spread of step times is told."""
_MAX_POINTS = 1 << 20
NOT_OBSERVED = events.Observed(rank=0, script="")
"""Of a script, before a rank was seen."""
SENT_PREFIX = "sent:"
"""Begins the key of the bytes that one algorithm sends."""


@dataclass(frozen=True)
class MetricValue:
    """One number. `step`: the step that it is of, where that is not the last one; `low` and `high`: the
    middle half of the values that it stands for. Where words say more than the number they are in `text`, and
    `detail` stands behind them."""

    value: float
    step: int | None = None
    low: float | None = None
    high: float | None = None
    text: str = ""
    detail: str = ""


@dataclass(frozen=True)
class ComparedDevice:
    """The memory of one device: its peak by kind, or what owners held last (`is_peak` False)."""

    label: str
    num_bytes: int | None
    by_kind: Mapping[str, int]
    predicted_bytes: int | None = None
    is_peak: bool = True


@dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison. `time_source` and `memory_source` say who made its times and its bytes.

    `device_kind` is gpu, virtual (a rehearsal) or cpu; empty where none is known. `observed` is what was seen
    of a person's own script, NOTHING_YET where it is not known; None of a run that reports itself.
    """

    ref: RunRef
    title: str
    outcome: str
    strategy: str
    device_kind: str
    device_names: tuple[str, ...]
    time_source: str
    memory_source: str | None
    setup: RunSetup
    observed: events.Observed | None
    metrics: Mapping[str, MetricValue]
    devices: tuple[ComparedDevice, ...]
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
        return self.title if self.ref.attempt is None else f"{self.title} @{self.ref.attempt}"

    @property
    def memory_source_text(self) -> str:
        """Who made its bytes; where only some steps were followed, with how many."""
        source = phrase(self.memory_source) if self.memory_source else ""
        if not self.memory_steps:
            return source
        return phrase("{source}, {steps}", source=source, steps=self.memory_steps)

    @property
    def is_alive(self) -> bool:
        return self.outcome == "running"

    def value(self, key: str) -> float | None:
        figure = self.metrics.get(key)
        return None if figure is None else figure.value


def build_compared_run(at: RunRef, fold: RunState, background: RunSetup, outcome: str) -> ComparedRun:
    """What is known of a run, or of an attempt that was folded alone."""
    started, observed = fold.started, _observed(fold, background)
    devices = [device for device in fold.devices.values() if device.info is not None]
    figures = (
        dict(_step_metrics(fold))
        | dict(_loss_metrics(fold))
        | dict(_verified_metrics(fold))
        | dict(_speed_metrics(fold))
    )
    figures |= dict(_memory_metrics(fold, background)) | dict(_communication_metrics(fold))
    device_kind = (devices[0].kind or "") if devices else ""
    if device_kind == "virtual" and observed is not None:
        device_kind = "cpu"
    return ComparedRun(
        ref=at,
        title=background.title,
        outcome=outcome,
        strategy=_strategy(fold, background),
        device_kind=device_kind,
        device_names=tuple(device.info.title for device in devices if device.info is not None),
        time_source=SIMULATED_TIME if started is not None and started.pace == "simulated" else "",
        memory_source=fold.source,
        setup=background,
        observed=observed,
        metrics=figures,
        devices=tuple(_compared_devices(background, devices, device_kind)),
        memory_steps=_memory_steps(fold),
        steps_planned=fold.num_steps_planned,
        global_batch=None if started is None else started.global_batch,
        problems=tuple(problem.message for problem in fold.problems if problem.severity == "error"),
        mean_loss=partial(_mean_loss, fold.losses),
    )


def _observed(fold: RunState, background: RunSetup) -> events.Observed | None:
    if fold.script.is_observed or "script" in background.tables:
        return fold.script.lead_observation or NOT_OBSERVED
    return None


def outcome_of(at: RunRef, fold: RunState, background: RunSetup, of_run: str) -> str:
    """How the run stands, or how an attempt that another one followed ended."""
    if at.attempt is None or not background.is_past:
        return of_run
    ended = fold.attempts[at.attempt].ended if at.attempt in fold.attempts else None
    return "lost" if ended is None else ended.outcome


def _strategy(fold: RunState, background: RunSetup) -> str:
    if fold.script.lead_observation is not None:
        return fold.script.lead_observation.wrapper or ""
    if fold.started is not None:
        return fold.started.strategy or ""
    strategy = background.tables.get("strategy")
    return str(strategy.get("use", "")) if isinstance(strategy, dict) else ""


MetricItems = Iterator[tuple[str, MetricValue]]


def _step_metrics(fold: RunState) -> MetricItems:
    if fold.step:
        yield "step", MetricValue(fold.step)
    tables = [one.table for one in fold.attempts.values() if one.table.rows.shape[1]]
    first = [table.first for table in tables]
    begun = [row.ended - _finite_or_zero(row.step_s) for row in first if row is not None]
    seconds = sum(float(table.column("ended")[-1]) - at for table, at in zip(tables, begun, strict=False))
    if tables and math.isfinite(seconds):
        yield "trained_s", MetricValue(max(0.0, seconds))


def _loss_metrics(fold: RunState) -> MetricItems:
    newest = fold.newest_value("loss")
    if newest is not None:
        step, loss = newest
        yield "loss", MetricValue(loss, None if step == fold.step else step)
    if (lowest := _lowest_loss(fold.losses)) is not None:
        yield "lowest_loss", lowest
    known = [one for attempt in fold.attempts.values() for one in attempt.evaluations if one.loss is not None]
    if not known:
        return
    last, best = known[-1], min(known, key=lambda one: one.loss or 0.0)
    yield "held_out", MetricValue(last.loss or 0.0, None if last.step == fold.step else last.step)
    yield "best_held_out", MetricValue(best.loss or 0.0, best.step)
    if last.accuracy is not None:
        yield "accuracy", MetricValue(last.accuracy, None if last.step == fold.step else last.step)


def _lowest_loss(curve: Curve) -> MetricValue | None:
    """Of all steps, and the step that it is of; of a step long ago the first one of its bin."""
    if curve.first_x is None or curve.last_x is None:
        return None
    window = curve.window(curve.first_x, curve.last_x, _MAX_POINTS)
    known = np.flatnonzero(np.isfinite(window.low))
    if not len(known):
        return None
    place = known[int(np.argmin(window.low[known]))]
    return MetricValue(float(window.low[place]), int(window.x[place]))


def _verified_metrics(fold: RunState) -> MetricItems:
    if (found := fold.verified) is not None:
        largest = math.nan if found.largest is None else found.largest
        yield "verified", MetricValue(largest, text=verified_cell(found), detail=verified_detail(found))


def _mean_loss(curve: Curve, first: int, last: int) -> float | None:
    """Of raw losses: averages of runs of different length are smoothed by different amounts."""
    window = curve.window(first, last, 4096)
    values = (window.low.astype(np.float64) + window.high) / 2
    known = values[(window.x >= first) & (window.x <= last) & np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def _speed_metrics(fold: RunState) -> MetricItems:
    middle_s, (low_s, high_s) = fold.step_times()["median"], _interquartile_range(fold)
    if middle_s is not None:
        yield "step_s", MetricValue(middle_s, low=low_s, high=high_s)
    for key, rate in (("samples_per_s", fold.samples_per_s()), ("steps_per_s", fold.steps_per_s())):
        if rate is not None and middle_s and low_s and high_s:  # a rate is as sure as its steps are alike
            yield key, MetricValue(rate, low=rate * middle_s / high_s, high=rate * middle_s / low_s)
        elif rate is not None:
            yield key, MetricValue(rate)
    if fold.script.wait_share is not None:
        yield "wait", MetricValue(fold.script.wait_share)
    measured, theory = fold.bubble or (None, None)
    if measured is not None:
        yield "bubble", MetricValue(measured)
    if theory is not None:
        yield "bubble_theory", MetricValue(theory)


def _interquartile_range(fold: RunState) -> tuple[float | None, float | None]:
    """Between which two times half of the newest steps took."""
    times = [
        np.diff(one.table.column("ended")[-_NUM_RECENT_STEPS:])
        for one in fold.attempts.values()
        if one.table.rows.shape[1] > 1
    ]
    known = np.concatenate([np.empty(0), *times])[-_NUM_RECENT_STEPS:]
    known = known[np.isfinite(known)]
    if len(known) < 4:
        return None, None
    low, high = np.percentile(known, (25, 75)).tolist()
    return low, high


def _memory_steps(fold: RunState) -> str:
    sampled = [device.num_sampled for device in fold.devices.values() if device.num_sampled]
    is_known = fold.source is not None and bool(sampled)
    return peak_coverage_text(min(sampled), fold.num_measured_steps) if is_known else ""


def _memory_metrics(fold: RunState, background: RunSetup) -> MetricItems:
    devices = fold.devices.values()
    peaks = [device.peak_bytes for device in devices if device.peak_bytes is not None]
    if peaks and len(peaks) == len(devices):
        yield "peak", MetricValue(max(peaks))
        yield "peak_sum", MetricValue(sum(peaks))
    live = [
        device.live_bytes for device in devices if device.is_owners_only and device.live_bytes is not None
    ]
    if live and len(live) == len(devices):
        yield "held", MetricValue(max(live))
    imbalance = fold.imbalance()
    if imbalance is not None:
        yield "peak_others", MetricValue(imbalance.median_bytes)
        if imbalance.ratio is not None:
            yield "imbalance", MetricValue(imbalance.ratio)
    line = background.prediction
    if line is not None and not line.is_bound and line.devices:
        yield "predicted_peak", MetricValue(max(device.active_bytes for device in line.devices))
    busy = [device.utilisation_mean for device in devices if device.utilisation_mean is not None]
    if busy:
        yield "busy", MetricValue(float(median(busy)))


def _communication_metrics(fold: RunState) -> MetricItems:
    """Of all ranks together, as far as they have told; each algorithm by itself as well."""
    comm = fold.comm
    world_size = fold.started.world_size if fold.started is not None else len(comm)
    if comm and len(comm) >= world_size:
        yield "sent", MetricValue(sum(sum(sent.values()) for sent in comm.values()))
        for name in sorted({name for sent in comm.values() for name in sent}):
            yield f"{SENT_PREFIX}{name}", MetricValue(sum(sent.get(name, 0) for sent in comm.values()))
    synced = [one.sync_s for one in fold.sync.values() if one.sync_s is not None]
    if synced:
        yield "sync_s", MetricValue(max(synced))


def _compared_devices(
    background: RunSetup, devices: list[DeviceState], kind: str
) -> Iterator[ComparedDevice]:
    line = background.prediction
    planned = line.devices if line is not None and not line.is_bound else []
    predicted = {device.device: device.active_bytes for device in planned}
    for device in devices:
        label = f"CPU {device.device}" if kind == "cpu" else device.label
        held = (device.live_bytes, device.live_by_kind) if device.is_owners_only else None
        num_bytes, by_kind = held or (device.peak_bytes, device.peak_by_kind)
        yield ComparedDevice(
            label, num_bytes, by_kind or {}, predicted.get(device.device), is_peak=not device.is_owners_only
        )


def _finite_or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0


# Runs read from their directories, for whoever does not follow them: the command line.


class LoadedRun(NamedTuple):
    """A run's figures, and the fold that its curves are drawn from."""

    run: ComparedRun
    state: RunState


def load_run(at: RunRef) -> LoadedRun:
    """Everything that a run, or one attempt of it alone, has told until now."""
    fold = RunState()
    for batch in iter_batches(open_events(at)):
        fold.apply(batch)
    background = read_run_setup(at)
    outcome = outcome_of(at, fold, background, at.run_dir.outcome())
    return LoadedRun(build_compared_run(at, fold, background, outcome), fold)


def open_events(at: RunRef) -> EventReader:
    """What reads the events of a run, or of one attempt alone."""
    return EventReader(at.run_dir, first_attempt=at.attempt or 0, last_attempt=at.attempt)
