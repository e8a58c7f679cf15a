"""Read a run's events as numpy columns; unknown values are NaN.

Each refresh continues where the last one ended, so refreshing a running run reads only new events.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from rankdeck import events
from rankdeck.run.batch import Batch
from rankdeck.run.run_state import RunState
from rankdeck.run_dir import EventReader, RunDir, parse_attempt

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
T = TypeVar("T")


class MetricValues(NamedTuple):
    """The values logged under one name, and the steps at which they were logged."""

    steps: IntArray
    values: FloatArray


class RunArrays:
    """A run's events so far, as numpy arrays; `refresh` reads new events."""

    def __init__(self, run: RunDir) -> None:
        # All rows, because the arrays cover every step. Curves are for drawing only.
        self.state = RunState(max_rows=None, curves=False)
        self._reader = EventReader(run)
        # By attempt and step: values of steps that a later attempt trains again are dropped when they are
        # read.
        self._memory: dict[tuple[int, int], dict[int, int]] = {}
        self._evaluations: dict[tuple[int, int], events.Evaluation] = {}

    def refresh(self) -> RunArrays:
        # A pass reads a bounded number of bytes, so repeat until nothing is new.
        while True:
            is_new = False
            for name, chunk in self._reader.batches():
                is_new = True
                batch = Batch(counts=self._reader.counts())
                batch.add(name, chunk)
                self.state.apply(batch)
                for event in chunk:
                    self._add_event(parse_attempt(name), event)
            if not is_new:
                return self

    def _add_event(self, attempt: int, event: events.AnyEvent) -> None:
        match event:
            case events.Memory() if event.step > 0:
                bytes_by_device = self._memory.setdefault((attempt, event.step), {})
                for device in event.devices:
                    # Observed owners give live bytes and no peak, but nothing better is known of such a step.
                    is_live = event.source == events.OWNERS_SEEN
                    bytes_by_device[device.device] = device.live_bytes if is_live else device.peak_bytes
            case events.Evaluation():
                self._evaluations[attempt, event.step] = event

    def _drop_retrained(self, values: Mapping[tuple[int, int], T]) -> dict[int, T]:
        """Return the values by step. `values` maps (attempt, step) to a value; an attempt's values for steps
        that a later attempt trained again are dropped."""
        return {
            step: value
            for (attempt, step), value in sorted(values.items(), key=lambda item: item[0])
            if (last := self.state.attempts[attempt].last_step) is None or step <= last
        }

    @property
    def steps(self) -> IntArray:
        return self.state.column("step").astype(np.int64)

    def column(self, name: str) -> FloatArray:
        """Return a column with one entry per step; run/step_table.py lists the column names."""
        return self.state.column(name)

    def memory(self) -> FloatArray:
        """Return the peak memory of each sampled step in bytes, with shape (steps, devices)."""
        steps, devices = self.steps, sorted(self.state.devices)
        peak_bytes = np.full((len(steps), len(devices)), np.nan)
        rows = {int(step): row for row, step in enumerate(steps)}
        columns = {device: column for column, device in enumerate(devices)}
        for step, by_device in self._drop_retrained(self._memory).items():
            for device, num_bytes in by_device.items():
                if step in rows and device in columns:
                    peak_bytes[rows[step], columns[device]] = num_bytes
        return peak_bytes

    def metrics(self) -> dict[str, MetricValues]:
        """Return, by name, the logged metrics and, for a run of a configuration, the held-out metrics.

        If several libraries logged metrics with the same name, each key includes the library.
        """
        metric_values = {}
        for label, metric in self.state.metrics.items():
            at, _, logged = metric.points()
            metric_values[label] = MetricValues(at.astype(np.int64), logged)
        by_step = self._drop_retrained(self._evaluations)
        evaluations = [by_step[step] for step in sorted(by_step)]
        for label, values in (
            ("held-out loss", [evaluation.loss for evaluation in evaluations]),
            ("held-out accuracy", [evaluation.accuracy for evaluation in evaluations]),
        ):
            if any(value is not None for value in values):
                steps = np.array([evaluation.step for evaluation in evaluations], dtype=np.int64)
                metric_values[label] = MetricValues(steps, np.array(values, dtype=np.float64))
        return metric_values
