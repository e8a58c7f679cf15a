"""docs/published.md says what the table's sources published and what the planner says now."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tests.helpers.checkout import CHECKOUT
from tests.published.page import line
from tests.published.table import Planned, load, planned

PAGE = CHECKOUT / "docs" / "published.md"
TABLE = load()
CHEAP = ("c3d", "gpt2-8")
_TOLERANCE = 0.001


def test_every_source_has_rows_and_every_row_stands_in_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    sections = {section.splitlines()[0]: section for section in page.split("\n## ")}
    for name, source in TABLE.sources.items():
        rows = [row for row in TABLE.rows if row.source == name]
        assert rows, f"{name} has no row"
        assert source.url in sections[source.title]
        for row in rows:
            start = line(Planned(row, 0, is_bound=False)).split(f"{row.published_bytes / 2**20:,.0f} |")[0]
            assert start in sections[source.title], row.id
    assert len(TABLE.rows) == len({row.id for row in TABLE.rows}) == len(re.findall(r"% \|$", page, re.M))


@pytest.mark.parametrize("name", CHEAP)
def test_the_page_says_what_a_plan_says(name: str) -> None:
    row = next(row for row in TABLE.rows if row.id == name)
    again = planned(row, TABLE)
    assert line(again) in PAGE.read_text(encoding="utf-8")
    more = dataclasses.replace(again, num_bytes=again.num_bytes + round(_TOLERANCE * row.published_bytes))
    assert line(more) not in PAGE.read_text(encoding="utf-8"), "an error of 0.1 % would stand in the page"
