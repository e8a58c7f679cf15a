"""The thread that reads a run's directory, so that a slow disk or a million events never block a click.

Reading, decoding and the part of folding that costs per event (rankdeck.run.batch) happen here; what is
handed over is a batch whose taking costs the same for one event as for a hundred thousand. An outcome comes
only after every event before it. live_run.py takes them, on the UI's thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rankdeck.base.errors import ConfigError
from rankdeck.base.garbage import collector_paused
from rankdeck.config import RunConfig
from rankdeck.config.script import ScriptConfig
from rankdeck.events import AnyEvent
from rankdeck.run.batch import Batch
from rankdeck.rundir import End, EventReader, LineCounts, RunDir, labels_stamp

POLL_S = 0.04
POLL_ENDED_S = 1.0
OUTCOME_EVERY_S = 0.5
# Not with each frame: every hand-over has costs of its own, and the two threads wait for each other at each.
_HAND_OVER_EVERY_S = 0.06
_PASS_BYTES = 8 << 20
# Half a millisecond of decoding: the thread lets go of the interpreter's lock between two chunks.
_CHUNK_BYTES = 1 << 17
_MOST_WAITING = 64


@dataclass
class Passed:
    """What was read since the last hand-over: a batch for the fold, and what other files say."""

    batch: Batch = field(default_factory=Batch)
    title: str | None = None
    config: RunConfig | None = None
    script: ScriptConfig | None = None
    outcome: str | None = None
    end: End | None = None


class RunTail(threading.Thread):
    """Reads one run from the start, then follows it until `stop`. `batches` is safe to pop from elsewhere."""

    def __init__(self, run: RunDir) -> None:
        super().__init__(name=f"tail {run.name}", daemon=True)
        self.batches: deque[Passed] = deque()
        self._run = run
        self._reader = EventReader(run)
        self._stopping = threading.Event()
        self._passed = Passed()
        self._handed_over = 0.0
        self._said = LineCounts()

    def stop(self) -> None:
        """Ends the thread, and waits for it unless a disk holds it up: then it ends when the disk lets go."""
        self._stopping.set()
        if self.is_alive():
            self.join(timeout=1)

    def run(self) -> None:
        said: str | None = None
        configured: Path | None = None
        outcome: str | None = None
        labelled: object = None
        looked = -OUTCOME_EVERY_S
        while not self._stopping.is_set():
            if time.monotonic() - looked >= OUTCOME_EVERY_S:
                looked = time.monotonic()
                outcome = self._run.outcome()
                # The next attempt may have another configuration.
                if (file := self._run.config_file) != configured:
                    configured = file
                    self._read_configuration()
                if (stamp := (labels_stamp(self._run.path), configured)) != labelled:
                    self._passed.title, labelled = self._run.title, stamp
            # The outcome was looked up before: all events of a run that is over are in this pass or earlier
            # ones. It waits where there was any; the next pass follows at once.
            found_any = self._pass()
            self._hand_over()
            if found_any:
                continue
            if outcome != said:
                self._passed.outcome, self._passed.end = outcome, self._run.end()
                said = outcome
                self._hand_over()
            self._stopping.wait(POLL_ENDED_S if said not in (None, "running") else POLL_S)

    def _read_configuration(self) -> None:
        try:
            self._passed.script = self._run.script()
            if self._passed.script is None:
                self._passed.config = self._run.config()
        except (ConfigError, OSError):
            pass  # what the run was started with stays unknown

    def _pass(self) -> bool:
        """Reads what is new, up to a few MiB; whether there was anything."""
        found_any = False
        chunks = self._reader.batches(_PASS_BYTES, _CHUNK_BYTES)
        while not self._stopping.is_set() and self._take_next(chunks):
            found_any = True
            if time.monotonic() - self._handed_over > _HAND_OVER_EVERY_S:
                self._hand_over()
        return found_any

    def _take_next(self, chunks: Iterator[tuple[str, list[AnyEvent]]]) -> bool:
        """Decodes, takes and frees one chunk with the cycle collector off, whether there was one.

        Events hold no cycles, and looking for some among a million of them doubles the time.
        """
        with collector_paused():
            chunk = next(chunks, None)
            if chunk is None:
                return False
            self._passed.batch.add(*chunk)
            del chunk
            return True

    def _hand_over(self) -> None:
        self._handed_over = time.monotonic()
        counts = self._reader.counts()
        if counts != self._said:
            self._passed.batch.counts = self._said = counts
        passed = self._passed
        nothing = not passed.batch.num_events and passed.batch.counts is None
        known = (passed.title, passed.config, passed.script, passed.outcome)
        if nothing and all(one is None for one in known):
            return
        self.batches.append(passed)
        self._passed = Passed()
        while len(self.batches) > _MOST_WAITING and not self._stopping.wait(0.005):
            pass
