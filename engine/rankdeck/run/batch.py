"""Sort the events of a run's files into columns, the only work whose cost grows with the number of events.

A batch is filled by the thread that reads the files (in the app, a separate thread). `RunState.apply` then
takes nearly the same time for any number of events. run_state.py uses this module.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from typing import NamedTuple

import msgspec

from rankdeck.base.parsing import find_fault
from rankdeck.events import (
    OWNERS_SEEN,
    AnyEvent,
    Collectives,
    DeviceMemory,
    DeviceSample,
    Memory,
    Metrics,
    Observed,
    Sample,
    Spans,
    Steps,
)
from rankdeck.run.bounds import MAX_DURATION_S, MAX_RANKS, MAX_STEP
from rankdeck.run.metrics import MetricColumns, MetricKey, has_equal_columns, split_columns
from rankdeck.run.step_blocks import StepBlock, to_blocks
from rankdeck.run_dir import EventReader, LineCounts, parse_attempt

_VALIDATED_LATER = (Spans, Observed, Collectives)
"""Types of events that `Batch.add` accepts even with implausible values; these are validated later."""
_INT_LIMIT = 1 << 62
"""Limit for a number of bytes; no device has this many."""
_MAX_UTILISATION = 100
"""Limit for a utilisation. Full use is 1, but rounding or adding up several cores may give more."""


class RunChange(Flag):
    """Kinds of data that a batch of events changed; a view repaints only if it shows one of them."""

    NOTHING = 0
    STEPS = auto()
    MEMORY = auto()
    READINGS = auto()
    EVALUATION = auto()
    PROBLEMS = auto()
    ANATOMY = auto()
    STATE = auto()
    METRICS = auto()


class EventPosition(NamedTuple):
    """Sort key that orders the events of several files, whatever the order in which the files are read."""

    attempt: int
    t: float
    writer: str
    seq: int


@dataclass
class ReadingColumns:
    """Readings of one device as columns, without missing values."""

    used_t: list[float] = field(default_factory=list)
    used_bytes: list[int] = field(default_factory=list)
    utilisation_t: list[float] = field(default_factory=list)
    utilisation: list[float] = field(default_factory=list)
    interval_s: list[float] = field(default_factory=list)
    """Number of seconds over which each utilisation was measured."""
    latest: dict[str, object] = field(default_factory=dict)
    """The newest used_bytes, utilisation, processes and missing; values that were never read are absent."""

    def add(self, sample: DeviceSample, event: Sample) -> None:
        if sample.missing is not None:
            self.latest["missing"] = sample.missing
            # A missing metric has no value any more, unlike one that was not read this time.
            self.latest |= {key: None for key in ("utilisation", "used_bytes") if key in sample.missing}
        if sample.processes is not None:
            self.latest["processes"] = sample.processes
        if sample.used_bytes is not None:
            self.used_t.append(event.t)
            self.used_bytes.append(sample.used_bytes)
            self.latest["used_bytes"] = sample.used_bytes
        if sample.utilisation is not None:
            self.utilisation_t.append(event.t)
            self.utilisation.append(sample.utilisation)
            self.interval_s.append(event.interval_s)
            self.latest["utilisation"] = sample.utilisation


class Peak(NamedTuple):
    """Memory of one device in a sampled step."""

    step: int
    memory: DeviceMemory
    source: str

    @property
    def size(self) -> tuple[bool, int]:
        """Sort key: a measured peak ranks above a sum over the tensors whose owner is known."""
        return self.source != OWNERS_SEEN, self.memory.peak_bytes

    def __deepcopy__(self, _memo: object) -> Peak:
        return self  # immutable, so copies share it


def is_sensible(device: DeviceMemory) -> bool:
    """Check whether a device's bytes are in a plausible range."""
    sizes = [
        device.live_bytes,
        device.peak_bytes,
        device.reserved_bytes or 0,
        device.peak_reserved_bytes or 0,
    ]
    for by_kind in (device.live_by_kind, device.peak_by_kind):
        if by_kind:
            sizes += by_kind.values()
    return 0 <= device.device < MAX_RANKS and min(sizes) >= 0 and max(sizes) < _INT_LIMIT


def is_sensible_sample(sample: DeviceSample, interval_s: float) -> bool:
    """Check whether a reading's values are in a plausible range, so that sums of them fit into a double."""
    return (
        0 <= sample.device < MAX_RANKS
        and 0 <= (sample.used_bytes or 0) < _INT_LIMIT
        and 0 <= (sample.utilisation or 0) <= _MAX_UTILISATION
        and 0 <= interval_s < MAX_DURATION_S
    )


