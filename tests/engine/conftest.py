"""Ranks that many tests share: one set of 2 and one of 4 gloo ranks, each started once for the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.ranks import RankSet


@pytest.fixture(scope="session", params=[2, 4], ids=["2-ranks", "4-ranks"])
def ranks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[int, RankSet]]:
    """(number of ranks, the ranks). Pytest runs all tests with 2 ranks before those with 4."""
    made = RankSet(request.param, tmp_path_factory.mktemp(f"ranks-{request.param}"))
    yield request.param, made
    made.close()
