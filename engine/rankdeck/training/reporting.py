"""Report a rank's steps without waiting for them.

Steps are collected and written as columns, at most 50 ms after the first of them, so that reporting a step
takes the training loop only a microsecond. A GPU's losses stay on the GPU until then: one copy moves the
losses of all collected steps to the CPU, and they are written once the copy has finished. No collective is
used: each rank reports its own sum and count, and readers add them up.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankdeck import events
from rankdeck.observer import log
from rankdeck.observer.metrics import MetricBuffer
from rankdeck.observer.readings import DeviceScalarReader
from rankdeck.run_dir import EventWriter

FLUSH_INTERVAL_S = 0.05
SAMPLE_INTERVAL_S = 0.25


@dataclass
class StepFacts:
    """Facts of one step, before its loss has reached the CPU.

    `loss` is (total, count) as tensors or numbers, None on a rank that reports no loss.
    """

    step: int
    loss: tuple[Any, Any] | None
    lr: float
    samples: int
    step_s: float
    ended: float
    grad_norm: Any = None
    loss_scale: Any = None


class _StepColumns:
    """The columns of one event that reports several steps. Numbers on a GPU are copied to pinned memory, one
    column at a time."""

    def __init__(self, steps: list[StepFacts]) -> None:
        self._steps = steps
        self._copy_event: torch.cuda.Event | None = None
        losses = [facts.loss for facts in steps if facts.loss is not None]
        self._totals = self._to_host([total for total, _ in losses])
        self._counts = self._to_host([count for _, count in losses])
        self._norms = self._to_host([facts.grad_norm for facts in steps if facts.grad_norm is not None])
        self._scales = self._to_host([facts.loss_scale for facts in steps if facts.loss_scale is not None])

    def _to_host(self, values: list[Any]) -> Any:
        if not values:
            return None
        if not (isinstance(values[0], Tensor) and values[0].is_cuda):
            return values
        stacked = torch.stack(values)
        # Only copies to pinned memory are asynchronous.
        host = torch.empty(stacked.shape, dtype=stacked.dtype, pin_memory=True)
        host.copy_(stacked, non_blocking=True)
        self._copy_event = torch.cuda.Event()
        self._copy_event.record()
        return host

    def is_ready(self) -> bool:
        return self._copy_event is None or self._copy_event.query()

    def event(self, rank: int) -> events.Steps:
        """Return the event; wait for unfinished copies first."""
        if self._copy_event is not None:
            self._copy_event.synchronize()
        return events.Steps(
            rank=rank,
            first=self._steps[0].step,
            loss_sum=_to_floats(self._totals),
            count=_to_floats(self._counts),
            lr=[facts.lr for facts in self._steps],
            samples=[facts.samples for facts in self._steps],
            step_s=[facts.step_s for facts in self._steps],
            ended=[facts.ended for facts in self._steps],
            grad_norm=_to_floats(self._norms),
        )

    def loss_scales(self) -> list[float]:
        """Return the loss scale of each step; empty without loss scaling. Call it after `event`, which waits
        for copies."""
        return _to_floats(self._scales) or []


def _to_floats(column: Any) -> Any:
    if isinstance(column, Tensor):
        column = column.tolist()
    return None if column is None else [float(value) for value in column]


class StepReporter:
    """Reporter that collects steps and writes them as columns.

    `add` and `flush` write steps and return (step, loss) of the first written step whose loss is not finite;
    None if there is no such step.
    """

    def __init__(self, writer: EventWriter, rank: int, device: torch.device) -> None:
        self._writer = writer
        self._rank = rank
        self._on_gpu = device.type == "cuda"
        self._steps: list[StepFacts] = []
        self._in_flight: _StepColumns | None = None
        self._loss_scale: float | None = None
        self._last_sent_s = time.monotonic()
        self._flush_interval_s = FLUSH_INTERVAL_S / 2 if self._on_gpu else FLUSH_INTERVAL_S

    def add(self, facts: StepFacts) -> tuple[int, float] | None:
        """Add a step; at intervals, write the steps whose losses have reached the CPU.

        Return (step, loss sum) for the first written loss that is NaN or infinite; None if all are finite.
        """
        self._steps.append(facts)
        if time.monotonic() - self._last_sent_s >= self._flush_interval_s:
            self._start_copy()
        return None if self._in_flight is None else self._write(wait=False)

    def flush(self, *, wait: bool = False) -> tuple[int, float] | None:
        """Write all steps whose losses are known; if `wait` is True, also those whose losses are still on a
        GPU. Return the same as `add`."""
        bad = self._write(wait=wait)
        # On the CPU losses are known at once.
        if wait or not self._on_gpu:
            self._start_copy()
            bad = bad or self._write(wait=True)
        return bad

    def _start_copy(self) -> None:
        """Start copying the steps collected so far, unless the copy of earlier steps is still in progress."""
        if self._steps and self._in_flight is None:
            self._in_flight, self._steps = _StepColumns(self._steps), []
            self._last_sent_s = time.monotonic()

    def _write(self, *, wait: bool) -> tuple[int, float] | None:
        columns = self._in_flight
        if columns is None or not (wait or columns.is_ready()):
            return None
        self._in_flight = None
        event = columns.event(self._rank)
        self._writer.write(event)
        for step, scale in enumerate(columns.loss_scales(), start=event.first):
            # All ranks have the same scale, so rank 0 reports its changes.
            if scale != self._loss_scale and self._rank == 0:
                self._writer.write(events.LossScale(rank=0, step=step, scale=scale))
            self._loss_scale = scale
        totals = enumerate(event.loss_sum or (), start=event.first)
        bad = ((step, total) for step, total in totals if total is not None and not math.isfinite(total))
        return next(bad, None)


class UtilizationMeter:
    """Meter that measures how busy each virtual device of a rank is: its thread's CPU time divided by wall
    time.

    It reports at most once per `SAMPLE_INTERVAL_S`. For a rank with a single device, the run's sampler
    measures this instead.
    """

    def __init__(self, writer: EventWriter, rank: int, devices: list[int]) -> None:
        self._writer = writer
        self._rank = rank
        self._devices = devices
        self._last_report_s = time.monotonic()
        self._last_busy_s: list[float] | None = None

    def is_due(self) -> bool:
        return time.monotonic() - self._last_report_s >= SAMPLE_INTERVAL_S

    def report(self, busy_s: list[float] | None) -> None:
        """Report utilization since the last call.

        `busy_s` is the CPU time of each device so far, in seconds; None if devices do not have their own
        threads.
        """
        if busy_s is None:
            return
        now = time.monotonic()
        elapsed = now - self._last_report_s
        if self._last_busy_s is not None and elapsed > 0:
            readings = [
                events.DeviceSample(device=device, utilisation=min(1.0, max(0.0, (new - old) / elapsed)))
                for device, new, old in zip(self._devices, busy_s, self._last_busy_s, strict=True)
            ]
            self._writer.write(events.Sample(devices=readings, interval_s=elapsed, rank=self._rank))
        self._last_report_s, self._last_busy_s = now, busy_s


# Values that a user's model or loss logs with `rankdeck.log`: they become curves of the run, as in a script.
#
# A value without a step belongs to the current one. Values logged between steps, while held-out samples are
# evaluated, are discarded: they would appear among those of training.

_LOG_FLUSH_INTERVAL_S = 0.25


@contextlib.contextmanager
def logging_disabled() -> Iterator[None]:
    """Discard values logged inside the `with` block, for a diagnostic forward pass that belongs to no
    step."""
    before, log.rank_handler = log.rank_handler, None
    try:
        yield
    finally:
        log.rank_handler = before


class StepLog:
    """One rank's log of user metrics. Several threads can log at once: one per device if a rank drives
    several devices."""

    def __init__(self, writer: EventWriter, rank: int) -> None:
        self._writer, self._rank = writer, rank
        self._step = 0
        self._buffer = MetricBuffer(lambda: None, lambda: self._step, DeviceScalarReader().read)
        self._last_flush_s = 0.0

    @contextlib.contextmanager
    def logging_step(self, step: int) -> Iterator[None]:
        """Assign values logged inside the `with` block to `step`."""
        self._step = step
        log.rank_handler = self._add
        try:
            yield
        finally:
            log.rank_handler = None
        if time.monotonic() - self._last_flush_s >= _LOG_FLUSH_INTERVAL_S:
            self.flush()

    def flush(self, *, is_final: bool = False) -> None:
        """Write the values that are known; if `is_final` is True, wait briefly for numbers still on a GPU."""
        self._last_flush_s = time.monotonic()
        for columns in self._buffer.take(is_final):
            self._writer.write(events.Metrics(self._rank, *columns))

    def _add(self, values: Any, named: Mapping[str, object], step: Any) -> None:
        self._buffer.add("rankdeck", {**(values or {}), **named}, self._step if step is None else step)
