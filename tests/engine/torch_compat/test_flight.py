"""torch keeps the collectives that a rank has come to, and they are read while it is blocked in one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rankdeck.diagnose.stacks import calls_of, differing, missing
from tests.helpers.ranks import RankSet


@pytest.fixture(scope="module")
def ranks(rank_set_of: Callable[[int], RankSet]) -> RankSet:
    return rank_set_of(2)


def test_a_rank_tells_its_collectives_from_inside_one(ranks: RankSet, tmp_path: Path) -> None:
    records = ranks.call("tests.helpers.flight_ranks:told_from_inside", folder=str(tmp_path))
    calls = {rank: calls_of(record) for rank, record in enumerate(records)}
    last, earlier = calls[0][-1], calls[1][-1]
    assert (last.kind, last.is_over) == ("barrier", False)
    assert (earlier.kind, earlier.shape, earlier.number) == ("all_reduce", "3 Float", last.number - 1)
    assert missing(calls) == ([1], last) and differing(calls) == {}


def test_groups_that_others_made_wait_as_long_as_they_are_told(ranks: RankSet) -> None:
    for before, after in ranks.call("tests.helpers.flight_ranks:timeouts_after", seconds=5000.0):
        assert before < after == 5000.0
