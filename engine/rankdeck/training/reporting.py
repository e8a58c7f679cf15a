"""What a rank reports of its steps, without ever waiting for it.

On a GPU a step's loss is copied to the host asynchronously and reported a step or more later; on CPU it is
there at once. Steps travel as columns, flushed within 50 ms of the first one waiting, so that a step costs
the loop a few microseconds. No collective: each rank reports its own sum and count, and readers add them.
"""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankdeck import events
from rankdeck.rundir import EventWriter

FLUSH_S = 0.05
SAMPLE_S = 0.25


@dataclass
class StepFacts:
    """One step before its loss has reached the host.

    `loss` is (total, count) as tensors or numbers, None for a silent rank.
    """

    step: int
    loss: tuple[Any, Any] | None
    lr: float
    samples: int
    step_s: float
    ended: float
    grad_norm: Any = None
    ready: Any = None


class StepReporter:
    """Collects steps and appends them as columns. `pending` losses on a GPU wait for their copy."""

    def __init__(self, writer: EventWriter, rank: int, device: torch.device) -> None:
        self._writer = writer
        self._rank = rank
        self._on_gpu = device.type == "cuda"
        self._pending: deque[StepFacts] = deque()
        self._columns: events.Steps | None = None
        self._flushed = time.monotonic()

    def add(self, facts: StepFacts) -> StepFacts | None:
        """Take a step in; returns the newest step whose loss is now known on the host, to be checked."""
        if self._on_gpu:
            _start_copy(facts)
        self._pending.append(facts)
        known = self._take_ready(wait=False)
        if time.monotonic() - self._flushed >= FLUSH_S:
            self.flush()
        return known

    def _take_ready(self, *, wait: bool) -> StepFacts | None:
        known = None
        while self._pending and (wait or self._pending[0].ready is None or self._pending[0].ready.query()):
            facts = self._pending.popleft()
            if facts.ready is not None:
                facts.ready.synchronize()
                facts.ready = None
            if facts.loss is not None:
                facts.loss = (float(facts.loss[0]), float(facts.loss[1]))
            if facts.grad_norm is not None:
                facts.grad_norm = float(facts.grad_norm)
            self._append(facts)
            known = facts
            if facts.loss is not None and not math.isfinite(facts.loss[0]):
                break
        return known

    def _append(self, facts: StepFacts) -> None:
        columns = self._columns
        if columns is None:
            self._columns = columns = events.Steps(rank=self._rank, first=facts.step)
            if facts.loss is not None:
                columns.loss_sum, columns.count = [], []
            if facts.grad_norm is not None:
                columns.grad_norm = []
        if facts.loss is not None and columns.loss_sum is not None and columns.count is not None:
            columns.loss_sum.append(facts.loss[0])
            columns.count.append(facts.loss[1])
        if columns.grad_norm is not None:
            columns.grad_norm.append(facts.grad_norm)
        columns.lr.append(facts.lr)
        columns.samples.append(facts.samples)
        columns.step_s.append(facts.step_s)
        columns.ended.append(facts.ended)

    def flush(self, *, wait: bool = False) -> StepFacts | None:
        """Write what is known; `wait` first waits for the losses that are still on their way."""
        known = self._take_ready(wait=True) if wait else None
        if self._columns is not None:
            self._writer.write(self._columns)
            self._columns = None
        self._flushed = time.monotonic()
        return known


def _start_copy(facts: StepFacts) -> None:
    """Send the step's numbers to page-locked memory; `ready` is the event that says they are there."""
    facts.loss = None if facts.loss is None else (_to_host(facts.loss[0]), _to_host(facts.loss[1]))
    facts.grad_norm = _to_host(facts.grad_norm)
    facts.ready = torch.cuda.Event()
    facts.ready.record()


def _to_host(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_cuda:
        return torch.empty((), dtype=value.dtype, pin_memory=True).copy_(value, non_blocking=True)
    return value


class BusyMeter:
    """How busy the thread behind each of a rank's virtual devices is: its CPU time over wall time, told at
    most every `SAMPLE_S`. How busy a rank is that is one device, the run's sampler tells.
    """

    def __init__(self, writer: EventWriter, rank: int, devices: list[int]) -> None:
        self._writer = writer
        self._rank = rank
        self._devices = devices
        self._last = time.monotonic()
        self._last_busy: list[float] | None = None

    def due(self) -> bool:
        return time.monotonic() - self._last >= SAMPLE_S

    def tell(self, busy_s: list[float] | None) -> None:
        """`busy_s`: CPU seconds so far per device, None where threads are not told apart."""
        if busy_s is None:
            return
        now = time.monotonic()
        elapsed = now - self._last
        if self._last_busy is not None and elapsed > 0:
            readings = [
                events.DeviceSample(device=device, utilisation=min(1.0, max(0.0, (new - old) / elapsed)))
                for device, new, old in zip(self._devices, busy_s, self._last_busy, strict=True)
            ]
            self._writer.write(events.Sample(devices=readings, interval_s=elapsed, rank=self._rank))
        self._last, self._last_busy = now, busy_s
