"""The steps that one rank wrote (events.Steps), put into columns: a million lines must not cost a second.

A block is what follows each other in one rank's file. Columns are doubles, NaN where a rank told nothing. A
number of a step is never the size of an allocation. steps.py joins the blocks of several ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from operator import add, attrgetter, eq
from typing import Any, NamedTuple

import numpy as np

from rankdeck.events import Steps
from rankdeck.run.bounds import LARGEST_STEP, MOST_RANKS
from rankdeck.run.series import Floats

SHARES = ("loss_sum", "count", "lr", "samples", "step_s", "ended", "wait_s", "grad_norm")
LOSS_SUM, COUNT, LR, SAMPLES, STEP_S, ENDED, WAIT_S, GRAD_NORM = range(len(SHARES))
_OPTIONAL = (LOSS_SUM, COUNT, WAIT_S, GRAD_NORM)
_GET = tuple(map(attrgetter, SHARES))
_GET_FIRST = attrgetter("first")


class StepBlock(NamedTuple):
    """Consecutive steps of one rank; `values` is (shares, steps)."""

    rank: int
    first: int
    values: Floats
    reports_loss: bool

    @property
    def last(self) -> int:
        return self.first + int(self.values.shape[1]) - 1


def blocks_of(steps: Sequence[Steps]) -> tuple[list[StepBlock], int]:
    """The lines of one rank, in the order of its file, as blocks; and how many were refused."""
    if _are_consecutive(steps) and (whole := _block(steps)) is not None:
        return [whole], 0
    blocks = [block for line in steps if (block := _block_of_line(line)) is not None]
    return blocks, len(steps) - len(blocks)


def _are_consecutive(steps: Sequence[Steps]) -> bool:
    """The usual case, seen without a loop of ours, since a million lines must not cost a second: the lines of
    one rank follow each other, all with a loss or none."""
    lengths = list(map(len, map(_GET[ENDED], steps)))
    firsts = list(map(_GET_FIRST, steps))
    return (
        min(lengths) > 0
        and all(map(eq, map(add, firsts, lengths), firsts[1:]))
        and len(set(map(type, map(_GET[LOSS_SUM], steps)))) == 1
        and firsts[0] >= 1
        and firsts[-1] <= LARGEST_STEP
        and 0 <= steps[0].rank < MOST_RANKS
    )


def _block(steps: Sequence[Steps]) -> StepBlock | None:
    """The lines as one block; None where columns differ in length or a number is none that a double holds."""
    reports_loss = steps[0].loss_sum is not None
    num_steps = steps[-1].first + len(steps[-1].ended) - steps[0].first
    values = np.empty((len(SHARES), num_steps))
    for row, get in enumerate(_GET):
        if row in _OPTIONAL:
            kinds = set(map(type, map(get, steps)))
            if len(kinds) > 1:
                return None
            if kinds == {type(None)} or (row == COUNT and not reports_loss):
                values[row] = np.nan
                continue
        try:
            column = _column(steps, get)
        except (TypeError, OverflowError):
            return None
        if len(column) != num_steps:
            return None
        values[row] = column
    return StepBlock(steps[0].rank, steps[0].first, values, reports_loss)


def _column(steps: Sequence[Steps], get: Callable[[Steps], Any]) -> Floats:
    """One column of all lines; None (a loss that was not finite) becomes NaN."""
    try:
        return np.fromiter(chain.from_iterable(map(get, steps)), np.float64)
    except TypeError:
        return np.array(list(chain.from_iterable(map(get, steps))), dtype=np.float64)


def _block_of_line(line: Steps) -> StepBlock | None:
    """One line whose columns may differ in length; None where it makes no sense."""
    num_steps = max(len(line.ended), len(line.step_s), len(line.samples))
    if not (1 <= line.first <= LARGEST_STEP and 0 <= line.rank < MOST_RANKS and num_steps):
        return None
    values = np.full((len(SHARES), num_steps), np.nan)
    for row, get in enumerate(_GET):
        column = (get(line) or ())[:num_steps]
        try:
            values[row, : len(column)] = np.array(column, dtype=np.float64)
        except OverflowError:
            return None
    return StepBlock(line.rank, line.first, values, line.loss_sum is not None)
