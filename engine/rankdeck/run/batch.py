"""What was read of a run's event files, put into columns: the part of folding that costs per event.

A batch is filled where the files are read (in the app: in a thread of its own), and taken by `Fold.apply` in
a time that hardly depends on how many events it holds. fold.py reads it next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from typing import NamedTuple

import msgspec

from rankdeck.base.parsing import fault_of
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
from rankdeck.run.bounds import LARGEST_STEP, LONGEST_S, MOST_RANKS
from rankdeck.run.metrics import MetricColumns, MetricKey, columns_of, is_whole
from rankdeck.run.step_blocks import StepBlock, blocks_of
from rankdeck.rundir import EventReader, LineCounts, attempt_of

_CHECKED_LATER = (Spans, Observed, Collectives)
"""What they tell besides stands where one figure of them is absurd."""
_TOO_MANY = 1 << 62
"""No device has so many bytes."""
_MOST_UTILISED = 100
"""A share of 1 is all; whoever rounds or counts cores says a little more."""


class Changed(Flag):
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


class Source(NamedTuple):
    """Where an event stands: the order of what several files say, whichever was read first."""

    attempt: int
    t: float
    writer: str
    seq: int


@dataclass
class Readings:
    """Samples of one device as columns, without what was not read."""

    used_t: list[float] = field(default_factory=list)
    used_bytes: list[int] = field(default_factory=list)
    utilisation_t: list[float] = field(default_factory=list)
    utilisation: list[float] = field(default_factory=list)
    interval_s: list[float] = field(default_factory=list)
    """The seconds that each utilisation is of."""
    now: dict[str, object] = field(default_factory=dict)
    """The newest used_bytes, utilisation, processes and missing; what was never read is not here."""

    def add(self, sample: DeviceSample, event: Sample) -> None:
        if sample.missing is not None:
            self.now["missing"] = sample.missing
            self.now |= {key: None for key in ("utilisation", "used_bytes") if key in sample.missing}
        if sample.processes is not None:
            self.now["processes"] = sample.processes
        if sample.used_bytes is not None:
            self.used_t.append(event.t)
            self.used_bytes.append(sample.used_bytes)
            self.now["used_bytes"] = sample.used_bytes
        if sample.utilisation is not None:
            self.utilisation_t.append(event.t)
            self.utilisation.append(sample.utilisation)
            self.interval_s.append(event.interval_s)
            self.now["utilisation"] = sample.utilisation


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
    return 0 <= device.device < MOST_RANKS and min(sizes) >= 0 and max(sizes) < _TOO_MANY


def is_sensible_sample(sample: DeviceSample, interval_s: float) -> bool:
    """Whether a reading's figures are such; sums of them stay in the range of a double."""
    return (
        0 <= sample.device < MOST_RANKS
        and 0 <= (sample.used_bytes or 0) < _TOO_MANY
        and 0 <= (sample.utilisation or 0) <= _MOST_UTILISED
        and 0 <= interval_s < LONGEST_S
    )


@dataclass
class Sampled:
    """Sampled steps as columns: when, which, and the peak."""

    t: list[float] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    num_bytes: list[int] = field(default_factory=list)


@dataclass
class MemoryColumns:
    """Sampled steps of one device, those where only owners were seen apart; whole where a peak is the largest
    so far."""

    measured: Sampled = field(default_factory=Sampled)
    owners: Sampled = field(default_factory=Sampled)
    largest: list[Peak] = field(default_factory=list)
    latest: Peak | None = None

    def add(self, device: DeviceMemory, event: Memory) -> None:
        self.latest = Peak(event.step, device, event.source)
        columns = self.owners if event.source == OWNERS_SEEN else self.measured
        columns.t.append(event.t)
        columns.step.append(event.step)
        columns.num_bytes.append(device.peak_bytes)
        if not self.largest or self.latest.size > self.largest[-1].size:
            self.largest.append(self.latest)


@dataclass
class Batch:
    """Events of any files, each file's in its own order. Keys begin with the attempt.

    `events` are the rare ones; `counts`, where set, what the reader could not take so far.
    """

    steps: list[tuple[int, StepBlock]] = field(default_factory=list)
    readings: defaultdict[tuple[int, int], Readings] = field(default_factory=lambda: defaultdict(Readings))
    memory: defaultdict[tuple[int, int], MemoryColumns] = field(
        default_factory=lambda: defaultdict(MemoryColumns)
    )
    metrics: defaultdict[tuple[int, int, MetricKey], MetricColumns] = field(
        default_factory=lambda: defaultdict(MetricColumns)
    )
    """By attempt, rank and name."""
    events: list[tuple[Source, AnyEvent]] = field(default_factory=list)
    told_until: dict[int, float] = field(default_factory=dict)
    """By attempt, when the newest of all its events was written (Unix seconds)."""
    num_events: int = 0
    num_refused: int = 0
    counts: LineCounts | None = None

    def add(self, file_name: str, events: Sequence[AnyEvent]) -> None:
        """Take a chunk of one file."""
        attempt, writer = attempt_of(file_name), file_name.rsplit(".", 2)[0]
        self.num_events += len(events)
        if events:
            self.told_until[attempt] = max(events[-1].t, self.told_until.get(attempt, 0.0))
        steps = [event for event in events if type(event) is Steps]
        if steps:
            blocks, num_refused = blocks_of(steps)
            self.steps += [(attempt, block) for block in blocks]
            self.num_refused += num_refused
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
                        self.num_refused += 1
            elif type(event) is Memory:
                for device in event.devices:
                    if is_sensible(device) and 0 <= event.step <= LARGEST_STEP:
                        self.memory[attempt, device.device].add(device, event)
                    else:
                        self.num_refused += 1
            elif type(event) is Metrics:
                self._add_metrics(attempt, event)
            elif type(event) not in _CHECKED_LATER and fault_of(msgspec.to_builtins(event)):
                self.num_refused += 1
            else:
                self.events.append((Source(attempt, event.t, writer, event.seq), event))

    def _add_metrics(self, attempt: int, event: Metrics) -> None:
        if not 0 <= event.rank < MOST_RANKS or not is_whole(event):
            self.num_refused += 1
        if 0 <= event.rank < MOST_RANKS:
            for key, columns in columns_of(event).items():
                self.metrics[attempt, event.rank, key].extend(columns)


def batches(reader: EventReader) -> Iterator[Batch]:
    """Everything that is there to be read now; the last one is empty."""
    while True:
        batch = Batch()
        for name, chunk in reader.batches():
            batch.add(name, chunk)
        batch.counts = reader.counts()
        yield batch
        if not batch.num_events:
            return
