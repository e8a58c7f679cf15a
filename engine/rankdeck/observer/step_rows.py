"""Stores observed steps as rows until they are written as `steps` events.

A row contains only what is cheap to record at the end of a step: times, and running totals, whose differences
between rows are the values of one step. Rows are written in step order; a row with pending GPU numbers waits.
"""

from __future__ import annotations

import functools
import math
import time
from collections import deque

from .readings import UnsampledScalar, poll_readings, read_value, sum_readings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

_MAX_STEPS_PER_LINE = 500
_NOT_SAMPLED = (None, None, None)
_LAST_STEP_AFTER_S = 0.25
"""Time without another step after which a step counts as the last one."""


class StepRows:
    """Rows of this process, passed from the training thread to the writer thread.

    A row is (end as time.perf_counter, end as Unix time, losses, learning rate, gradient norm, backward
    calls, total wait so far, total samples so far, whether the step is sampled).
    """

    def __init__(self, session: RankSession) -> None:
        self._session = session
        # append and popleft of a deque are atomic, so the two threads need no lock.
        self._rows: deque[Any] = deque()
        self.append = self._rows.append
        self._last_written_step: int | None = None
        self._last_end_s: float | None = None
        self._waited_s, self._samples = 0.0, 0
        self._steps_by_backwards: dict[int, int] = {}
        """Number of steps, keyed by the number of backward calls per step."""

    def write(self) -> None:
        """Write the rows that are ready, up to a few hundred steps per line."""
        if self._last_written_step is None:
            # All steps that this process has counted so far are still in the queue.
            self._last_written_step = self._session.first_step
        while True:
            lines: list[Any] = []
            while self._rows and len(lines) < _MAX_STEPS_PER_LINE:
                row = self._rows[0]
                # An optimizer may step in a sampled step on a loss of an earlier one.
                if row[2] and (not row[8] or UnsampledScalar in map(type, row[2])):
                    is_last = len(self._rows) == 1
                    age_s = time.perf_counter() - row[0]
                    if is_last and age_s < _LAST_STEP_AFTER_S and not self._session.is_ending:
                        break
                    losses = [
                        loss.read() if isinstance(loss, UnsampledScalar) else loss
                        for loss in row[2]
                        if is_last
                    ]
                    row = self._rows[0] = (*row[:2], losses, *row[3:8], True)
                values: Any = _NOT_SAMPLED
                if row[2] or row[3] is not None or row[4] is not None:
                    values = poll_readings(
                        functools.partial(_step_values, row), row[0], self._session.is_ending
                    )
                if values is None:
                    break
                self._rows.popleft()
                lines.append((row, values))
            if not lines:
                return
            self._emit(lines)

    def _emit(self, lines: list[Any]) -> None:
        assert self._last_written_step is not None
        steps_s, waits, samples = [], [], []
        for row, _ in lines:
            ended, _, _, _, _, _, waited_s, num_samples, _ = row
            before = self._session.active_since if self._last_end_s is None else self._last_end_s
            steps_s.append(round(ended - (ended if before is None else before), 7))
            waits.append(round(waited_s - self._waited_s, 7))
            new = (num_samples or 0) - self._samples
            samples.append(new or None)
            self._last_end_s, self._waited_s, self._samples = ended, waited_s, num_samples or 0
        losses = [values[0] for _, values in lines]
        norms = [values[2] for _, values in lines]
        if "not_finite" not in self._session.facts:
            for step, loss in enumerate(losses, self._last_written_step + 1):
                if loss is not None and not math.isfinite(loss):
                    self._session.record_facts(not_finite=step)
                    break
        with_loss = any(loss is not None for loss in losses)
        backwards = [row[5] for row, _ in lines]
        for count in backwards:
            self._steps_by_backwards[count] = self._steps_by_backwards.get(count, 0) + 1
        self._session.record_facts(
            accumulate=max(self._steps_by_backwards, key=lambda count: self._steps_by_backwards[count])
            or None
        )
        self._session.emit(
            "steps",
            first=self._last_written_step + 1,
            loss_sum=losses if with_loss else None,
            count=[1.0] * len(lines) if with_loss else None,
            lr=[values[1] for _, values in lines],
            samples=samples,
            step_s=steps_s,
            ended=[round(row[1], 6) for row, _ in lines],
            grad_norm=norms if any(norm is not None for norm in norms) else None,
            wait_s=waits,
            backwards=backwards,
        )
        self._last_written_step += len(lines)


def _step_values(row: Any) -> list[Any]:
    """Return loss, learning rate and gradient norm; a value may still be pending."""
    return [sum_readings(row[2]), read_value(row[3]), read_value(row[4])]
