"""The thread that reads a run's directory, so that a slow disk or a million events never block a click.

Decoding, joining of ranks and turning of readings into columns happen here; what is handed over is a `Batch`
whose taking costs the same for one event as for a hundred thousand. Batches arrive in the order of the files,
and an outcome only after every event before it. live_run.py takes them, on the UI's thread.
"""

from __future__ import annotations

import gc
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from rankdeck.base.errors import ConfigError
from rankdeck.config import RunConfig
from rankdeck.events import AnyEvent, DeviceMemory, Memory, RunStarted, Sample, Steps
from rankdeck.rundir import End, EventReader, RunDir
from rankdeck_app.state.step_merge import StepColumns, StepMerger

POLL_S = 0.04
POLL_ENDED_S = 1.0
OUTCOME_EVERY_S = 0.5
_HAND_OVER_EVERY_S = 0.03
_PASS_BYTES = 8 << 20
# Half a millisecond of decoding: the thread lets go of the interpreter's lock between two chunks.
_CHUNK_BYTES = 1 << 17
_MOST_WAITING = 64
_NAN = float("nan")


@dataclass
class Readings:
    """Samples of one device as columns; NaN is unknown."""

    t: list[float] = field(default_factory=list)
    utilisation: list[float] = field(default_factory=list)
    used_bytes: list[float] = field(default_factory=list)
    interval_s: float = 0.0


@dataclass
class MemoryColumns:
    """Sampled steps of one device: when, and its peak; the last one and the largest whole."""

    t: list[float] = field(default_factory=list)
    peak_bytes: list[float] = field(default_factory=list)
    latest: DeviceMemory | None = None
    largest: DeviceMemory | None = None
    step: int = 0
    source: str = ""


@dataclass
class Batch:
    """What was read since the batch before. `events` are the rare ones, in the order of their files.

    `memory` is that of (attempt, device).
    """

    config: RunConfig | None = None
    steps: StepColumns | None = None
    readings: dict[int, Readings] = field(default_factory=dict)
    memory: dict[tuple[int, int], MemoryColumns] = field(default_factory=dict)
    events: list[AnyEvent] = field(default_factory=list)
    num_events: int = 0
    missing_lines: int = 0
    outcome: str | None = None
    end: End | None = None

    def add(self, event: AnyEvent, attempt: int = 0) -> None:
        """Takes one event; steps go through the merger instead."""
        if isinstance(event, Sample):
            self._add_sample(event)
        elif isinstance(event, Memory):
            self._add_memory(event, attempt)
        else:
            self.events.append(event)

    def _add_sample(self, sample: Sample) -> None:
        for device in sample.devices:
            readings = self.readings.setdefault(device.device, Readings())
            readings.t.append(sample.t)
            readings.utilisation.append(_NAN if device.utilisation is None else device.utilisation)
            readings.used_bytes.append(_NAN if device.used_bytes is None else device.used_bytes)
            readings.interval_s = sample.interval_s

    def _add_memory(self, event: Memory, attempt: int) -> None:
        for device in event.devices:
            columns = self.memory.setdefault((attempt, device.device), MemoryColumns())
            columns.t.append(event.t)
            columns.peak_bytes.append(device.peak_bytes)
            columns.latest, columns.step, columns.source = device, event.step, event.source
            if columns.largest is None or device.peak_bytes > columns.largest.peak_bytes:
                columns.largest = device


class RunTail(threading.Thread):
    """Reads one run from the start, then follows it until `stop`. `batches` is safe to pop from elsewhere."""

    def __init__(self, run: RunDir) -> None:
        super().__init__(name=f"tail {run.name}", daemon=True)
        self.batches: deque[Batch] = deque()
        self._run = run
        self._reader = EventReader(run)
        self._merger = StepMerger()
        self._stopping = threading.Event()
        self._batch = Batch()
        self._handed_over = 0.0
        self._said_missing = 0

    def stop(self) -> None:
        """Ends the thread, and waits for it unless a disk holds it up: then it ends when the disk lets go."""
        self._stopping.set()
        if self.is_alive():
            self.join(timeout=1)

    def run(self) -> None:
        try:
            self._batch.config = self._run.config()
        except (ConfigError, OSError):
            self._batch.config = None
        said: str | None = None
        looked = -OUTCOME_EVERY_S
        while not self._stopping.is_set():
            outcome = said
            if time.monotonic() - looked >= OUTCOME_EVERY_S:
                looked = time.monotonic()
                outcome = self._run.outcome()
            # The outcome was looked up before this pass: every event of a run that is over is in the pass.
            found_any = self._pass()
            self._hand_over(caught_up=not found_any)
            if found_any:
                continue
            if outcome != said:
                self._batch.outcome, self._batch.end = outcome, self._run.end()
                said = outcome
                self._hand_over(caught_up=True)
            self._stopping.wait(POLL_ENDED_S if said not in (None, "running") else POLL_S)

    def _pass(self) -> bool:
        """Reads what is new, up to a few MiB; whether there was anything."""
        found_any = False
        chunks = self._reader.batches(_PASS_BYTES, _CHUNK_BYTES)
        while not self._stopping.is_set() and self._take_next(chunks):
            found_any = True
            if time.monotonic() - self._handed_over > _HAND_OVER_EVERY_S:
                self._hand_over(caught_up=False)
        return found_any

    def _take_next(self, chunks: Iterator[tuple[str, list[AnyEvent]]]) -> bool:
        """Decodes, takes and frees one chunk with the cycle collector off, whether there was one.

        Events hold no cycles, and looking for some among a million of them doubles the time.
        """
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            chunk = next(chunks, None)
            if chunk is None:
                return False
            file_name, events = chunk
            self._take(int(file_name.rsplit(".", 2)[1]), events)
            del chunk, events
            return True
        finally:
            if was_enabled:
                gc.enable()

    def _take(self, attempt: int, events: list[AnyEvent]) -> None:
        """A chunk of one file: steps of one rank to the merger, the rest into the batch."""
        self._batch.num_events += len(events)
        for event in events:
            if type(event) is Steps:
                continue
            if isinstance(event, RunStarted):
                self._merger.begin_attempt(attempt, event.world_size)
            self._batch.add(event, attempt)
        steps = [event for event in events if type(event) is Steps]
        if steps:
            self._merger.add(attempt, steps)

    def _hand_over(self, caught_up: bool) -> None:
        self._handed_over = time.monotonic()
        batch = self._batch
        batch.steps = self._merger.take(caught_up)
        missing = sum(self._reader.missing.values())
        batch.missing_lines, self._said_missing = missing - self._said_missing, missing
        if batch == Batch():
            return
        self.batches.append(batch)
        self._batch = Batch()
        while len(self.batches) > _MOST_WAITING and not self._stopping.wait(0.005):
            pass
