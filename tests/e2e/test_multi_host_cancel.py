"""A run over hosts that is given up while it begins leaves none of them waiting for the others."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from rankdeck.run_dir import list_folder
from tests.helpers.cli import start_rankdeck
from tests.helpers.fake_ssh_hosts import FakeSshHosts
from tests.helpers.waiting import wait_until

JOB = ("digits-mlp", "--strategy", "ddp", "--devices", "cpu:1", "--set", "train.steps=1000000")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "a window's Cancel"])
def test_canceling_a_launch_stops_the_first_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    near = FakeSshHosts(tmp_path / "hosts", monkeypatch)
    with start_rankdeck("train", *JOB, "--hosts", "box1,box2") as command:
        wait_until(lambda: list_folder(near.runs("box1")), deadline_s=60, what="the first host's part")
        command.send_signal(number)
        assert command.wait(timeout=30) in (130, -number)
    (run,) = list_folder(near.runs("box1"))
    wait_until(lambda: not run.is_alive(), deadline_s=15, what="the end of what had begun")
    assert not list_folder(near.runs("box2")) or not list_folder(near.runs("box2"))[0].is_alive()
