"""A run's events as numpy columns. What is not known is NaN.

Events are read on from where they were each time, so that looking at a running run costs what is new.
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
    """The values that were logged under one name, and the steps at which they were."""

    steps: IntArray
    values: FloatArray


class RunArrays:
    """Everything that a run's events told so far; `refresh` reads what is new."""

    def __init__(self, run: RunDir) -> None:
        self.state = RunState(max_rows=None, curves=False)
        self._reader = EventReader(run)
        # By attempt and step: what a later attempt trains again is history.
        self._memory: dict[tuple[int, int], dict[int, int]] = {}
        self._evaluations: dict[tuple[int, int], events.Evaluation] = {}

    def refresh(self) -> RunArrays:
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
                known = self._memory.setdefault((attempt, event.step), {})
                for device in event.devices:
                    # Owners that were seen are no peak, and the most that is known of such a step.
                    is_live = event.source == events.OWNERS_SEEN
                    known[device.device] = device.live_bytes if is_live else device.peak_bytes
            case events.Evaluation():
                self._evaluations[attempt, event.step] = event

    def _drop_retrained(self, told: Mapping[tuple[int, int], T]) -> dict[int, T]:
        """By step, without what later attempts trained again."""
        return {
            step: value
            for (attempt, step), value in sorted(told.items(), key=lambda item: item[0])
            if (last := self.state.attempts[attempt].last_step) is None or step <= last
        }

    @property
    def steps(self) -> IntArray:
        return self.state.column("step").astype(np.int64)

    def column(self, name: str) -> FloatArray:
        """A column of every step (run/step_table.py names them)."""
        return self.state.column(name)

    def memory(self) -> FloatArray:
        """Bytes (steps, devices) at the peak of each step that was sampled."""
        steps, devices = self.steps, sorted(self.state.devices)
        found = np.full((len(steps), len(devices)), np.nan)
        rows = {int(step): row for row, step in enumerate(steps)}
        places = {device: place for place, device in enumerate(devices)}
        for step, by_device in self._drop_retrained(self._memory).items():
            for device, num_bytes in by_device.items():
                if step in rows and device in places:
                    found[rows[step], places[device]] = num_bytes
        return found

    def metrics(self) -> dict[str, MetricValues]:
        """By name; with the library behind it where several logged under the same one. Of a configured run
        its evaluations."""
        found = {}
        for label, metric in self.state.metrics.items():
            at, _, logged = metric.points()
            found[label] = MetricValues(at.astype(np.int64), logged)
        by_step = self._drop_retrained(self._evaluations)
        told = [by_step[step] for step in sorted(by_step)]
        for label, values in (
            ("held-out loss", [one.loss for one in told]),
            ("held-out accuracy", [one.accuracy for one in told]),
        ):
            if any(value is not None for value in values):
                steps = np.array([one.step for one in told], dtype=np.int64)
                found[label] = MetricValues(steps, np.array(values, dtype=np.float64))
        return found
