"""One process that plans, for all tests that compare its lines with what was measured; and what children that
are forked here would each import anew, imported once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rankdeck.planner.preload import preload, preload_strategies
from tests.helpers.planning import Planner


@pytest.fixture(scope="package", autouse=True)
def _preload_once() -> None:
    preload()
    preload_strategies()


@pytest.fixture(scope="session")
def planner() -> Iterator[Planner]:
    instance = Planner()
    yield instance
    instance.close()
