"""Thread that reads a run directory, so that neither a slow disk nor a million events block the UI.

Reading, decoding and the per-event part of aggregation (rankdeck.run.batch) happen here. Applying a batch
takes the same time for one event as for a hundred thousand. The run's outcome is passed on only after all
earlier events. live_run.py applies the batches on the UI thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rankdeck.base.errors import ConfigError
from rankdeck.base.garbage import pause_gc
from rankdeck.config import RunConfig
from rankdeck.config.script import ScriptConfig
from rankdeck.events import AnyEvent
from rankdeck.run.batch import Batch
from rankdeck.run_dir import EventReader, ExitRecord, LineCounts, RunDir, labels_stamp

POLL_INTERVAL_S = 0.04
ENDED_POLL_INTERVAL_S = 1.0
OUTCOME_INTERVAL_S = 0.5
# Less often than frames: each delivery has a fixed cost, and makes the two threads wait for each other.
_DELIVERY_INTERVAL_S = 0.06
_READ_BYTES = 8 << 20
# Half a millisecond of decoding: the thread releases the GIL between two chunks.
_CHUNK_BYTES = 1 << 17
_MAX_QUEUED = 64


@dataclass
class TailUpdate:
    """Data read since the last update: a batch of events for the run state, and values from other files."""

    batch: Batch = field(default_factory=Batch)
    title: str | None = None
    config: RunConfig | None = None
    script: ScriptConfig | None = None
    outcome: str | None = None
    exit_record: ExitRecord | None = None


class RunTail(threading.Thread):
    """Reads a run from the start and follows it until `stop` is called; another thread can pop from
    `updates`."""

    def __init__(self, run: RunDir) -> None:
        super().__init__(name=f"tail {run.name}", daemon=True)
        self.updates: deque[TailUpdate] = deque()
        self._run = run
        self._reader = EventReader(run)
        self._stop_event = threading.Event()
        self._update = TailUpdate()
        self._last_delivery_s = 0.0
        self._reported_counts = LineCounts()

    def stop(self) -> None:
        """Stop the thread and wait up to a second for it to end; a thread blocked by a disk ends when the
        disk responds again."""
        self._stop_event.set()
        if self.is_alive():
            self.join(timeout=1)

    def run(self) -> None:
        reported: str | None = None
        configured: Path | None = None
        outcome: str | None = None
        labelled: object = None
        looked = -OUTCOME_INTERVAL_S
        while not self._stop_event.is_set():
            if time.monotonic() - looked >= OUTCOME_INTERVAL_S:
                looked = time.monotonic()
                outcome = self._run.outcome()
                # The next attempt may have another configuration.
                if (file := self._run.config_file) != configured:
                    configured = file
                    self._read_config()
                if (stamp := (labels_stamp(self._run.path), configured)) != labelled:
                    self._update.title, labelled = self._run.title, stamp
            # The outcome was read before the events, so all events of an ended run are read in this pass or
            # earlier ones. If there were any, report the outcome in a later pass, which follows at once.
            found_any = self._read_new()
            self._deliver()
            if found_any:
                continue
            if outcome != reported:
                self._update.outcome, self._update.exit_record = outcome, self._run.exit_record()
                reported = outcome
                self._deliver()
            # An ended run is still polled, but less often, because it may be resumed.
            self._stop_event.wait(
                ENDED_POLL_INTERVAL_S if reported not in (None, "running") else POLL_INTERVAL_S
            )

    def _read_config(self) -> None:
        try:
            self._update.script = self._run.script()
            if self._update.script is None:
                self._update.config = self._run.config()
        except (ConfigError, OSError):
            pass  # the configuration stays unknown

    def _read_new(self) -> bool:
        """Read new events, up to a few MiB; return whether there were any."""
        found_any = False
        chunks = self._reader.batches(_READ_BYTES, _CHUNK_BYTES)
        while not self._stop_event.is_set() and self._decode_next(chunks):
            found_any = True
            if time.monotonic() - self._last_delivery_s > _DELIVERY_INTERVAL_S:
                self._deliver()
        return found_any

    def _decode_next(self, chunks: Iterator[tuple[str, list[AnyEvent]]]) -> bool:
        """Decode one chunk, add it to the batch and free it, without garbage collection; return whether there
        was a chunk.

        Events contain no cycles, and collecting garbage among a million of them would double the time.
        """
        with pause_gc():
            chunk = next(chunks, None)
            if chunk is None:
                return False
            self._update.batch.add(*chunk)
            del chunk
            return True

    def _deliver(self) -> None:
        self._last_delivery_s = time.monotonic()
        counts = self._reader.counts()
        if counts != self._reported_counts:
            self._update.batch.counts = self._reported_counts = counts
        passed = self._update
        nothing = not passed.batch.num_events and passed.batch.counts is None
        values = (passed.title, passed.config, passed.script, passed.outcome)
        if nothing and all(value is None for value in values):
            return
        self.updates.append(passed)
        self._update = TailUpdate()
        # Wait for the UI thread, so that a long run's first read does not fill the memory.
        while len(self.updates) > _MAX_QUEUED and not self._stop_event.wait(0.005):
            pass
