"""How fast a run goes: means over stretches of it, from a mark every hundredth of its steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankdeck_app.state.step_merge import StepColumns

_NUM_MARKS = 100


@dataclass(frozen=True)
class _Mark:
    """Where the run stood at the end of a step; `num_samples` counts from its first step."""

    step: float
    ended: float
    num_samples: float


class Pace:
    """Marks of one run. `last_ended` is the Unix time of the newest step's end."""

    def __init__(self) -> None:
        self.last_ended: float | None = None
        self._num_samples = 0.0
        self._marks: list[_Mark] = []

    def add(self, columns: StepColumns, num_steps: int) -> None:
        """Takes complete steps of a run of `num_steps`; the newest step is always a mark."""
        totals = self._num_samples + np.cumsum(np.nan_to_num(columns.samples))
        self._num_samples = float(totals[-1])
        self.last_ended = float(columns.ended[-1])
        every = max(1, num_steps // _NUM_MARKS)
        if self._marks and self._marks[-1].step % every:
            self._marks.pop()
        newest = len(columns.step) - 1
        for index in sorted({*np.flatnonzero(columns.step % every == 0).tolist(), newest}):
            mark = _Mark(float(columns.step[index]), float(columns.ended[index]), float(totals[index]))
            self._marks.append(mark)

    def remaining_s(self, num_steps: int) -> float | None:
        """The steps that remain at the pace of the last quarter of those done, evaluations included."""
        stretch = self._stretch(0.75)
        if stretch is None:
            return None
        first, last = stretch
        return max(0.0, (num_steps - last.step) * (last.ended - first.ended) / (last.step - first.step))

    def samples_per_s(self) -> float | None:
        """The mean without the first 20 % of the steps, as `show` reports it."""
        stretch = self._stretch(0.2)
        if stretch is None:
            return None
        first, last = stretch
        return (last.num_samples - first.num_samples) / (last.ended - first.ended)

    def _stretch(self, share: float) -> tuple[_Mark, _Mark] | None:
        """The marks from `share` of the steps done to the newest; None while they do not span any time."""
        if len(self._marks) < 2:
            return None
        last = self._marks[-1]
        first = next((mark for mark in self._marks[:-1] if mark.step >= share * last.step), self._marks[-2])
        return (first, last) if last.ended > first.ended and last.step > first.step else None
