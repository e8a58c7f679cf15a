"""The steps of one attempt at a person's own script, whose ranks need not go in step.

Nobody knows beforehand how many ranks step an optimizer, and a rank may take more steps than another. So a
step is there once the leading rank has it: the lowest rank that has at least half as many steps as the one
with the most. Step, time, learning rate and waiting are the leading rank's. The loss of a step is the mean of
the ranks that told one for it, the samples are their sum, and a rank is part of a step only where it ended it
at about the same time: ranks that train each at their own pace are not mixed, and neither is a process that
trains by itself beside the run's ranks (`alone`).

What another rank tells late changes rows that were given already: `take` then begins with the first of them.
Memory is bounded: a rank's newest steps are held for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from rankdeck import events
from rankdeck.run.bounds import MAX_DURATION_S, MAX_STEP, MAX_VALUE
from rankdeck.run.metrics import LoggedMetrics
from rankdeck.run.series import ColumnBuffer, Floats
from rankdeck.run.step_blocks import (
    COUNT,
    ENDED,
    GRAD_NORM,
    LOSS_SUM,
    LR,
    SAMPLES,
    SHARES,
    STEP_S,
    WAIT_S,
    StepBlock,
)
from rankdeck.run.step_table import SCRIPT_COLUMNS

_MAX_ROWS = 1 << 20
"""Steps that are held of all ranks together, and at least so many of each:"""
_MIN_ROWS = 1 << 12
_MAX_GAP_S = 5.0
"""Ends of a step further apart than this, and than the step's own time, are not of one step."""
_MAX_JOIN = 1 << 16


