"""Folders that runs write into: real ones, and ones in which nothing can be written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from rankdeck.doctor import room
from rankdeck.doctor.lines import CheckLine, Verdict, decode

NOWHERE = Path("/proc/self")
"""Not even root makes a file there."""


def only(rows: Iterable[CheckLine]) -> CheckLine:
    (line,) = rows
    return line


def test_the_disk_of_runs_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    line = only(room.look_at_runs(tmp_path / "not/there/yet"))
    assert line.verdict in (Verdict.GOOD, Verdict.LOOK)  # a disk may be slow or nearly full
    assert f"{tmp_path / 'not/there/yet'} is made by the first run, in {tmp_path}" in line.evidence
    assert any("(statvfs)" in words for words in line.evidence)
    assert any("written with fdatasync in" in words for words in line.evidence)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("look", "setting"), [(room.look_at_runs, "RANKDECK_RUNS"), (room.look_at_state, "RANKDECK_HOME")]
)
def test_a_folder_in_which_no_file_can_be_made_is_broken(look: object, setting: str) -> None:
    line = only(look(NOWHERE / "runs"))  # type: ignore[operator]
    assert line.verdict is Verdict.BROKEN and setting in (line.fix or "")
    assert str(NOWHERE / "runs") in line.finding


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_may_not_be_written_is_broken(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        assert only(room.look_at_runs(tmp_path)).verdict is Verdict.BROKEN
    finally:
        tmp_path.chmod(0o700)


def test_a_write_that_fails_is_told(tmp_path: Path) -> None:
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "from rankdeck.doctor import room\n"
        "from rankdeck.doctor.lines import encode\n"
        "room._MOST_BYTES = 1 << 20\n"
        "sys.stdout.buffer.write(encode(next(room.look_at_runs(Path(sys.argv[1])))))\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script, tmp_path], capture_output=True, timeout=60)
    line = decode(done.stdout)
    assert isinstance(line, CheckLine), done.stderr.decode()
    assert line.verdict is Verdict.BROKEN and "File too large" in line.finding


@pytest.mark.parametrize(
    ("free", "per_s", "verdict"),
    [
        (100 << 30, 500 << 20, Verdict.GOOD),
        (100 << 30, None, Verdict.GOOD),
        (100 << 30, 20 << 20, Verdict.LOOK),
        (1 << 30, 500 << 20, Verdict.LOOK),
        (100 << 20, None, Verdict.BROKEN),
    ],
)
def test_little_room_and_a_slow_disk_are_told(free: int, per_s: float | None, verdict: Verdict) -> None:
    line = room._judged(free, per_s, [])
    assert line.verdict is verdict and (line.fix is None) is (verdict is Verdict.GOOD)


def test_leases_need_files_that_can_be_locked(tmp_path: Path) -> None:
    line = only(room.look_at_state(tmp_path / "state"))
    assert line.verdict is Verdict.GOOD and list(tmp_path.iterdir()) == []


def test_shared_memory_is_held_against_what_workers_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "disk_space", lambda _: (64 << 20, 64 << 20))
    line = only(room.look_at_shm(tmp_path))
    assert line.verdict is Verdict.LOOK and "64.0 MiB" in line.finding and "shm-size" in (line.fix or "")
    monkeypatch.setattr(room, "disk_space", lambda _: (8 << 30, 8 << 30))
    assert only(room.look_at_shm(tmp_path)).verdict is Verdict.GOOD
    assert list(tmp_path.iterdir()) == []


def test_shared_memory_that_is_not_there_or_not_writable_is_told(tmp_path: Path) -> None:
    assert only(room.look_at_shm(tmp_path / "none")).verdict is Verdict.NOT_TRIED
    assert only(room.look_at_shm(NOWHERE)).verdict is Verdict.BROKEN
