"""What a process may have, looked at in processes that really have less."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from rankdeck.base import cgroups
from rankdeck.doctor import limits
from rankdeck.doctor.lines import CheckLine, Verdict, decode

GIB = 2**30


def single_row(rows: Iterable[CheckLine]) -> CheckLine:
    (line,) = rows
    return line


def run_with_limit(limit: str, soft: int, hard: int, check: str) -> CheckLine:
    """What the check says in a process with this limit."""
    script = (
        "import resource, sys\n"
        f"resource.setrlimit(resource.{limit}, ({soft}, {hard}))\n"
        "from rankdeck.doctor import limits\n"
        "from rankdeck.doctor.lines import encode\n"
        f"sys.stdout.buffer.write(encode(next(limits.{check}())))\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, check=False, timeout=60)
    line = decode(done.stdout)
    assert isinstance(line, CheckLine), done.stderr.decode()
    return line


@pytest.mark.parametrize(
    ("soft", "hard", "verdict", "command"),
    [
        (2000, 3000, Verdict.OK, None),
        (600, 3000, Verdict.WARNING, "ulimit -n 3000"),
        (200, 3000, Verdict.FAILED, "ulimit -n 3000"),
        (200, 300, Verdict.FAILED, None),
    ],
)
def test_a_low_file_limit_gets_an_ulimit_command(
    soft: int, hard: int, verdict: Verdict, command: str | None
) -> None:
    line = run_with_limit("RLIMIT_NOFILE", soft, hard, "check_open_files")
    assert (line.verdict, line.command) == (verdict, command)
    assert line.evidence == [f"RLIMIT_NOFILE: {soft} (hard limit {hard})"]
    assert str(soft) in line.finding


def write_files(folder: Path, contents: dict[str, str]) -> None:
    for name, text in contents.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cgroups, "ROOT", tmp_path / "group")
    monkeypatch.setattr(cgroups, "MEMBERSHIP", tmp_path / "membership")
    return tmp_path / "group"


CGROUP_V2 = {
    "memory.max": "max",
    "a/memory.max": str(8 * GIB),
    "a/memory.current": str(7 * GIB),
    "a/memory.stat": f"anon 1\ninactive_file {GIB}\nactive_file {GIB}",
    "a/b/memory.max": str(64 * GIB),
    "a/b/memory.current": "0",
    "a/pids.max": "100",
    "a/pids.current": "60",
    "a/b/cpu.max": "max 100000",
    "a/cpu.max": "150000 100000",
}
CGROUP_V1 = {
    "memory/a/memory.limit_in_bytes": str(8 * GIB),
    "memory/a/memory.usage_in_bytes": str(7 * GIB),
    "memory/a/memory.stat": f"inactive_file {GIB}\nactive_file {GIB}",
    "memory/memory.limit_in_bytes": "9223372036854771712",
    "memory/memory.usage_in_bytes": "1",
    "pids/a/pids.max": "100",
    "pids/a/pids.current": "60",
    "cpu,cpuacct/a/cpu.cfs_quota_us": "150000",
    "cpu,cpuacct/a/cpu.cfs_period_us": "100000",
}


@pytest.mark.parametrize(
    ("membership", "contents"),
    [("0::/a/b", CGROUP_V2), ("4:memory:/a/b\n3:pids:/a/b\n2:cpu,cpuacct:/a/b\n0::/a/b", CGROUP_V1)],
    ids=["second", "first"],
)
def test_the_tightest_cgroup_limit_counts_in_v1_and_v2(
    group: Path, membership: str, contents: dict[str, str]
) -> None:
    write_files(group, contents)
    cgroups.MEMBERSHIP.write_text(membership + "\n")
    memory, pids = cgroups.tightest_limit("memory"), cgroups.tightest_limit("pids")
    assert memory is not None and (memory.limit, memory.remaining) == (8 * GIB, 3 * GIB)
    assert pids is not None and pids.remaining == 40
    assert cgroups.cpu_quota() == 1.5
    line = single_row(limits.check_memory())
    assert line.verdict is Verdict.WARNING and "3.0 GiB" in line.finding
    assert any("memory" in text and "of 8.0 GiB used" in text for text in line.evidence)
    line = single_row(limits.check_process_limit())
    assert line.verdict is Verdict.FAILED and "Only 40 more" in line.finding
    line = single_row(limits.check_threads({"OMP_NUM_THREADS": "4"}))
    assert line.verdict is Verdict.WARNING and "share 2 cores" in line.finding


def test_a_cgroup_without_limits_sets_none(group: Path) -> None:
    write_files(group, {"memory.max": "max", "pids.max": "max"})
    cgroups.MEMBERSHIP.write_text("0::/not/seen/from/inside\n")
    assert cgroups.tightest_limit("memory") is cgroups.tightest_limit("pids") is cgroups.cpu_quota() is None


def test_a_limited_address_space_is_a_warning() -> None:
    line = run_with_limit("RLIMIT_AS", 8 * GIB, 8 * GIB, "check_memory")
    assert "RLIMIT_AS: 8.0 GiB" in line.evidence
    if "is left; torch alone" not in line.finding:  # where little memory is free, that is told instead
        assert (line.verdict, line.command) == (Verdict.WARNING, "ulimit -v unlimited")


def test_the_process_limit_counts_this_users_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(resource, "getrlimit", lambda of: (limits._count_user_threads() + 100, 10**6))
    line = single_row(limits.check_process_limit())
    assert line.verdict is Verdict.WARNING and "Only" in line.finding


@pytest.mark.parametrize(
    ("setting", "verdict", "finding"),
    [
        ("1", Verdict.OK, "Threads per rank: 1"),
        ("4096", Verdict.WARNING, "Two ranks with 4096 threads each"),
        ("many", Verdict.WARNING, "not a valid number"),
        ("0", Verdict.WARNING, "not a valid number"),
    ],
)
def test_threads_are_compared_with_cores(setting: str, verdict: Verdict, finding: str) -> None:
    line = single_row(limits.check_threads({"OMP_NUM_THREADS": setting}))
    assert line.verdict is verdict and finding in line.finding
    assert f"OMP_NUM_THREADS={setting}" in line.evidence
    assert verdict is Verdict.OK or (line.command or "").startswith("export OMP_NUM_THREADS=")
