"""Find the step from which the ranks of a user script have called different numbers of collectives."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from rankdeck import events

_MAX_CHANGES = 8192
"""Maximum number of stored changes per rank; if a rank has more, the comparison ends."""
_MAX_SEARCHED = 64
"""Number of steps after each change at which the ranks' totals are compared."""


@dataclass(frozen=True)
class CountDifference:
    """Ranks that have called a collective more or less often than the others since `step`.

    `calls` maps each rank to its number of calls of `name` in `step`, `totals` to its number of calls from
    `step` to `last_step`. `previous` is the number of calls in the step before `step`, None if the ranks
    differed then. `line` ("file:line") is the line at which the number of calls changed, "" if unknown. In
    `num_apart` of the steps from `step` to `last_step`, the ranks' numbers of calls differed; in
    `num_together` of them, the numbers were equal and not 0.
    """

    step: int
    last_step: int
    name: str
    calls: Mapping[int, int]
    totals: Mapping[int, int]
    previous: int | None
    line: str
    num_apart: int
    num_together: int


@dataclass
class _RankCounts:
    """One rank's calls per step; `changes` lists (first step with these calls, calls by collective and
    line)."""

    changes: list[tuple[int, Mapping[str, int]]] = field(default_factory=list)
    until: int = 0

    def at(self, step: int) -> Mapping[str, int]:
        """Return the number of calls in a step, by collective and line."""
        return next((calls for first, calls in reversed(self.changes) if first <= step), {})

    def drop_before(self, step: int) -> None:
        """Discard the changes that do not affect the calls in `step` or in later steps."""
        index = max((i for i, (first, _) in enumerate(self.changes) if first <= step), default=0)
        del self.changes[:index]


@dataclass
class CollectiveComparison:
    """Step-by-step comparison of how often the ranks have called each collective."""

    _ranks: dict[int, _RankCounts] = field(default_factory=dict)
    _equal_until: int = 0
    """Last step by the end of which all ranks had called each collective equally often."""
    _is_done: bool = False

    def add(self, event: events.Collectives) -> None:
        """Add one rank's report."""
        counts = self._ranks.setdefault(event.rank, _RankCounts())
        counts.until = max(counts.until, event.counted_until)
        counts.changes += zip(event.changed_steps, event.changed_calls, strict=False)
        self._is_done = self._is_done or len(counts.changes) > _MAX_CHANGES

    def find_difference(self, num_ranks: int) -> CountDifference | None:
        """Return the difference between the ranks' totals in the last step that all ranks reported, or
        None."""
        if self._is_done or len(self._ranks) < max(2, num_ranks):
            return None
        last = min(counts.until for counts in self._ranks.values())
        totals: dict[int, Counter[str]] = {rank: Counter() for rank in self._ranks}
        equal_totals: Counter[str] = Counter()
        start = self._equal_until + 1
        firsts = {first for counts in self._ranks.values() for first, _ in counts.changes}
        boundaries = sorted({start, last + 1, *(first for first in firsts if start < first <= last)})
        for begin, end in itertools.pairwise(boundaries):
            calls = {rank: _by_name(counts.at(begin)) for rank, counts in self._ranks.items()}
            for step in _searched_steps(begin, end):
                reached = {rank: totals[rank] + _times(calls[rank], step - begin + 1) for rank in self._ranks}
                if _is_equal(reached):
                    self._equal_until = step
                    equal_totals = next(iter(reached.values()))
            totals = reached
        if self._equal_until >= start:
            for counts in self._ranks.values():
                counts.drop_before(self._equal_until)
        if self._equal_until >= last:
            return None
        return self._describe(last, {rank: total - equal_totals for rank, total in totals.items()})

    def _describe(self, last: int, totals: Mapping[int, Counter[str]]) -> CountDifference | None:
        step = self._equal_until + 1
        calls = {rank: counts.at(step) for rank, counts in self._ranks.items()}
        names = {name for total in totals.values() for name in total}
        differing = sorted(name for name in names if len({total[name] for total in totals.values()}) > 1)
        at_once = [name for name in differing if len({_by_name(c)[name] for c in calls.values()}) > 1]
        if not at_once:
            return None
        name = at_once[0]
        before_by_rank = {_by_name(counts.at(step - 1))[name] for counts in self._ranks.values()}
        line = ""
        for rank, counts in self._ranks.items():
            before, now = counts.at(step - 1), calls[rank]
            sites = sorted(site for site in {*before, *now} if site.startswith(name + " "))
            changed = [site for site in sites if before.get(site, 0) != now.get(site, 0)]
            if before and changed:
                line = changed[0].partition(" ")[2]
        return CountDifference(
            step,
            last,
            name,
            {rank: _by_name(c)[name] for rank, c in sorted(calls.items())},
            {rank: total[name] for rank, total in sorted(totals.items())},
            before_by_rank.pop() if step > 1 and len(before_by_rank) == 1 else None,
            line,
            *self._count_steps(name, step, last),
        )

    def _count_steps(self, name: str, step: int, last: int) -> tuple[int, int]:
        """Count the steps from `step` to `last` by whether the ranks called `name` equally often.

        Return (steps with different numbers of calls, steps with equal numbers).
        """
        firsts = {first for counts in self._ranks.values() for first, _ in counts.changes}
        boundaries = sorted({step, last + 1, *(first for first in firsts if step < first <= last)})
        apart = together = 0
        for begin, end in itertools.pairwise(boundaries):
            numbers = {_by_name(counts.at(begin))[name] for counts in self._ranks.values()}
            if len(numbers) > 1:
                apart += end - begin
            elif numbers != {0}:
                together += end - begin
        return apart, together


def _searched_steps(begin: int, end: int) -> list[int]:
    """Return the steps from `begin` to `end - 1` at which totals are compared: the first few and the last."""
    return [*range(begin, min(end - 1, begin + _MAX_SEARCHED)), end - 1]


def _by_name(calls: Mapping[str, int]) -> Counter[str]:
    names: Counter[str] = Counter()
    for site, count in calls.items():
        names[site.partition(" ")[0]] += count
    return names


def _times(calls: Counter[str], number: int) -> Counter[str]:
    return Counter({name: count * number for name, count in calls.items()})


def _is_equal(totals: Mapping[int, Counter[str]]) -> bool:
    first, *others = totals.values()
    return all(other == first for other in others)
