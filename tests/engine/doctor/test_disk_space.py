"""Folders that runs write into: real ones, and ones in which nothing can be written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from rankdeck.doctor import disk_space
from rankdeck.doctor.lines import CheckLine, Verdict, decode

UNWRITABLE = Path("/proc/self")
"""Not even root makes a file there."""


def single_row(rows: Iterable[CheckLine]) -> CheckLine:
    (line,) = rows
    return line


def test_the_runs_disk_is_measured_without_leaving_files(tmp_path: Path) -> None:
    line = single_row(disk_space.check_runs_folder(tmp_path / "not/there/yet"))
    assert line.verdict in (Verdict.OK, Verdict.WARNING)  # a disk may be slow or nearly full
    assert f"the first run creates {tmp_path / 'not/there/yet'} in {tmp_path}" in line.evidence
    assert any("(statvfs)" in text for text in line.evidence)
    assert any("written with fdatasync in" in text for text in line.evidence)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("check", "setting"),
    [(disk_space.check_runs_folder, "RANKDECK_RUNS"), (disk_space.check_state_folder, "RANKDECK_HOME")],
)
def test_a_folder_that_cannot_hold_files_fails(check: object, setting: str) -> None:
    line = single_row(check(UNWRITABLE / "runs"))  # type: ignore[operator]
    assert line.verdict is Verdict.FAILED and setting in (line.fix or "")
    assert str(UNWRITABLE / "runs") in line.finding


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_fails(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        assert single_row(disk_space.check_runs_folder(tmp_path)).verdict is Verdict.FAILED
    finally:
        tmp_path.chmod(0o700)


def test_a_failed_write_is_shown(tmp_path: Path) -> None:
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "from rankdeck.doctor import disk_space\n"
        "from rankdeck.doctor.lines import encode\n"
        "disk_space._MAX_WRITE_BYTES = 1 << 20\n"
        "sys.stdout.buffer.write(encode(next(disk_space.check_runs_folder(Path(sys.argv[1])))))\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script, tmp_path], capture_output=True, timeout=60)
    line = decode(done.stdout)
    assert isinstance(line, CheckLine), done.stderr.decode()
    assert line.verdict is Verdict.FAILED and "File too large" in line.finding


@pytest.mark.parametrize(
    ("free", "per_s", "verdict"),
    [
        (100 << 30, 500 << 20, Verdict.OK),
        (100 << 30, None, Verdict.OK),
        (100 << 30, 20 << 20, Verdict.WARNING),
        (1 << 30, 500 << 20, Verdict.WARNING),
        (100 << 20, None, Verdict.FAILED),
    ],
)
def test_low_space_and_a_slow_disk_are_shown(free: int, per_s: float | None, verdict: Verdict) -> None:
    line = disk_space._runs_row(free, per_s, [])
    assert line.verdict is verdict and (line.fix is None) is (verdict is Verdict.OK)


def test_the_state_folder_must_support_locks(tmp_path: Path) -> None:
    line = single_row(disk_space.check_state_folder(tmp_path / "state"))
    assert line.verdict is Verdict.OK and list(tmp_path.iterdir()) == []


def test_shared_memory_is_compared_with_what_workers_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_space, "disk_space", lambda _: (64 << 20, 64 << 20))
    line = single_row(disk_space.check_shared_memory(tmp_path))
    assert line.verdict is Verdict.WARNING and "64.0 MiB" in line.finding and "shm-size" in (line.fix or "")
    monkeypatch.setattr(disk_space, "disk_space", lambda _: (8 << 30, 8 << 30))
    assert single_row(disk_space.check_shared_memory(tmp_path)).verdict is Verdict.OK
    assert list(tmp_path.iterdir()) == []


def test_missing_or_read_only_shared_memory_is_shown(tmp_path: Path) -> None:
    assert single_row(disk_space.check_shared_memory(tmp_path / "none")).verdict is Verdict.SKIPPED
    assert single_row(disk_space.check_shared_memory(UNWRITABLE)).verdict is Verdict.FAILED
