"""Why a host's part cannot be begun, and what helps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rankdeck.base.errors import Problem
from rankdeck.remote import host_launcher
from rankdeck.remote.hosts import CommandResult, RemoteCommand


def test_a_missing_part_is_reported_with_a_copy_command() -> None:
    ran = RemoteCommand(cast("Any", SimpleNamespace(name="box2")), 0)
    ran.exit_code = 2
    result = CommandResult(problems=[Problem(code="run-not-found", message='There is no run called "x".')])
    error = host_launcher._launch_error(ran, result, "box1:/data/my-runs/x")
    assert error.message == 'box2: There is no run called "x".'
    assert str(error.advice).endswith("scp -3 -r box1:/data/my-runs/x box2:/data/my-runs/")


@pytest.mark.parametrize(("address", "attempt"), [("10.0.0.1:5/secret/run@3", 3), ("", 0)])
def test_the_join_address_ends_with_the_attempt(address: str, attempt: int) -> None:
    assert CommandResult(place=address).attempt == attempt
