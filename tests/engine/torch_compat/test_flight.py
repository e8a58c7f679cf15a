"""torch keeps the collectives that a rank has come to, and they are read while it is blocked in one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rankdeck.diagnose.stacks import find_mismatch, find_missing_ranks, parse_calls
from tests.helpers.ranks import RankSet


@pytest.fixture(scope="module")
def ranks(rank_set_of: Callable[[int], RankSet]) -> RankSet:
    return rank_set_of(2)


def test_a_rank_dumps_its_collectives_while_in_one(ranks: RankSet, tmp_path: Path) -> None:
    records = ranks.call("tests.helpers.flight_ranks:flight_record_of_late_rank", folder=str(tmp_path))
    calls = {rank: parse_calls(record) for rank, record in enumerate(records)}
    last, earlier = calls[0][-1], calls[1][-1]
    assert (last.kind, last.is_finished) == ("barrier", False)
    assert (earlier.kind, earlier.shape, earlier.number) == ("all_reduce", "3 Float", last.number - 1)
    assert find_missing_ranks(calls) == ([1], last) and find_mismatch(calls) == {}


def test_groups_made_by_others_have_the_given_timeout(ranks: RankSet) -> None:
    for before, after in ranks.call("tests.helpers.flight_ranks:timeouts_after", seconds=5000.0):
        assert before < after == 5000.0
