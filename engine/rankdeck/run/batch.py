"""What was read of a run's event files, put into columns: the part of folding that costs per event.

A batch is filled where the files are read (in the app: in a thread of its own), and taken by `Fold.apply` in
a time that hardly depends on how many events it holds. run_state.py reads it next.
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
"""What they tell besides stands where one figure of them is absurd."""
_INT_LIMIT = 1 << 62
"""No device has so many bytes."""
_MAX_UTILISATION = 100
"""A share of 1 is all; whoever rounds or counts cores says a little more."""


class RunChange(Flag):
    """What a batch brought; a view repaints only what it shows of it."""

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
    """Where an event stands: the order of what several files say, whichever was read first."""

    attempt: int
    t: float
    writer: str
    seq: int


@dataclass
class ReadingColumns:
    """Samples of one device as columns, without what was not read."""

    used_t: list[float] = field(default_factory=list)
    used_bytes: list[int] = field(default_factory=list)
    utilisation_t: list[float] = field(default_factory=list)
    utilisation: list[float] = field(default_factory=list)
    interval_s: list[float] = field(default_factory=list)
    """The seconds that each utilisation is of."""
    latest: dict[str, object] = field(default_factory=dict)
    """The newest used_bytes, utilisation, processes and missing; what was never read is not here."""

    def add(self, sample: DeviceSample, event: Sample) -> None:
        if sample.missing is not None:
            self.latest["missing"] = sample.missing
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
    """The memory of a sampled step."""

    step: int
    memory: DeviceMemory
    source: str

    @property
    def size(self) -> tuple[bool, int]:
        """What is measured comes before a sum over the owners that were seen, which is no peak."""
        return self.source != OWNERS_SEEN, self.memory.peak_bytes

    def __deepcopy__(self, _memo: object) -> Peak:
        return self  # never changed


def is_sensible(device: DeviceMemory) -> bool:
    """Whether a device's bytes are such."""
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
    """Whether a reading's figures are such; sums of them stay in the range of a double."""
    return (
        0 <= sample.device < MAX_RANKS
        and 0 <= (sample.used_bytes or 0) < _INT_LIMIT
        and 0 <= (sample.utilisation or 0) <= _MAX_UTILISATION
        and 0 <= interval_s < MAX_DURATION_S
    )


@dataclass
class PeakColumns:
    """Sampled steps as columns: when, which, and the peak."""

    t: list[float] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    num_bytes: list[int] = field(default_factory=list)


@dataclass
class MemoryColumns:
    """Sampled steps of one device, those where only owners were seen apart; whole where a peak is the largest
    so far."""

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
    """Events of any files, each file's in its own order. Keys begin with the attempt.

    `events` are the rare ones; `counts`, where set, what the reader could not take so far.
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
    """By attempt, rank and name."""
    events: list[tuple[EventPosition, AnyEvent]] = field(default_factory=list)
    last_event_times: dict[int, float] = field(default_factory=dict)
    """By attempt, when the newest of all its events was written (Unix seconds)."""
    num_events: int = 0
    num_rejected: int = 0
    counts: LineCounts | None = None

    def add(self, file_name: str, events: Sequence[AnyEvent]) -> None:
        """Take a chunk of one file."""
        attempt, writer = parse_attempt(file_name), file_name.rsplit(".", 2)[0]
        self.num_events += len(events)
        if events:
            self.last_event_times[attempt] = max(events[-1].t, self.last_event_times.get(attempt, 0.0))
        steps = [event for event in events if type(event) is Steps]
        if steps:
            blocks, num_refused = to_blocks(steps)
            self.steps += [(attempt, block) for block in blocks]
            self.num_rejected += num_refused
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
    """Everything that is there to be read now; the last one is empty."""
    while True:
        batch = Batch()
        for name, chunk in reader.batches():
            batch.add(name, chunk)
        batch.counts = reader.counts()
        yield batch
        if not batch.num_events:
            return
