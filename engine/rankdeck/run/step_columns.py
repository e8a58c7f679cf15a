"""The steps of a run as columns: what the ranks wrote each for itself, joined into one row per step.

A rank writes its own share (events.Steps); a step is complete once every rank has written it, and only then
gets a row here. Columns are arrays of doubles with NaN for what is not known, so that a run of a million
steps stays small and is folded in as it comes. report.py reads them next.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from typing import NamedTuple

from rankdeck.events import Steps

NAN = math.nan


class Row(NamedTuple):
    """One complete step. NaN is unknown; `ended` is Unix time, `step_s` the time since the step before."""

    step: int
    loss: float
    lr: float
    samples: float
    step_s: float
    ended: float


class _RankColumns:
    """What one rank wrote; entry i is step i + 1."""

    def __init__(self) -> None:
        self.reports = False
        self.loss_sum = array("d")
        self.count = array("d")
        self.lr = array("d")
        self.samples = array("d")
        self.step_s = array("d")
        self.ended = array("d")

    def __len__(self) -> int:
        return len(self.ended)

    def _all(self) -> tuple[array[float], ...]:
        return (self.loss_sum, self.count, self.lr, self.samples, self.step_s, self.ended)

    def truncate(self, num_steps: int) -> None:
        for column in self._all():
            del column[num_steps:]

    def append(self, steps: Steps) -> None:
        num_missing = steps.first - 1 - len(self)
        for column in self._all():
            column.extend([NAN] * num_missing)
        num_steps = max(len(steps.ended), len(steps.step_s), len(steps.samples))
        self.reports = self.reports or steps.loss_sum is not None
        given = (steps.loss_sum, steps.count, steps.lr, steps.samples, steps.step_s, steps.ended)
        for column, values in zip(self._all(), given, strict=True):
            _extend(column, values, num_steps)


def _extend(column: array[float], values: Iterable[float | None] | None, num_steps: int) -> None:
    before = len(column)
    column.extend(NAN if value is None else value for value in values or ())
    column.extend([NAN] * (num_steps - (len(column) - before)))


class StepColumns:
    """Complete steps, step 1 first. `world_size` may be set late: until then rows wait.

    `breaks` are the indices of rows before which an attempt began: the time from the row above is no step's.
    The last may wait for its row, until every rank has told of it.
    """

    def __init__(self) -> None:
        self.world_size: int | None = None
        self.loss = array("d")
        self.lr = array("d")
        self.samples = array("d")
        self.step_s = array("d")
        self.ended = array("d")
        self.breaks: list[int] = []
        self._ranks: dict[int, _RankColumns] = {}
        self._begins = False

    def begin_attempt(self, world_size: int) -> None:
        """Ranks begin again, perhaps other ones. Rows stay until a rank tells of its first step."""
        self.world_size = world_size
        self._ranks = {}
        self._begins = True

    def elapsed_s(self, start: int) -> float:
        """From the end of the row before `start` to the last row's end, without the time between attempts."""
        gaps_s = sum(
            self.ended[index] - self.ended[index - 1] - max(0.0, self.step_s[index])
            for index in self.breaks
            if start <= index < len(self)
        )
        return self.ended[-1] - self.ended[start - 1] - gaps_s

    def __len__(self) -> int:
        return len(self.ended)

    def row(self, index: int) -> Row:
        """The row of step `index + 1`; negative indices count from the last."""
        step = index + 1 if index >= 0 else len(self) + index + 1
        return Row(
            step,
            self.loss[index],
            self.lr[index],
            self.samples[index],
            self.step_s[index],
            self.ended[index],
        )

    def rows(self) -> Iterable[Row]:
        return map(self.row, range(len(self)))

    def add(self, steps: Steps) -> bool:
        """Fold one event in. The steps of a new attempt replace those that an earlier one told: True then."""
        rank = self._ranks.setdefault(steps.rank, _RankColumns())
        begins = self._begins or steps.first <= len(rank)
        if begins:
            self._begins = False
            self._forget_from(steps.first)
            self.breaks = [*(index for index in self.breaks if index < len(self)), steps.first - 1]
        rank.append(steps)
        self.join()
        return begins

    def join(self) -> None:
        """Make rows of the steps that every rank has written by now."""
        if self.world_size is None or len(self._ranks) < self.world_size:
            return
        ranks = [self._ranks[rank] for rank in sorted(self._ranks)]
        start, end = len(self), min(map(len, ranks))
        if end <= start:
            return
        # A rank without loss (an inner stage of a pipeline) repeats samples that another one counts.
        reporting = [rank for rank in ranks if rank.reports] or ranks[:1]
        span = slice(start, end)
        counts = _sums([rank.count[span] for rank in reporting])
        sums = _sums([rank.loss_sum[span] for rank in reporting])
        self.loss.extend(
            total / count if count > 0 else NAN for total, count in zip(sums, counts, strict=True)
        )
        self.samples.extend(_sums([rank.samples[span] for rank in reporting]))
        self.lr.extend(ranks[0].lr[span])
        self.step_s.extend(_largest([rank.step_s[span] for rank in ranks]))
        self.ended.extend(_largest([rank.ended[span] for rank in ranks]))

    def _forget_from(self, step: int) -> None:
        for rank in self._ranks.values():
            rank.truncate(step - 1)
        for column in (self.loss, self.lr, self.samples, self.step_s, self.ended):
            del column[step - 1 :]


def _sums(columns: list[array[float]]) -> Iterable[float]:
    return columns[0] if len(columns) == 1 else map(sum, zip(*columns, strict=True))


def _largest(columns: list[array[float]]) -> Iterable[float]:
    """The largest of each row that is known."""
    if len(columns) == 1:
        return columns[0]
    return (
        max((value for value in row if value == value), default=NAN) for row in zip(*columns, strict=True)
    )