@dataclass
class PeakColumns:
    """Sampled steps as columns: time, step and peak."""

    t: list[float] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    num_bytes: list[int] = field(default_factory=list)


@dataclass
class MemoryColumns:
    """Sampled steps of one device: those with measured memory, and those in which only the tensors with
    known owners were counted (`owners`).

    `new_peaks` lists the complete reports of the steps whose peak is larger than all earlier peaks.
    """

    measured: PeakColumns = field(default_factory=PeakColumns)
    owners: PeakColumns = field(default_factory=PeakColumns)
    new_peaks: list[Peak] = field(default_factory=list)
    latest: Peak | None = None

    def add(self, device: DeviceMemory, event: Memory) -> None:
        self.latest = Peak(event.step, device, event.source)
        columns = self.owners if event.source == OWNERS_SEEN else self.measured
        columns.t.append(event.t)
        columns.step.append(event.step)
        columns.num_bytes.append(device.peak_bytes)
        if not self.new_peaks or self.latest.size > self.new_peaks[-1].size:
            self.new_peaks.append(self.latest)


@dataclass
class Batch:
    """Events of any number of files; events of one file are in that file's order. The keys of each mapping
    start with the attempt's number.

    `events` contains the infrequent types of events; `counts`, if set, is the number of lines that the reader
    has been unable to use so far.
    """

    steps: list[tuple[int, StepBlock]] = field(default_factory=list)
    readings: defaultdict[tuple[int, int], ReadingColumns] = field(
        default_factory=lambda: defaultdict(ReadingColumns)
    )
    memory: defaultdict[tuple[int, int], MemoryColumns] = field(
        default_factory=lambda: defaultdict(MemoryColumns)
    )
    metrics: defaultdict[tuple[int, int, MetricKey], MetricColumns] = field(
        default_factory=lambda: defaultdict(MetricColumns)
    )
    """Logged values by attempt, rank and metric key."""
    events: list[tuple[EventPosition, AnyEvent]] = field(default_factory=list)
    last_event_times: dict[int, float] = field(default_factory=dict)
    """Time at which each attempt's newest event was written (Unix seconds)."""
    num_events: int = 0
    num_rejected: int = 0
    counts: LineCounts | None = None

    def add(self, file_name: str, events: Sequence[AnyEvent]) -> None:
        """Add a chunk of one file's events."""
        attempt, writer = parse_attempt(file_name), file_name.rsplit(".", 2)[0]
        self.num_events += len(events)
        if events:
            self.last_event_times[attempt] = max(events[-1].t, self.last_event_times.get(attempt, 0.0))
        steps = [event for event in events if type(event) is Steps]
        if steps:
            blocks, num_refused = to_blocks(steps)
            self.steps += [(attempt, block) for block in blocks]
            self.num_rejected += num_refused
        # Fast path: a chunk of steps only needs no loop over its events.
        if len(steps) == len(events):
            return
        for event in events:
            if type(event) is Steps:
                continue
            if type(event) is Sample:
                for sample in event.devices:
                    if is_sensible_sample(sample, event.interval_s):
                        self.readings[attempt, sample.device].add(sample, event)
                    else:
                        self.num_rejected += 1
            elif type(event) is Memory:
                for device in event.devices:
                    if is_sensible(device) and 0 <= event.step <= MAX_STEP:
                        self.memory[attempt, device.device].add(device, event)
                    else:
                        self.num_rejected += 1
            elif type(event) is Metrics:
                self._add_metrics(attempt, event)
            # Last, because the conversion is slow; the frequent events above have cheaper checks of their
            # own.
            elif type(event) not in _VALIDATED_LATER and find_fault(msgspec.to_builtins(event)):
                self.num_rejected += 1
            else:
                self.events.append((EventPosition(attempt, event.t, writer, event.seq), event))

    def _add_metrics(self, attempt: int, event: Metrics) -> None:
        if not 0 <= event.rank < MAX_RANKS or not has_equal_columns(event):
            self.num_rejected += 1
        if 0 <= event.rank < MAX_RANKS:
            for key, columns in split_columns(event).items():
                self.metrics[attempt, event.rank, key].extend(columns)


def iter_batches(reader: EventReader) -> Iterator[Batch]:
    """Yield batches of everything that can be read now; the last batch is empty."""
    while True:
        batch = Batch()
        for name, chunk in reader.batches():
            batch.add(name, chunk)
        # Also in the last, empty batch: lines may have been skipped since the previous one.
        batch.counts = reader.counts()
        yield batch
        if not batch.num_events:
            return
