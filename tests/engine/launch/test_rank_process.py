"""A rank that is stopped has time to report the save that it was making."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankdeck.launch.rank_process import RankProcess, terminate_ranks
from tests.helpers.waiting import scale_timeout, wait_until

GRACE_S = 1.5
RANK = """
import pathlib, signal, sys, time
marker, report = map(pathlib.Path, sys.argv[1:3])
save_s, report_s = map(float, sys.argv[3:5])

def stop(*_):
    marker.touch()
    time.sleep(save_s)
    marker.unlink()
    time.sleep(report_s)
    report.touch()
    sys.exit(0)

signal.signal(signal.SIGTERM, stop)
report.with_name("ready").touch()
signal.pause()
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def _start_rank(
    folder: Path, started: list[subprocess.Popen[bytes]], *, save_s: float, report_s: float
) -> RankProcess:
    command = [sys.executable, "-c", RANK, folder / "saving", folder / "reported", str(save_s), str(report_s)]
    started.append(subprocess.Popen(command, start_new_session=True))
    wait_until((folder / "ready").exists)
    rank = RankProcess(0)
    rank.pid = started[-1].pid
    return rank


def test_a_rank_may_report_its_save_after_the_grace_period(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    """The report takes longer than a poll, and ends after the time that a rank without a save would have."""
    grace_s = scale_timeout(GRACE_S)
    rank = _start_rank(tmp_path, started, save_s=grace_s * 1.5, report_s=0.3)
    terminate_ranks([rank], grace_s, (tmp_path / "saving").exists)
    assert rank.exit_code == 0 and (tmp_path / "reported").exists()


@pytest.mark.parametrize("save_s", [0.0, 1.0], ids=["no save", "after its save"])
def test_a_rank_that_does_not_end_is_killed(
    tmp_path: Path, started: list[subprocess.Popen[bytes]], save_s: float
) -> None:
    rank = _start_rank(tmp_path, started, save_s=save_s, report_s=1000)
    started_s = time.monotonic()
    terminate_ranks([rank], 0.5, (tmp_path / "saving").exists)
    assert rank.exit_code == -9 and time.monotonic() - started_s >= save_s + 0.5
    assert not (tmp_path / "reported").exists()
