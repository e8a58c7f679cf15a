"""Convert the steps that one rank reported (events.Steps) into columns, in less than a second for a million
lines.

A block contains consecutive steps from one rank's file. Columns are doubles, NaN where the rank reported
nothing. A step number is never used as the size of an allocation. `StepJoiner` joins the blocks of several
ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import chain
from operator import add, attrgetter, eq
from typing import Any, NamedTuple

import numpy as np

from rankdeck.events import Steps
from rankdeck.run.bounds import MAX_RANKS, MAX_STEP
from rankdeck.run.series import Floats

SHARES = ("loss_sum", "count", "lr", "samples", "step_s", "ended", "wait_s", "grad_norm")
LOSS_SUM, COUNT, LR, SAMPLES, STEP_S, ENDED, WAIT_S, GRAD_NORM = range(len(SHARES))
_OPTIONAL = (LOSS_SUM, COUNT, WAIT_S, GRAD_NORM)
_SHARE_GETTERS = tuple(map(attrgetter, SHARES))
_GET_FIRST = attrgetter("first")


class StepBlock(NamedTuple):
    """Consecutive steps of one rank; `values` has one row per name in SHARES and one column per step."""

    rank: int
    first: int
    values: Floats
    reports_loss: bool

    @property
    def last(self) -> int:
        return self.first + int(self.values.shape[1]) - 1


def to_blocks(steps: Sequence[Steps]) -> tuple[list[StepBlock], int]:
    """Convert one rank's lines, in file order, to blocks; also return the number of rejected lines."""
    if _are_consecutive(steps) and (single_block := _make_block(steps)) is not None:
        return [single_block], 0
    blocks = [block for line in steps if (block := _block_of_line(line)) is not None]
    return blocks, len(steps) - len(blocks)


def _are_consecutive(steps: Sequence[Steps]) -> bool:
    """Check for the common case: consecutive lines of one rank, either all with a loss or all without.

    This uses no Python loop, so that checking a million lines takes less than a second.
    """
    lengths = list(map(len, map(_SHARE_GETTERS[ENDED], steps)))
    firsts = list(map(_GET_FIRST, steps))
    return (
        min(lengths) > 0
        and all(map(eq, map(add, firsts, lengths), firsts[1:]))
        and len(set(map(type, map(_SHARE_GETTERS[LOSS_SUM], steps)))) == 1
        and firsts[0] >= 1
        and firsts[-1] <= MAX_STEP
        and 0 <= steps[0].rank < MAX_RANKS
    )


def _make_block(steps: Sequence[Steps]) -> StepBlock | None:
    """Convert lines to one block; None if columns differ in length or a number does not fit into a double."""
    reports_loss = steps[0].loss_sum is not None
    num_steps = steps[-1].first + len(steps[-1].ended) - steps[0].first
    values = np.empty((len(SHARES), num_steps))
    for row, get in enumerate(_SHARE_GETTERS):
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
    """Return one column of all lines; None (a loss that was not finite) becomes NaN."""
    try:
        # The fast path, which makes no list; it raises a TypeError for None.
        return np.fromiter(chain.from_iterable(map(get, steps)), np.float64)
    except TypeError:
        return np.array(list(chain.from_iterable(map(get, steps))), dtype=np.float64)


def _block_of_line(line: Steps) -> StepBlock | None:
    """Convert one line whose columns may differ in length; None if it is invalid."""
    num_steps = max(len(line.ended), len(line.step_s), len(line.samples))
    if not (1 <= line.first <= MAX_STEP and 0 <= line.rank < MAX_RANKS and num_steps):
        return None
    values = np.full((len(SHARES), num_steps), np.nan)
    for row, get in enumerate(_SHARE_GETTERS):
        column = (get(line) or ())[:num_steps]
        try:
            values[row, : len(column)] = np.array(column, dtype=np.float64)
        except OverflowError:
            return None
    return StepBlock(line.rank, line.first, values, line.loss_sum is not None)


# The steps of one attempt: each rank writes its own share, and they are joined into one row per step.
#
#     events.Steps of a rank -> StepBlock -> StepJoiner -> rows -> StepTable
#
# A step is complete once every rank has written it, and only then gets a row. The loss of a row is the sum of
# `loss_sum` over the sum of `count` of the ranks that report one: no rank ever sends a loss to another. Rows
# are (columns, steps) arrays of doubles with NaN for unknown values. A step number is never used as the size
# of an allocation: missing lines leave unknown rows only if few are missing. attempt.py has a joiner and a
# table per attempt; attempt_rows.py reads the tables.

_MAX_FILLED = 4096
_MAX_PENDING = 1 << 20
_MAX_JOIN = 1 << 16
_NUM_JOINED = ENDED + 1
"""Number of leading entries of SHARES that are joined into the rows of a configured run."""


