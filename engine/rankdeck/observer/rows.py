"""The steps that were seen, as rows, until they are lines of `steps` events.

A row holds what cost nothing to note at the end of a step: times, and totals so far, of which the differences
belong to the step. Rows are written in order; one whose numbers are still on their way from a GPU waits.
"""

from __future__ import annotations

import functools
import math
import time
from collections import deque

from .readings import Unread, resolved, settled, total

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

_MOST_A_LINE = 500
_NOT_SAMPLED = (None, None, None)
_LAST_AFTER_S = 0.25
"""A step that no other follows for as long as this is the last one, as far as is known."""


class Rows:
    """Rows of this process, from the training thread to the writing one.

    A row: (ended, ended as Unix time, losses, learning rate, gradient norm, backwards, waited so far, samples
    so far).
    """

    def __init__(self, session: RankSession) -> None:
        self._session = session
        self._rows: deque[Any] = deque()
        self.append = self._rows.append
        self._written: int | None = None
        self._ended: float | None = None
        self._waited_s, self._samples = 0.0, 0
        self._backwards: dict[int, int] = {}
        """How many steps had so many."""

    def write(self) -> None:
        """Write what is ready, some hundred steps to a line."""
        if self._written is None:
            # What this process has counted so far is what is here.
            self._written = self._session.first_step
        while True:
            lines: list[Any] = []
            while self._rows and len(lines) < _MOST_A_LINE:
                row = self._rows[0]
                if any(isinstance(loss, Unread) for loss in row[2]):
                    is_last = len(self._rows) == 1
                    age_s = time.perf_counter() - row[0]
                    if is_last and age_s < _LAST_AFTER_S and not self._session.ending:
                        break
                    losses = [loss.read() if isinstance(loss, Unread) else loss for loss in row[2] if is_last]
                    row = self._rows[0] = (*row[:2], losses, *row[3:])
                values: Any = _NOT_SAMPLED
                if row[2] or row[3] is not None or row[4] is not None:
                    values = settled(functools.partial(_numbers, row), row[0], self._session.ending)
                if values is None:
                    break
                self._rows.popleft()
                lines.append((row, values))
            if not lines:
                return
            self._emit(lines)

    def _emit(self, lines: list[Any]) -> None:
        assert self._written is not None
        steps_s, waits, samples = [], [], []
        for row, _ in lines:
            ended, _, _, _, _, _, waited_s, num_samples = row
            before = self._session.active_since if self._ended is None else self._ended
            steps_s.append(round(ended - (ended if before is None else before), 7))
            waits.append(round(waited_s - self._waited_s, 7))
            new = (num_samples or 0) - self._samples
            samples.append(new or None)
            self._ended, self._waited_s, self._samples = ended, waited_s, num_samples or 0
        losses = [values[0] for _, values in lines]
        norms = [values[2] for _, values in lines]
        if "not_finite" not in self._session.seen:
            for step, loss in enumerate(losses, self._written + 1):
                if loss is not None and not math.isfinite(loss):
                    self._session.see(not_finite=step)
                    break
        with_loss = any(loss is not None for loss in losses)
        backwards = [row[5] for row, _ in lines]
        for count in backwards:
            self._backwards[count] = self._backwards.get(count, 0) + 1
        self._session.see(accumulate=max(self._backwards, key=lambda count: self._backwards[count]) or None)
        self._session.emit(
            "steps",
            first=self._written + 1,
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
        self._written += len(lines)


def _numbers(row: Any) -> list[Any]:
    """Loss, learning rate and gradient norm, as far as they are there."""
    return [total(row[2]), resolved(row[3]), resolved(row[4])]
