"""A disk that takes its time holds up no click: the thread of the window never asks it for anything."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.slow_disk import acts_on_slow_disk


def test_no_act_of_a_person_waits_for_the_disk(tmp_path: Path) -> None:
    found = acts_on_slow_disk(tmp_path, delay_ms=30)
    assert len(found) > 60
    assert {one["act"]: one["asked"] for one in found if one["asked"]} == {}


def test_a_window_that_asks_the_disk_is_found_out(tmp_path: Path) -> None:
    (asking, *_) = acts_on_slow_disk(tmp_path, delay_ms=30, only="ask the disk in vain")
    assert asking["asked"] and asking["longest_ms"] >= 30
