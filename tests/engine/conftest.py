"""Ranks that many tests share: one set of 2 and one of 4 gloo ranks, each started once for the session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from tests.helpers.ranks import RankSet


@pytest.fixture(scope="session")
def rank_set_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], RankSet]]:
    """Both sets stay until the end: tests that come file by file go from one to the other often."""
    started: dict[int, RankSet] = {}
    with ExitStack() as until_the_end:

        def of(num_ranks: int) -> RankSet:
            if num_ranks not in started:
                new_ranks = RankSet(num_ranks, tmp_path_factory.mktemp(f"ranks-{num_ranks}"))
                started[num_ranks] = until_the_end.enter_context(closing(new_ranks))
            return started[num_ranks]

        yield of


@pytest.fixture(scope="session", params=[2, 4], ids=["2-ranks", "4-ranks"])
def ranks(request: pytest.FixtureRequest, rank_set_of: Callable[[int], RankSet]) -> tuple[int, RankSet]:
    """(number of ranks, the ranks)."""
    return request.param, rank_set_of(request.param)
