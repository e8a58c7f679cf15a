"""What a person's own model or loss logs in a rank, by `rankdeck.log`: curves of the run, as a script's are.

A value without a step of its own belongs to the step that is under way. What is logged between steps, while
held-out samples are evaluated, is not taken: it would stand among the values of training. Read
observer/metrics.py before, and run/metrics.py for what readers make of it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from rankdeck import events
from rankdeck.observer import log
from rankdeck.observer.metrics import MetricsBook
from rankdeck.observer.readings import OffCpu
from rankdeck.rundir import EventWriter

_FLUSH_S = 0.25


@contextlib.contextmanager
def not_taken() -> Iterator[None]:
    """What is logged meanwhile is of no step: a forward runs once more to find out something."""
    before, log.taken_by = log.taken_by, None
    try:
        yield
    finally:
        log.taken_by = before


class StepLog:
    """One rank's. Several threads may log: a rank that drives all devices has one for each."""

    def __init__(self, writer: EventWriter, rank: int) -> None:
        self._writer, self._rank = writer, rank
        self._step = 0
        self._book = MetricsBook(lambda: None, lambda: self._step, OffCpu().read)
        self._flushed_s = 0.0

    @contextlib.contextmanager
    def taking(self, step: int) -> Iterator[None]:
        """What is logged meanwhile is of that step."""
        self._step = step
        log.taken_by = self._take
        try:
            yield
        finally:
            log.taken_by = None
        if time.monotonic() - self._flushed_s >= _FLUSH_S:
            self.flush()

    def flush(self, *, ending: bool = False) -> None:
        """Write what is known; `ending` waits a moment for numbers that are still on a GPU."""
        self._flushed_s = time.monotonic()
        for fields in self._book.take(ending):
            self._writer.write(events.Metrics(rank=self._rank, **fields))

    def _take(self, values: Any, named: dict[str, Any], step: Any) -> None:
        self._book.add("rankdeck", {**(values or {}), **named}, self._step if step is None else step)
