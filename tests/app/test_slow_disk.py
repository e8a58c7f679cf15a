"""A disk that takes its time holds up no click: the thread of the window never asks it for anything."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.slow_disk import CONTROL_ACTION, actions_on_slow_disk


def test_user_actions_do_not_block_on_a_slow_disk(tmp_path: Path) -> None:
    asking, *actions = actions_on_slow_disk(tmp_path, delay_ms=30)
    assert asking["act"] == CONTROL_ACTION and asking["asked"] and asking["longest_ms"] >= 30
    assert len(actions) > 60
    assert {action["act"]: action["asked"] for action in actions if action["asked"]} == {}