class RankSteps:
    """What one rank wrote. `wait_s` of `timed_s` seconds went by in its loader, its first step left out."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.last_step = 0
        self.offset = 0
        """What is added to the numbers of a script that began to count anew."""
        self.ended = -np.inf
        self.first_ended: float | None = None
        """When its first step ended (Unix seconds)."""
        self.wait_s = 0.0
        self.timed_s = 0.0
        self._rows = ColumnBuffer([(1, np.float64), (len(SHARES), np.float64)])

    @property
    def steps(self) -> Floats:
        """The numbers of the steps that are held."""
        numbers: Floats = self._rows[0][0]
        return numbers

    @property
    def shares(self) -> Floats:
        return self._rows[1]

    def append(self, first: int, values: Floats) -> None:
        num_new = values.shape[1]
        self._rows.append(num_new, np.arange(first, first + num_new, dtype=np.float64), values)
        ended = values[ENDED][np.isfinite(values[ENDED])]
        self.ended = max(self.ended, float(ended.max(initial=-np.inf)))
        if self.first_ended is None and len(ended):
            self.first_ended = float(ended[0])
        timed = values[:, 0 if self.num_steps else 1 :]
        timed = timed[:, (timed[WAIT_S] >= 0) & (timed[STEP_S] > 0) & (timed[STEP_S] < MAX_DURATION_S)]
        self.wait_s += float(np.minimum(timed[WAIT_S], timed[STEP_S]).sum())
        self.timed_s += float(timed[STEP_S].sum())
        self.num_steps += num_new
        self.last_step = first + num_new - 1

    def keep_newest(self, num_held: int) -> None:
        """All but the newest `num_held` steps."""
        self._rows.forget(max(0, len(self._rows) - num_held))


class ScriptStepJoiner:
    """The ranks of one attempt, as steps.Joiner has those of a configured run."""

    def __init__(self) -> None:
        self.restored: int | None = None
        self.num_refused = 0
        self.ranks: dict[int, RankSteps] = {}
        self.standalone: set[int] = set()
        self._leader: int | None = None
        self._next = 1
        self._late_steps: list[tuple[int, int]] = []

    def restore(self, step: int) -> None:
        """A rank said, or its first line shows, that it goes on after `step`; the least of all counts."""
        self.restored = step if self.restored is None else min(self.restored, step)

    def add(self, block: StepBlock) -> None:
        """The next block of a rank. What it repeats of its own steps is refused; a script that began to count
        anew goes on counting."""
        rank = self.ranks.get(block.rank)
        if rank is None:
            rank = self.ranks[block.rank] = RankSteps()
            self.restore(block.first - 1)
        first = block.first + rank.offset
        values = np.where(np.abs(block.values) < MAX_VALUE, block.values, np.nan)
        if rank.num_steps and first <= rank.last_step:
            if values[ENDED, 0] > rank.ended:
                rank.offset += rank.last_step + 1 - first
                first = rank.last_step + 1
            else:
                self.num_refused += 1
                values = values[:, rank.last_step + 1 - first :]
                first = rank.last_step + 1
        if first > MAX_STEP:
            self.num_refused += 1
        elif values.shape[1]:
            rank.append(first, values)
            self._late_steps.append((block.rank, first))

    def join(self) -> list[Floats]:
        """Rows (SCRIPT_COLUMNS, steps) in order: of new steps, and before them of those that have changed."""
        most = max((rank.num_steps for rank in self.ranks.values()), default=0)
        if not most:
            return []
        leader = min(number for number, rank in self.ranks.items() if 2 * rank.num_steps >= most)
        lead = self.ranks[leader]
        changed = self._first_changed(leader) if leader == self._leader else lead.steps[0]
        begin = int(np.searchsorted(lead.steps, min(changed, self._next)))
        end = len(lead.steps)
        self._leader, self._next = leader, lead.last_step + 1
        self._late_steps.clear()
        rows = [
            self._join(leader, slice(at, min(end, at + _MAX_JOIN))) for at in range(begin, end, _MAX_JOIN)
        ]
        for rank in self.ranks.values():
            rank.keep_newest(max(_MIN_ROWS, _MAX_ROWS // len(self.ranks)))
        return rows

    def _first_changed(self, leader: int) -> float:
        """The first step that was given and that another rank has told something of since."""
        lead = self.ranks[leader]
        given = slice(0, int(np.searchsorted(lead.steps, self._next)))
        changed = np.inf
        for number, first in self._late_steps:
            if number in self._ranks_joined_with(leader) and first < min(self._next, changed):
                begin = int(np.searchsorted(lead.steps, first))
                part = slice(min(begin, given.stop), given.stop)
                shared = lead.steps[part][np.isfinite(self._match(lead, number, part)[0])]
                changed = min(changed, float(shared.min(initial=np.inf)))
        return changed

    def _ranks_joined_with(self, leader: int) -> set[int]:
        """The other ranks that have a part in its steps."""
        return set() if leader in self.standalone else self.ranks.keys() - self.standalone - {leader}

    def _match(self, lead: RankSteps, number: int, part: slice) -> tuple[Floats, Floats]:
        """(steps, shares) of another rank for the steps `part` of the leading one; NaN where it has no part
        in them."""
        rank, steps = self.ranks[number], lead.steps[part]
        at = np.minimum(np.searchsorted(rank.steps, steps), len(rank.steps) - 1)
        shares = rank.shares[:, at]
        apart_s = np.abs(shares[ENDED] - lead.shares[ENDED, part])
        is_apart = apart_s > np.fmax(_MAX_GAP_S, lead.shares[STEP_S, part])
        is_shared = (rank.steps[at] == steps) & ~is_apart
        return np.where(is_shared, steps, np.nan), np.where(is_shared, shares, np.nan)

    def _join(self, leader: int, part: slice) -> Floats:
        lead = self.ranks[leader]
        sums, counts, samples, has_samples = np.zeros((4, part.stop - part.start))
        for number in sorted({leader} | self._ranks_joined_with(leader)):
            shares = lead.shares[:, part] if number == leader else self._match(lead, number, part)[1]
            is_known = np.isfinite(shares[LOSS_SUM])
            sums += np.where(is_known, shares[LOSS_SUM], 0.0)
            counts += np.where(is_known, np.where(np.isfinite(shares[COUNT]), shares[COUNT], 1.0), 0.0)
            has_samples += np.isfinite(shares[SAMPLES])
            samples += np.nan_to_num(shares[SAMPLES])
        rows = np.full((len(SCRIPT_COLUMNS), len(sums)), np.nan)
        rows[0] = lead.steps[part]
        with np.errstate(over="ignore"):
            np.divide(sums, counts, out=rows[1], where=counts > 0)
        rows[1] = np.where(np.isfinite(rows[1]), rows[1], np.nan)
        rows[2] = lead.shares[LR, part]
        rows[3] = np.where(has_samples > 0, samples, np.nan)
        rows[4:] = lead.shares[[STEP_S, ENDED, WAIT_S, GRAD_NORM], part]
        return rows


# What one attempt at a person's own script told besides steps, memory and readings: what was seen of each
# rank, what the script logged, which collectives it called.

_MAX_COLLECTIVES = 100
_INT_LIMIT = 1 << 62
Number = TypeVar("Number", int, float)


@dataclass
class CollectiveTotals:
    """Of one rank, by the name of the collective: calls, bytes that it passed, seconds that they took."""

    calls: dict[str, int] = field(default_factory=dict)
    num_bytes: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, event: events.Collectives) -> None:
        _add_capped(self.calls, event.calls)
        _add_capped(self.num_bytes, event.num_bytes)
        _add_capped(self.seconds, event.seconds)


def _add_capped(totals: dict[str, Number], told: Mapping[str, Number]) -> None:
    for name, value in told.items():
        if not 0 <= value < _INT_LIMIT:
            continue
        if name in totals:
            totals[name] += value
        elif len(totals) < _MAX_COLLECTIVES:
            totals[name] = value


@dataclass
class ScriptReports:
    """All by rank, the newest that each said."""

    ranks: dict[int, events.RankStarted] = field(default_factory=dict)
    observations: dict[int, events.Observed] = field(default_factory=dict)
    collectives: dict[int, CollectiveTotals] = field(default_factory=dict)
    metrics: LoggedMetrics = field(default_factory=LoggedMetrics)

    def add_collectives(self, event: events.Collectives) -> None:
        self.collectives.setdefault(event.rank, CollectiveTotals()).add(event)
