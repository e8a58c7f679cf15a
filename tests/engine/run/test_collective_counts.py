"""The step from which ranks have called different numbers of collectives, against a count step by step."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from rankdeck import events
from rankdeck.run.collective_counts import CollectiveComparison

_SITES = ("all_reduce /w/t.py:4", "all_reduce /w/t.py:9", "broadcast /w/t.py:5")


def _report(comparison: CollectiveComparison, rank: int, calls: list[dict[str, int]], first: int) -> None:
    """Report the calls of the steps from `first` on, as changes, in the way of the observer."""
    changes = [
        (step, calls[step - 1])
        for step in range(first, len(calls) + 1)
        if step == 1 or calls[step - 1] != calls[step - 2]
    ]
    comparison.add(
        events.Collectives(
            rank=rank,
            step=len(calls),
            calls={},
            num_bytes={},
            seconds={},
            counted_until=len(calls),
            changed_steps=[step for step, _ in changes],
            changed_calls=[change for _, change in changes],
        )
    )


def _first_lasting_difference(ranks: list[list[dict[str, int]]]) -> int | None:
    """Return the first step after the last one at which all totals by name were equal; None if no name that
    differed in that step still differs at the end."""
    num_steps = min(map(len, ranks))
    by_step = []
    for step in range(num_steps):
        totals = [Counter[str]() for _ in ranks]
        for total, calls in zip(totals, ranks, strict=True):
            for earlier in calls[: step + 1]:
                for site, count in earlier.items():
                    total[site.split(" ")[0]] += count
        by_step.append(
            {name for name in sum(totals, Counter()) if len({total[name] for total in totals}) > 1}
        )
    equal = max((step for step in range(num_steps) if not by_step[step]), default=-1)
    if equal == num_steps - 1 or not by_step[equal + 1] & by_step[-1]:
        return None
    return equal + 2


@pytest.mark.parametrize("seed", range(60))
def test_the_difference_is_the_one_that_a_count_of_all_steps_finds(seed: int) -> None:
    drawn = random.Random(seed)
    num_ranks, num_steps = drawn.choice((2, 3)), drawn.randint(8, 60)
    previous: list[dict[str, int]] = []
    for _ in range(num_steps):
        is_new = not previous or drawn.random() < 0.2
        previous.append(
            {site: drawn.randint(1, 2) for site in _SITES[: drawn.randint(1, 3)]} if is_new else previous[-1]
        )
    ranks = [[dict(calls) for calls in previous] for _ in range(num_ranks)]
    # Some ranks make calls earlier or later than the others, and some leave one out.
    for _ in range(drawn.randint(0, 3)):
        rank, step = drawn.randrange(num_ranks), drawn.randrange(num_steps - 3)
        site = drawn.choice(_SITES)
        ranks[rank][step][site] = ranks[rank][step].get(site, 0) + drawn.choice((1, 1, 2))
        if drawn.random() < 0.5:
            later = step + drawn.randint(1, 3)
            for other in range(num_ranks):
                if other != rank:
                    ranks[other][later][site] = ranks[other][later].get(site, 0) + 1
    for calls in ranks:
        del calls[num_steps - drawn.randint(0, 2) :]
    comparison = CollectiveComparison()
    half = num_steps // 2
    for rank, calls in enumerate(ranks):
        _report(comparison, rank, calls[:half], 1)
    _assert_found(comparison, [calls[:half] for calls in ranks])
    for rank, calls in enumerate(ranks):
        _report(comparison, rank, calls, half + 1)
    _assert_found(comparison, ranks)


def _assert_found(comparison: CollectiveComparison, ranks: list[list[dict[str, int]]]) -> None:
    found = comparison.find_difference(len(ranks))
    assert (None if found is None else found.step) == _first_lasting_difference(ranks)


def test_a_difference_names_the_collective_its_line_and_the_usual_number() -> None:
    previous = [{_SITES[0]: 1, _SITES[1]: 1, _SITES[2]: 2}] * 20
    other = [dict(calls) for calls in previous]
    del other[11][_SITES[1]]
    comparison = CollectiveComparison()
    for rank, calls in enumerate((previous, other, previous)):
        _report(comparison, rank, calls, 1)
    found = comparison.find_difference(3)
    assert found is not None
    assert (found.step, found.last_step, found.name, found.previous) == (12, 20, "all_reduce", 2)
    assert found.line == "/w/t.py:9"
    assert found.calls == {0: 2, 1: 1, 2: 2} and found.totals == {0: 18, 1: 17, 2: 18}
    assert (found.num_apart, found.num_together) == (1, 8)


def test_ranks_are_compared_only_once_all_have_reported() -> None:
    comparison = CollectiveComparison()
    _report(comparison, 0, [{_SITES[0]: 1}] * 8, 1)
    _report(comparison, 1, [{_SITES[0]: 2}] * 8, 1)
    assert comparison.find_difference(3) is None
    found = comparison.find_difference(2)
    assert found is not None and found.step == 1
