"""One process that plans, for all tests that compare its lines with what was measured."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.planning import Planner


@pytest.fixture(scope="session")
def planner() -> Iterator[Planner]:
    made = Planner()
    yield made
    made.close()
