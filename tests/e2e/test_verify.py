"""`rankdeck verify` and `plan --verify` in processes of their own, as the window starts them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.helpers.cli import start_rankdeck
from tests.helpers.waiting import wait_until

DEVICES = ("--devices", "cpu:2", "--strategy", "ddp", "--json")


@pytest.mark.parametrize("command", [("verify", "digits-mlp"), ("plan", "digits-mlp", "--verify")])
def test_one_that_is_ended_leaves_neither_ranks_nor_files(tmp_path: Path, command: tuple[str, ...]) -> None:
    with start_rankdeck(*command, *DEVICES, env={"TMPDIR": str(tmp_path)}) as verifying:
        wait_until(lambda: list(tmp_path.glob("rankdeck-verify-*/*/guard.lock")))
        verifying.send_signal(signal.SIGTERM)
        assert verifying.wait(60) == 130
    assert not list(tmp_path.glob("rankdeck-verify-*"))
