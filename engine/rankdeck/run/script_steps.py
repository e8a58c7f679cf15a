"""Join the steps of one attempt of a user script, whose ranks need not run in lockstep.

The number of ranks that step an optimizer is not known in advance, and some may take more steps than others.
So a step gets a row as soon as the leading rank has taken the step. The leading rank is the lowest rank with
at least half as many steps as the rank with the most steps. A row's step, time, learning rate and wait are
those of the leading rank; its loss is the mean, and its sample count the sum, over the ranks that reported
them. A rank takes part in a step only if it ended that step at about the same time as the leading rank. So a
rank that trains at its own pace takes no part, and neither does a process that trains on its own alongside
the run's ranks (`standalone`).

A late report from another rank changes rows that were already returned: `join` then starts with the first
changed row. Memory is bounded, because only each rank's newest steps are stored for such changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from rankdeck import events
from rankdeck.run.bounds import MAX_DURATION_S, MAX_STEP, MAX_VALUE
from rankdeck.run.collective_counts import CollectiveComparison
from rankdeck.run.metrics import LoggedMetrics
from rankdeck.run.script_weights import ScriptWeights
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
"""Maximum number of steps stored for all ranks together, but at least `_MIN_ROWS` for each rank."""
_MIN_ROWS = 1 << 12
_MAX_GAP_S = 5.0
"""Maximum gap between two ranks' end times of a shared step. If the step took longer than this, its
duration is the maximum."""
_MAX_JOIN = 1 << 16


class RankSteps:
    """Steps that one rank reported.

    Of `timed_s` seconds, the rank waited `wait_s` for its data loader; the first step is excluded from both.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self.last_step = 0
        self.offset = 0
        """Number that is added to the step numbers after the script has restarted its count."""
        self.ended = -np.inf
        self.first_ended: float | None = None
        """Time at which the rank's first step ended (Unix seconds)."""
        self.wait_s = 0.0
        self.timed_s = 0.0
        self._rows = ColumnBuffer([(1, np.float64), (len(SHARES), np.float64)])

    @property
    def steps(self) -> Floats:
        """Step numbers of the stored steps."""
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
        """Discard all but the newest `num_held` steps."""
        self._rows.forget(max(0, len(self._rows) - num_held))


