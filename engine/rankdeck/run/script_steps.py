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
from rankdeck.run.bounds import LARGEST_STEP, LONGEST_S, TOO_LARGE
from rankdeck.run.metrics import LoggedCurves
from rankdeck.run.series import Floats, Sliding
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

_HELD = 1 << 20
"""Steps that are held of all ranks together, and at least so many of each:"""
_LEAST_HELD = 1 << 12
_APART_S = 5.0
"""Ends of a step further apart than this, and than the step's own time, are not of one step."""
_LARGEST_JOIN = 1 << 16


class RankSteps:
    """What one rank wrote. `wait_s` of `timed_s` seconds went by in its loader, its first step left out."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.last = 0
        self.offset = 0
        """What is added to the numbers of a script that began to count anew."""
        self.ended = -np.inf
        self.first_ended: float | None = None
        """When its first step ended (Unix seconds)."""
        self.wait_s = 0.0
        self.timed_s = 0.0
        self._held = Sliding([(1, np.float64), (len(SHARES), np.float64)])

    @property
    def steps(self) -> Floats:
        """The numbers of the steps that are held."""
        numbers: Floats = self._held[0][0]
        return numbers

    @property
    def shares(self) -> Floats:
        return self._held[1]

    def append(self, first: int, values: Floats) -> None:
        num_new = values.shape[1]
        self._held.append(num_new, np.arange(first, first + num_new, dtype=np.float64), values)
        ended = values[ENDED][np.isfinite(values[ENDED])]
        self.ended = max(self.ended, float(ended.max(initial=-np.inf)))
        if self.first_ended is None and len(ended):
            self.first_ended = float(ended[0])
        timed = values[:, 0 if self.num_steps else 1 :]
        timed = timed[:, (timed[WAIT_S] >= 0) & (timed[STEP_S] > 0) & (timed[STEP_S] < LONGEST_S)]
        self.wait_s += float(np.minimum(timed[WAIT_S], timed[STEP_S]).sum())
        self.timed_s += float(timed[STEP_S].sum())
        self.num_steps += num_new
        self.last = first + num_new - 1

    def forget(self, num_held: int) -> None:
        """All but the newest `num_held` steps."""
        self._held.forget(max(0, len(self._held) - num_held))


class ScriptJoiner:
    """The ranks of one attempt, as steps.Joiner has those of a configured run."""

    def __init__(self) -> None:
        self.restored: int | None = None
        self.num_refused = 0
        self.ranks: dict[int, RankSteps] = {}
        self.alone: set[int] = set()
        self._leader: int | None = None
        self._next = 1
        self._late: list[tuple[int, int]] = []

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
        values = np.where(np.abs(block.values) < TOO_LARGE, block.values, np.nan)
        if rank.num_steps and first <= rank.last:
            if values[ENDED, 0] > rank.ended:
                rank.offset += rank.last + 1 - first
                first = rank.last + 1
            else:
                self.num_refused += 1
                values = values[:, rank.last + 1 - first :]
                first = rank.last + 1
        if first > LARGEST_STEP:
            self.num_refused += 1
        elif values.shape[1]:
            rank.append(first, values)
            self._late.append((block.rank, first))

    def take(self) -> list[Floats]:
        """Rows (SCRIPT_COLUMNS, steps) in order: of new steps, and before them of those that have changed."""
        most = max((rank.num_steps for rank in self.ranks.values()), default=0)
        if not most:
            return []
        leader = min(number for number, rank in self.ranks.items() if 2 * rank.num_steps >= most)
        lead = self.ranks[leader]
        changed = self._first_changed(leader) if leader == self._leader else lead.steps[0]
        begin = int(np.searchsorted(lead.steps, min(changed, self._next)))
        end = len(lead.steps)
        self._leader, self._next = leader, lead.last + 1
        self._late.clear()
        rows = [
            self._join(leader, slice(at, min(end, at + _LARGEST_JOIN)))
            for at in range(begin, end, _LARGEST_JOIN)
        ]
        for rank in self.ranks.values():
            rank.forget(max(_LEAST_HELD, _HELD // len(self.ranks)))
        return rows

    def _first_changed(self, leader: int) -> float:
        """The first step that was given and that another rank has told something of since."""
        lead = self.ranks[leader]
        given = slice(0, int(np.searchsorted(lead.steps, self._next)))
        changed = np.inf
        for number, first in self._late:
            if number in self._joined_with(leader) and first < min(self._next, changed):
                begin = int(np.searchsorted(lead.steps, first))
                part = slice(min(begin, given.stop), given.stop)
                shared = lead.steps[part][np.isfinite(self._matched(lead, number, part)[0])]
                changed = min(changed, float(shared.min(initial=np.inf)))
        return changed

    def _joined_with(self, leader: int) -> set[int]:
        """The other ranks that have a part in its steps."""
        return set() if leader in self.alone else self.ranks.keys() - self.alone - {leader}

    def _matched(self, lead: RankSteps, number: int, part: slice) -> tuple[Floats, Floats]:
        """(steps, shares) of another rank for the steps `part` of the leading one; NaN where it has no part
        in them."""
        rank, steps = self.ranks[number], lead.steps[part]
        at = np.minimum(np.searchsorted(rank.steps, steps), len(rank.steps) - 1)
        shares = rank.shares[:, at]
        apart_s = np.abs(shares[ENDED] - lead.shares[ENDED, part])
        is_apart = apart_s > np.fmax(_APART_S, lead.shares[STEP_S, part])
        is_shared = (rank.steps[at] == steps) & ~is_apart
        return np.where(is_shared, steps, np.nan), np.where(is_shared, shares, np.nan)

    def _join(self, leader: int, part: slice) -> Floats:
        lead = self.ranks[leader]
        sums, counts, samples, has_samples = np.zeros((4, part.stop - part.start))
        for number in sorted({leader} | self._joined_with(leader)):
            shares = lead.shares[:, part] if number == leader else self._matched(lead, number, part)[1]
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

_MOST_COLLECTIVES = 100
_TOO_MANY = 1 << 62
Number = TypeVar("Number", int, float)


@dataclass
class CollectiveTotals:
    """Of one rank, by the name of the collective: calls, bytes that it passed, seconds that they took."""

    calls: dict[str, int] = field(default_factory=dict)
    num_bytes: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, event: events.Collectives) -> None:
        _add(self.calls, event.calls)
        _add(self.num_bytes, event.num_bytes)
        _add(self.seconds, event.seconds)


def _add(totals: dict[str, Number], told: Mapping[str, Number]) -> None:
    for name, value in told.items():
        if not 0 <= value < _TOO_MANY:
            continue
        if name in totals:
            totals[name] += value
        elif len(totals) < _MOST_COLLECTIVES:
            totals[name] = value


@dataclass
class ScriptTold:
    """All by rank, the newest that each said."""

    ranks: dict[int, events.RankStarted] = field(default_factory=dict)
    seen: dict[int, events.Observed] = field(default_factory=dict)
    collectives: dict[int, CollectiveTotals] = field(default_factory=dict)
    metrics: LoggedCurves = field(default_factory=LoggedCurves)

    def add_collectives(self, event: events.Collectives) -> None:
        self.collectives.setdefault(event.rank, CollectiveTotals()).add(event)
