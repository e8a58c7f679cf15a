"""A disk that takes its time holds up no click: the thread of the window never asks it for anything."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.slow_disk import ASKS_IN_VAIN, acts_on_slow_disk


def test_no_act_of_a_person_waits_for_the_disk_and_one_that_does_is_found_out(tmp_path: Path) -> None:
    asking, *found = acts_on_slow_disk(tmp_path, delay_ms=30)
    assert asking["act"] == ASKS_IN_VAIN and asking["asked"] and asking["longest_ms"] >= 30
    assert len(found) > 60
    assert {one["act"]: one["asked"] for one in found if one["asked"]} == {}
