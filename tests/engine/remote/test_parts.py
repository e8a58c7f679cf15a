"""Why a host's part cannot be begun, and what helps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rankdeck.base.errors import Problem
from rankdeck.remote import parts
from rankdeck.remote.hosts import CommandResult, Ran


def test_a_part_that_is_gone_is_copied_from_the_first_host() -> None:
    ran = Ran(cast("Any", SimpleNamespace(name="box2")), 0)
    ran.code = 2
    gone = CommandResult(problems=[Problem(code="run-not-found", message='There is no run called "x".')])
    error = parts._why_not(ran, gone, "box1:/data/my-runs/x")
    assert error.message == 'box2: There is no run called "x".'
    assert str(error.advice).endswith("scp -3 -r box1:/data/my-runs/x box2:/data/my-runs/")


@pytest.mark.parametrize(("place", "attempt"), [("10.0.0.1:5/secret/run@3", 3), ("", 0)])
def test_which_attempt_has_begun_stands_in_the_place(place: str, attempt: int) -> None:
    assert CommandResult(place=place).attempt == attempt
