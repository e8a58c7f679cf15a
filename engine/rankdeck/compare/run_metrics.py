"""Build one column of a comparison: metrics from a run's state and setup; nothing is estimated.

Each metric has a key of table.ROW_SPECS; metrics that the run did not report are absent. Times exclude the
pauses between attempts. Building a column takes milliseconds even for a long run, so the app rebuilds it
about once a second.
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
"""Number of newest steps from which the spread of step times is computed."""
_MAX_POINTS = 1 << 20
NOT_OBSERVED = events.Observed(rank=0, script="")
"""Placeholder for the observation of a script before any rank has reported one."""
SENT_PREFIX = "sent:"
"""Prefix of the keys of metrics that count the bytes sent by one algorithm."""


@dataclass(frozen=True)
class MetricValue:
    """The value of one metric.

    `step` is the step that the value comes from; None if that is the last step. `low` and `high` are the
    bounds of the metric's interquartile range. If `text` is set, it is shown in place of the number. `detail`
    is shown after the number or text.
    """

    value: float
    step: int | None = None
    low: float | None = None
    high: float | None = None
    text: str = ""
    detail: str = ""


@dataclass(frozen=True)
class ComparedDevice:
    """Memory of one device by kind: its peak or, if `is_peak` is False, the latest measurement, which counts
    only tensors with known owners."""

    label: str
    num_bytes: int | None
    by_kind: Mapping[str, int]
    predicted_bytes: int | None = None
    is_peak: bool = True


@dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison. `time_source` and `memory_source` are the sources of the run's times and
    bytes.

    `device_kind` is gpu, virtual (a rehearsal) or cpu; empty if no device is known. `observed` is the
    observation of a user's script, or NOT_OBSERVED before the first observation; None for a configured run,
    which reports its own metrics.
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
    """Description of the steps that the memory values cover; empty if all steps were tracked."""
    steps_planned: int | None = None
    global_batch: int | None = None
    problems: tuple[str, ...] = ()
    """Errors of the run, one sentence each."""
    mean_loss: Callable[[int, int], float | None] = field(default=lambda _first, _last: None, compare=False)
    """Function that takes a first and a last step and returns the mean loss between them, or None if no loss
    is known in that range."""

    @property
    def name(self) -> str:
        """The run's title, followed by the attempt's number if only one attempt is compared."""
        return self.title if self.ref.attempt is None else f"{self.title} @{self.ref.attempt}"

    @property
    def memory_source_text(self) -> str:
        """The source of the memory values, followed by the tracked steps if not all steps were tracked."""
        source = phrase(self.memory_source) if self.memory_source else ""
        if not self.memory_steps:
            return source
        return phrase("{source}, {steps}", source=source, steps=self.memory_steps)

    @property
    def is_alive(self) -> bool:
        return self.outcome == "running"

    def value(self, key: str) -> float | None:
        metric_value = self.metrics.get(key)
        return None if metric_value is None else metric_value.value


def build_compared_run(at: RunRef, state: RunState, background: RunSetup, outcome: str) -> ComparedRun:
    """Build the column of a run, or of a single attempt if `state` was built from that attempt's events
    alone. `background` is the setup of the run or attempt."""
    started, observed = state.started, _observed(state, background)
    devices = [device for device in state.devices.values() if device.info is not None]
    metrics = (
        dict(_step_metrics(state))
        | dict(_loss_metrics(state))
        | dict(_verified_metrics(state))
        | dict(_speed_metrics(state))
    )
    metrics |= dict(_memory_metrics(state, background)) | dict(_communication_metrics(state))
    device_kind = (devices[0].kind or "") if devices else ""
    # A user script on CPUs is not a rehearsal: its virtual devices are the CPUs of its ranks.
    if device_kind == "virtual" and observed is not None:
        device_kind = "cpu"
    return ComparedRun(
        ref=at,
        title=background.title,
        outcome=outcome,
        strategy=_strategy(state, background),
        device_kind=device_kind,
        device_names=tuple(device.info.title for device in devices if device.info is not None),
        time_source=SIMULATED_TIME if started is not None and started.pace == "simulated" else "",
        memory_source=state.source,
        setup=background,
        observed=observed,
        metrics=metrics,
        devices=tuple(_compared_devices(background, devices, device_kind)),
        memory_steps=_memory_steps(state),
        steps_planned=state.num_steps_planned,
        global_batch=None if started is None else started.global_batch,
        problems=tuple(problem.message for problem in state.problems if problem.severity == "error"),
        mean_loss=partial(_mean_loss, state.losses),
    )


def _observed(state: RunState, background: RunSetup) -> events.Observed | None:
    if state.script.is_observed or "script" in background.tables:
        return state.script.lead_observation or NOT_OBSERVED
    return None


def outcome_of(at: RunRef, state: RunState, background: RunSetup, of_run: str) -> str:
    """Return the outcome of the run (`of_run`) or, if `at` is an attempt that was followed by another
    attempt, the outcome of `at`."""
    if at.attempt is None or not background.is_past:
        return of_run
    ended = state.attempts[at.attempt].ended if at.attempt in state.attempts else None
    # An attempt that was followed by another and has no end record was killed.
    return "lost" if ended is None else ended.outcome


def _strategy(state: RunState, background: RunSetup) -> str:
    if state.script.lead_observation is not None:
        return state.script.lead_observation.wrapper or ""
    if state.started is not None:
        return state.started.strategy or ""
    strategy = background.tables.get("strategy")
    return str(strategy.get("use", "")) if isinstance(strategy, dict) else ""


MetricItems = Iterator[tuple[str, MetricValue]]


def _step_metrics(state: RunState) -> MetricItems:
    if state.step:
        yield "step", MetricValue(state.step)
    tables = [attempt.table for attempt in state.attempts.values() if attempt.table.rows.shape[1]]
    first = [table.first for table in tables]
    start_times = [row.ended - _finite_or_zero(row.step_s) for row in first if row is not None]
    seconds = sum(
        float(table.column("ended")[-1]) - at for table, at in zip(tables, start_times, strict=False)
    )
    if tables and math.isfinite(seconds):
        yield "trained_s", MetricValue(max(0.0, seconds))


def _loss_metrics(state: RunState) -> MetricItems:
    newest = state.newest_value("loss")
    if newest is not None:
        step, loss = newest
        yield "loss", MetricValue(loss, None if step == state.step else step)
    if (lowest := _lowest_loss(state.losses)) is not None:
        yield "lowest_loss", lowest
    evaluations = [
        evaluation
        for attempt in state.attempts.values()
        for evaluation in attempt.evaluations
        if evaluation.loss is not None
    ]
    if not evaluations:
        return
    last, best = evaluations[-1], min(evaluations, key=lambda evaluation: evaluation.loss or 0.0)
    yield "held_out", MetricValue(last.loss or 0.0, None if last.step == state.step else last.step)
    yield "best_held_out", MetricValue(best.loss or 0.0, best.step)
    if last.accuracy is not None:
        yield "accuracy", MetricValue(last.accuracy, None if last.step == state.step else last.step)


def _lowest_loss(curve: Curve) -> MetricValue | None:
    """Return the lowest loss and its step; for older, binned steps, the first step of the bin."""
    if curve.first_x is None or curve.last_x is None:
        return None
    window = curve.window(curve.first_x, curve.last_x, _MAX_POINTS)
    indices = np.flatnonzero(np.isfinite(window.low))
    if not len(indices):
        return None
    index = indices[int(np.argmin(window.low[indices]))]
    return MetricValue(float(window.low[index]), int(window.x[index]))


def _verified_metrics(state: RunState) -> MetricItems:
    if (verified := state.verified) is not None:
        largest = math.nan if verified.largest is None else verified.largest
        yield "verified", MetricValue(largest, text=verified_cell(verified), detail=verified_detail(verified))


def _mean_loss(curve: Curve, first: int, last: int) -> float | None:
    """Return the mean of the raw losses from step `first` to step `last`.

    The curve's smoothed losses are not used, because the smoothing depends on a run's length.
    """
    window = curve.window(first, last, 4096)
    values = (window.low.astype(np.float64) + window.high) / 2
    losses = values[(window.x >= first) & (window.x <= last) & np.isfinite(values)]
    return float(losses.mean()) if len(losses) else None


def _speed_metrics(state: RunState) -> MetricItems:
    middle_s, (low_s, high_s) = state.step_times()["median"], _interquartile_range(state)
    if middle_s is not None:
        yield "step_s", MetricValue(middle_s, low=low_s, high=high_s)
    for key, rate in (("samples_per_s", state.samples_per_s()), ("steps_per_s", state.steps_per_s())):
        if rate is not None and middle_s and low_s and high_s:  # a rate varies as its steps do
            yield key, MetricValue(rate, low=rate * middle_s / high_s, high=rate * middle_s / low_s)
        elif rate is not None:
            yield key, MetricValue(rate)
    if state.script.wait_share is not None:
        yield "wait", MetricValue(state.script.wait_share)
    measured, theory = state.bubble or (None, None)
    if measured is not None:
        yield "bubble", MetricValue(measured)
    if theory is not None:
        yield "bubble_theory", MetricValue(theory)


def _interquartile_range(state: RunState) -> tuple[float | None, float | None]:
    """Return the 25th and 75th percentiles of the newest step times."""
    # For each attempt alone: a difference across two attempts would contain the pause between them.
    times = [
        np.diff(attempt.table.column("ended")[-_NUM_RECENT_STEPS:])
        for attempt in state.attempts.values()
        if attempt.table.rows.shape[1] > 1
    ]
    durations = np.concatenate([np.empty(0), *times])[-_NUM_RECENT_STEPS:]
    durations = durations[np.isfinite(durations)]
    # Quartiles need a value in each quarter.
    if len(durations) < 4:
        return None, None
    low, high = np.percentile(durations, (25, 75)).tolist()
    return low, high


def _memory_steps(state: RunState) -> str:
    sampled = [device.num_sampled for device in state.devices.values() if device.num_sampled]
    is_known = state.source is not None and bool(sampled)
    return peak_coverage_text(min(sampled), state.num_measured_steps) if is_known else ""


def _memory_metrics(state: RunState, background: RunSetup) -> MetricItems:
    devices = state.devices.values()
    peaks = [device.peak_bytes for device in devices if device.peak_bytes is not None]
    # The maximum or sum of only some devices would compare as too small.
    if peaks and len(peaks) == len(devices):
        yield "peak", MetricValue(max(peaks))
        yield "peak_sum", MetricValue(sum(peaks))
    live = [
        device.live_bytes for device in devices if device.is_owners_only and device.live_bytes is not None
    ]
    if live and len(live) == len(devices):
        yield "held", MetricValue(max(live))
    imbalance = state.imbalance()
    if imbalance is not None:
        yield "peak_others", MetricValue(imbalance.median_bytes)
        if imbalance.ratio is not None:
            yield "imbalance", MetricValue(imbalance.ratio)
    line = background.prediction
    # A bound is not a prediction that a measurement could confirm.
    if line is not None and not line.is_bound and line.devices:
        yield "predicted_peak", MetricValue(max(device.active_bytes for device in line.devices))
    busy = [device.utilisation_mean for device in devices if device.utilisation_mean is not None]
    if busy:
        yield "busy", MetricValue(float(median(busy)))


def _communication_metrics(state: RunState) -> MetricItems:
    """Yield the bytes sent by all ranks, in total and for each algorithm, if all ranks have reported them.

    Also yield the longest gradient synchronization time of any rank.
    """
    comm = state.comm
    world_size = state.started.world_size if state.started is not None else len(comm)
    if comm and len(comm) >= world_size:
        yield "sent", MetricValue(sum(sum(sent.values()) for sent in comm.values()))
        for name in sorted({name for sent in comm.values() for name in sent}):
            yield f"{SENT_PREFIX}{name}", MetricValue(sum(sent.get(name, 0) for sent in comm.values()))
    synced = [comm_event.sync_s for comm_event in state.sync.values() if comm_event.sync_s is not None]
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
        owner_memory = (device.live_bytes, device.live_by_kind) if device.is_owners_only else None
        num_bytes, by_kind = owner_memory or (device.peak_bytes, device.peak_by_kind)
        yield ComparedDevice(
            label, num_bytes, by_kind or {}, predicted.get(device.device), is_peak=not device.is_owners_only
        )


def _finite_or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0


# Runs loaded from their directories, for the command line, which does not follow them live.


class LoadedRun(NamedTuple):
    """A run's metrics, and the state that its curves are drawn from."""

    run: ComparedRun
    state: RunState


def load_run(at: RunRef) -> LoadedRun:
    """Load everything that a run, or one attempt alone, has reported so far."""
    state = RunState()
    for batch in iter_batches(open_events(at)):
        state.apply(batch)
    background = read_run_setup(at)
    outcome = outcome_of(at, state, background, at.run_dir.outcome())
    return LoadedRun(build_compared_run(at, state, background, outcome), state)


def open_events(at: RunRef) -> EventReader:
    """Return a reader for the events of a run, or of one attempt alone."""
    return EventReader(at.run_dir, first_attempt=at.attempt or 0, last_attempt=at.attempt)