class StepJoiner:
    """Joiner of the steps of one attempt's ranks. `world_size` may be set later; until then no step is
    joined.

    `restored` is the step after which the attempt continues, as the ranks reported or as their first steps
    imply; None before any rank has reported.
    """

    def __init__(self) -> None:
        self.world_size: int | None = None
        self.restored: int | None = None
        self.num_refused = 0
        self._blocks: dict[int, list[StepBlock]] = {}
        self._last: dict[int, int] = {}
        self._reports_loss: dict[int, bool] = {}
        self._next: int | None = None
        self._norms: list[tuple[Floats, Floats]] = []

    def restore(self, step: int) -> None:
        """Record that a rank continues after `step`; only the smallest such step of all ranks is stored.

        The rank either reported `step`, or the first step in its file is `step` + 1.
        """
        self.restored = step if self.restored is None else min(self.restored, step)

    def add(self, block: StepBlock) -> None:
        """Add a rank's next block. Repeated steps are rejected."""
        last = self._last.get(block.rank)
        if last is None:
            self.restore(block.first - 1)
            self._reports_loss[block.rank] = block.reports_loss
        elif block.first <= last:
            self.num_refused += 1
            block = block._replace(
                first=max(block.first, last + 1), values=block.values[:, max(0, last + 1 - block.first) :]
            )
            if not block.values.shape[1]:
                return
        waiting = self._blocks.setdefault(block.rank, [])
        waiting.append(block)
        self._last[block.rank] = block.last
        if len(waiting) > 1 and block.last - waiting[0].first > _MAX_PENDING:
            self._drop_surplus(waiting)

    def _drop_surplus(self, waiting: list[StepBlock]) -> None:
        """Drop a rank's oldest steps, so that they do not pile up if another rank never reports its steps."""
        surplus = sum(block.values.shape[1] for block in waiting) - _MAX_PENDING
        while len(waiting) > 1 and surplus > 0:
            surplus -= waiting.pop(0).values.shape[1]
            self.num_refused += 1

    def join(self) -> list[Floats]:
        """Return rows (COLUMNS, steps) of the newly complete steps in step order, each step only once."""
        if self.world_size is None or len(self._last) < self.world_size or self.restored is None:
            return []
        end = min(self._last.values())
        spans = self._written_ranges(end)
        # The first lines after the restored step may be lost too: fill them with unknown rows.
        if self._next is None and spans and 1 < spans[0][0] - self.restored <= _MAX_FILLED:
            spans[0] = (self.restored + 1, spans[0][1])
        rows = []
        for first, last in spans:
            first = first if self._next is None else max(first, self._next)
            if self._next is not None and 0 < first - self._next <= _MAX_FILLED:
                first = self._next  # lost lines leave unknown rows
            rows += [
                self._join(start, min(last, start + _MAX_JOIN - 1))
                for start in range(first, last + 1, _MAX_JOIN)
            ]
            self._next = last + 1
        for start, last in spans if rows else ():
            self._join_norms(start, last)
        for rank, blocks in self._blocks.items():
            self._blocks[rank] = [block for block in blocks if block.last > end]
        return rows

    def _join_norms(self, first: int, last: int) -> None:
        """Collect the gradient norms of the first rank that reports any; all ranks have the same norms."""
        for rank in sorted(self._last):
            num_before = len(self._norms)
            for block in self._blocks.get(rank, ()):
                inside = slice(max(0, first - block.first), max(0, last + 1 - block.first))
                norms = block.values[GRAD_NORM, inside]
                is_finite = np.isfinite(norms)
                if is_finite.any():
                    steps = block.first + inside.start + np.flatnonzero(is_finite)
                    self._norms.append((steps.astype(float), norms[is_finite]))
            if len(self._norms) > num_before:
                return

    def take_norms(self) -> list[tuple[Floats, Floats]]:
        """Return the (steps, gradient norms) collected since the last call, in step order."""
        norms, self._norms = self._norms, []
        return norms

    def _written_ranges(self, end: int) -> list[tuple[int, int]]:
        """Return the steps up to `end` that at least one rank reported, as ranges (first, last) without
        overlaps."""
        start = self._next or 1
        ranges = sorted(
            (max(block.first, start), min(block.last, end))
            for blocks in self._blocks.values()
            for block in blocks
        )
        spans: list[tuple[int, int]] = []
        for first, last in ranges:
            if first > last:
                continue
            if spans and first <= spans[-1][1] + 1:
                spans[-1] = (spans[-1][0], max(spans[-1][1], last))
            else:
                spans.append((first, last))
        return spans

    def _join(self, first: int, last: int) -> Floats:
        ranks = sorted(self._last)
        dense = [self._dense(rank, first, last) for rank in ranks]
        # A rank without loss (an inner pipeline stage) repeats samples that another rank counts.
        reporting = [values for rank, values in zip(ranks, dense, strict=True) if self._reports_loss[rank]]
        loss_sum, count, _, samples, _, _ = reduce(np.add, reporting or dense[:1])
        # With a single rank, `reduce` returns that rank's own array, which must not be overwritten.
        rows = reduce(np.fmax, dense).copy()  # step_s and ended are those of the slowest rank
        rows[0] = np.arange(first, last + 1)
        rows[1] = np.nan
        np.divide(loss_sum, count, out=rows[1], where=count > 0)
        rows[2], rows[3] = dense[0][LR], samples
        return rows

    def _dense(self, rank: int, first: int, last: int) -> Floats:
        """Return one rank's shares for the steps first..last, NaN where a line was lost."""
        blocks = self._blocks.get(rank, ())
        # The usual case needs no copy.
        if len(blocks) == 1 and blocks[0].first <= first and last <= blocks[0].last:
            return blocks[0].values[:_NUM_JOINED, first - blocks[0].first : last + 1 - blocks[0].first]
        dense = np.full((_NUM_JOINED, last - first + 1), np.nan)
        for block in blocks:
            start, end = max(block.first, first), min(block.last, last)
            if start <= end:
                dense[:, start - first : end - first + 1] = block.values[
                    :_NUM_JOINED, start - block.first : end - block.first + 1
                ]
        return dense
