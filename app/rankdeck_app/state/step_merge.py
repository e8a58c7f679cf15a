"""Steps of several ranks, which arrive in columns and at their own times, joined into one row per step.

A step is complete when every rank has reported it. Its loss is the sum of `loss_sum` over the sum of `count`
of the ranks that report one: no rank ever sends a loss to another. run_tail.py feeds it, in its thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from rankdeck.events import Steps
from rankdeck_app.state.series import Floats

_COLUMNS = ("loss_sum", "count", "samples", "step_s", "ended")
_LOSS_SUM, _COUNT, _SAMPLES, _STEP_S, _ENDED = range(len(_COLUMNS))
_ENDED_OF, _LOSS_SUM_OF = attrgetter("ended"), attrgetter("loss_sum")


class StepColumns(NamedTuple):
    """Complete steps in order; NaN is unknown. `ended` is Unix time, `lr` is that of the newest."""

    step: Floats
    loss: Floats
    lr: float | None
    samples: Floats
    step_s: Floats
    ended: Floats


@dataclass(frozen=True)
class _Block:
    """Consecutive steps of one rank; `values` is (columns, steps)."""

    first: int
    values: Floats
    reports_loss: bool
    lr: float | None

    @property
    def last(self) -> int:
        return self.first + int(self.values.shape[1]) - 1


@dataclass
class _Attempt:
    """What the ranks of one attempt reported and nobody has taken yet."""

    world_size: int | None = None
    blocks: dict[int, list[_Block]] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)

    def complete(self, following: int) -> tuple[int, int] | None:
        """The first and the last step, from `following` on, that every rank has reported."""
        if self.world_size is None or len(self.last) < self.world_size:
            return None
        firsts = [blocks[0].first for blocks in self.blocks.values() if blocks]
        if not firsts:
            return None
        first, last = max(following, min(firsts)), min(self.last.values())
        return (first, last) if first <= last else None


class StepMerger:
    """Joins the ranks of one run. Steps that a restart repeats are taken once, as they were seen first."""

    def __init__(self) -> None:
        self._attempts: dict[int, _Attempt] = {}
        self._next = 0

    def begin_attempt(self, attempt: int, world_size: int) -> None:
        self._attempts.setdefault(attempt, _Attempt()).world_size = world_size

    def add(self, attempt: int, steps: Sequence[Steps]) -> None:
        """Lines of one rank, in the order of its file."""
        state = self._attempts.setdefault(attempt, _Attempt())
        blocks = state.blocks.setdefault(steps[0].rank, [])
        for part in _runs_of_steps(steps):
            block = _block(part)
            blocks.append(block)
            state.last[steps[0].rank] = block.last

    def take(self, caught_up: bool) -> StepColumns | None:
        """The steps that are complete by now, each once; None when there is none.

        `caught_up` says that all files were read to their ends: only then is an attempt that has a follower
        known to be over, and the follower's steps come after all of its own.
        """
        if caught_up:
            for attempt in sorted(self._attempts)[:-1]:
                if self._attempts[attempt].complete(self._next) is None:
                    del self._attempts[attempt]
        if not self._attempts:
            return None
        state = self._attempts[min(self._attempts)]
        span = state.complete(self._next)
        if span is None:
            return None
        self._next = span[1] + 1
        return _joined(state.blocks, *span)


def _joined(blocks: dict[int, list[_Block]], first: int, last: int) -> StepColumns:
    loss_sum, count, samples = (np.zeros(last - first + 1) for _ in range(3))
    dense: list[Floats] = []
    # Before the blocks are cut; that it may be of a step that is not complete yet does not matter.
    lr = next((known[-1].lr for known in blocks.values() if known and known[-1].lr is not None), None)
    for rank in sorted(blocks):
        values, reports_loss = _cut(blocks, rank, first, last)
        dense.append(values)
        if reports_loss:
            loss_sum += values[_LOSS_SUM]
            count += values[_COUNT]
        samples += np.nan_to_num(values[_SAMPLES])
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = np.where(count > 0, loss_sum / count, np.nan)
    return StepColumns(
        step=np.arange(first, last + 1, dtype=np.float64),
        loss=loss,
        lr=lr,
        samples=samples,
        step_s=np.fmax.reduce([values[_STEP_S] for values in dense]),
        ended=np.fmax.reduce([values[_ENDED] for values in dense]),
    )


def _cut(blocks: dict[int, list[_Block]], rank: int, first: int, last: int) -> tuple[Floats, bool]:
    """Columns of one rank for the steps first..last, NaN where a line was lost; what comes later stays."""
    dense = np.full((len(_COLUMNS), last - first + 1), np.nan)
    reports_loss = False
    kept = []
    for block in blocks[rank]:
        begin, end = max(block.first, first), min(block.last, last)
        if begin <= end:
            part = block.values[:, begin - block.first : end - block.first + 1]
            dense[:, begin - first : end - first + 1] = part
            reports_loss |= block.reports_loss
        if block.last > last:
            kept.append(block)
    blocks[rank] = kept
    return dense, reports_loss


def _runs_of_steps(steps: Sequence[Steps]) -> list[Sequence[Steps]]:
    """Lines that follow each other without a hole and agree on whether there is a loss."""
    if _is_one_run(steps):
        return [steps]
    runs: list[list[Steps]] = []
    expected: tuple[int, bool] | None = None
    for line in steps:
        num_steps = len(line.ended)
        if expected != (line.first, line.loss_sum is None):
            runs.append([])
        runs[-1].append(line)
        expected = (line.first + num_steps, line.loss_sum is None)
    return [run for run in runs if any(line.ended for line in run)]


def _is_one_run(steps: Sequence[Steps]) -> bool:
    """The usual case, told without a loop of ours: a million lines must not cost a second."""
    num_steps = sum(map(len, map(_ENDED_OF, steps)))
    last = steps[-1]
    losses = set(map(type, map(_LOSS_SUM_OF, steps)))
    return num_steps > 0 and last.first + len(last.ended) - steps[0].first == num_steps and len(losses) == 1


def _block(run: Sequence[Steps]) -> _Block:
    num_steps = sum(map(len, map(_ENDED_OF, run)))
    reports_loss = run[0].loss_sum is not None
    values = np.full((len(_COLUMNS), num_steps), np.nan)
    for row, name in enumerate(_COLUMNS):
        if row in (_LOSS_SUM, _COUNT) and not reports_loss:
            continue
        column = _column(run, name)
        if len(column) == num_steps:
            values[row] = column
    return _Block(run[0].first, values, reports_loss, run[-1].lr[-1] if run[-1].lr else None)


def _column(run: Sequence[Steps], name: str) -> Floats:
    """One column of all lines; None (a loss that was not finite) becomes NaN."""
    parts = map(attrgetter(name), run)
    try:
        return np.fromiter(chain.from_iterable(parts), dtype=np.float64)
    except TypeError:
        return np.array(list(chain.from_iterable(map(attrgetter(name), run))), dtype=np.float64)