class ScriptStepJoiner:
    """Joiner of the steps of one attempt's ranks, like step_blocks.StepJoiner for a configured run."""

    def __init__(self) -> None:
        self.restored: int | None = None
        self.num_refused = 0
        self.ranks: dict[int, RankSteps] = {}
        self.standalone: set[int] = set()
        self._leader: int | None = None
        self._next = 1
        self._late_steps: list[tuple[int, int]] = []

    def restore(self, step: int) -> None:
        """Record that a rank continues after `step`; only the smallest such step of all ranks is stored.

        The rank either reported `step`, or the first step in its file is `step` + 1.
        """
        self.restored = step if self.restored is None else min(self.restored, step)

    def add(self, block: StepBlock) -> None:
        """Add a rank's next block.

        Repeated steps are rejected; if the script restarted its count, numbering continues from the last
        step.
        """
        rank = self.ranks.get(block.rank)
        if rank is None:
            rank = self.ranks[block.rank] = RankSteps()
            self.restore(block.first - 1)
        first = block.first + rank.offset
        # Sums of larger values would leave the range of a double.
        values = np.where(np.abs(block.values) < MAX_VALUE, block.values, np.nan)
        if rank.num_steps and first <= rank.last_step:
            # Time has advanced although the numbers start again: the script restarted its count.
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
        """Return rows (SCRIPT_COLUMNS, steps) in step order: first the changed rows, then the new rows."""
        max_steps = max((rank.num_steps for rank in self.ranks.values()), default=0)
        if not max_steps:
            return []
        leader = min(number for number, rank in self.ranks.items() if 2 * rank.num_steps >= max_steps)
        lead = self.ranks[leader]
        # A new leader changes all rows.
        changed = self._first_changed(leader) if leader == self._leader else lead.steps[0]
        start = int(np.searchsorted(lead.steps, min(changed, self._next)))
        end = len(lead.steps)
        self._leader, self._next = leader, lead.last_step + 1
        self._late_steps.clear()
        rows = [
            self._join(leader, slice(at, min(end, at + _MAX_JOIN))) for at in range(start, end, _MAX_JOIN)
        ]
        for rank in self.ranks.values():
            rank.keep_newest(max(_MIN_ROWS, _MAX_ROWS // len(self.ranks)))
        return rows

    def _first_changed(self, leader: int) -> float:
        """Return the first of the leader's steps whose row, already returned by `join`, has changed.

        A row changes if another rank reports the step late. If no row has changed, return infinity.
        """
        lead = self.ranks[leader]
        returned = slice(0, int(np.searchsorted(lead.steps, self._next)))
        changed = np.inf
        for number, first in self._late_steps:
            if number in self._ranks_joined_with(leader) and first < min(self._next, changed):
                start = int(np.searchsorted(lead.steps, first))
                columns = slice(min(start, returned.stop), returned.stop)
                shared = lead.steps[columns][np.isfinite(self._match(lead, number, columns)[0])]
                changed = min(changed, float(shared.min(initial=np.inf)))
        return changed

    def _ranks_joined_with(self, leader: int) -> set[int]:
        """Return the other ranks that take part in the leader's steps."""
        return set() if leader in self.standalone else self.ranks.keys() - self.standalone - {leader}

    def _match(self, lead: RankSteps, number: int, columns: slice) -> tuple[Floats, Floats]:
        """Return rank `number`'s step numbers and `shares` for the leader's steps in `columns`; NaN where
        that rank took no part in a step."""
        rank, steps = self.ranks[number], lead.steps[columns]
        at = np.minimum(np.searchsorted(rank.steps, steps), len(rank.steps) - 1)
        shares = rank.shares[:, at]
        apart_s = np.abs(shares[ENDED] - lead.shares[ENDED, columns])
        is_apart = apart_s > np.fmax(_MAX_GAP_S, lead.shares[STEP_S, columns])
        is_shared = (rank.steps[at] == steps) & ~is_apart
        return np.where(is_shared, steps, np.nan), np.where(is_shared, shares, np.nan)

    def _join(self, leader: int, columns: slice) -> Floats:
        lead = self.ranks[leader]
        sums, counts, samples, has_samples = np.zeros((4, columns.stop - columns.start))
        for number in sorted({leader} | self._ranks_joined_with(leader)):
            shares = lead.shares[:, columns] if number == leader else self._match(lead, number, columns)[1]
            is_known = np.isfinite(shares[LOSS_SUM])
            sums += np.where(is_known, shares[LOSS_SUM], 0.0)
            counts += np.where(is_known, np.where(np.isfinite(shares[COUNT]), shares[COUNT], 1.0), 0.0)
            has_samples += np.isfinite(shares[SAMPLES])
            samples += np.nan_to_num(shares[SAMPLES])
        rows = np.full((len(SCRIPT_COLUMNS), len(sums)), np.nan)
        rows[0] = lead.steps[columns]
        with np.errstate(over="ignore"):
            np.divide(sums, counts, out=rows[1], where=counts > 0)
        rows[1] = np.where(np.isfinite(rows[1]), rows[1], np.nan)
        rows[2] = lead.shares[LR, columns]
        rows[3] = np.where(has_samples > 0, samples, np.nan)
        rows[4:] = lead.shares[[STEP_S, ENDED, WAIT_S, GRAD_NORM], columns]
        return rows


# Other reports of one attempt of a user script, apart from steps, memory and readings: observations of each
# rank, logged metrics, and calls of collectives.

_MAX_COLLECTIVES = 100
_MAX_CODES = _MAX_ANOMALIES = 100
_INT_LIMIT = 1 << 62
Number = TypeVar("Number", int, float)


@dataclass
class CollectiveTotals:
    """Totals of one rank by collective: calls, bytes of the tensors passed, seconds taken."""

    calls: dict[str, int] = field(default_factory=dict)
    num_bytes: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, event: events.Collectives) -> None:
        _add_capped(self.calls, event.calls)
        _add_capped(self.num_bytes, event.num_bytes)
        _add_capped(self.seconds, event.seconds)


def _add_capped(totals: dict[str, Number], values: Mapping[str, Number]) -> None:
    for name, value in values.items():
        if not 0 <= value < _INT_LIMIT:
            continue
        if name in totals:
            totals[name] += value
        elif len(totals) < _MAX_COLLECTIVES:
            totals[name] = value


@dataclass
class ScriptReports:
    """Reports of an attempt's ranks: start events, newest observations, collective totals, logged metrics."""

    ranks: dict[int, events.RankStarted] = field(default_factory=dict)
    observations: dict[int, events.Observed] = field(default_factory=dict)
    collectives: dict[int, CollectiveTotals] = field(default_factory=dict)
    metrics: LoggedMetrics = field(default_factory=LoggedMetrics)
    anomalies: dict[str, dict[int, list[events.Anomaly]]] = field(default_factory=dict)
    """Reported anomalies, by code and rank."""
    weights: ScriptWeights = field(default_factory=ScriptWeights)
    calls_by_step: CollectiveComparison = field(default_factory=CollectiveComparison)

    def add_anomaly(self, event: events.Anomaly) -> None:
        by_rank = self.anomalies.setdefault(event.code, {}) if len(self.anomalies) < _MAX_CODES else {}
        reported = by_rank.setdefault(event.rank, [])
        if len(reported) < _MAX_ANOMALIES:
            reported.append(event)

    def add_collectives(self, event: events.Collectives) -> None:
        self.collectives.setdefault(event.rank, CollectiveTotals()).add(event)
        self.calls_by_step.add(event)
