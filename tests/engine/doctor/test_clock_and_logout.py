"""The clock of this machine, one that jumps, and a session whose end takes everything along."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from rankdeck.doctor import limits
from rankdeck.doctor.limits import KernelClock, check_clock, check_logout, read_kernel_clock
from rankdeck.doctor.lines import CheckLine, Verdict

SYNCHRONISED = KernelClock(True, 0.01)


@pytest.fixture(autouse=True)
def _short_clock_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_CLOCK_CHECK_S", 0.01)


def single_row(rows: Iterable[CheckLine]) -> CheckLine:
    (line,) = rows
    return line


def test_the_kernel_decides_whether_the_clock_is_synchronised() -> None:
    line, clock = single_row(check_clock()), read_kernel_clock()
    if clock is None:
        assert any("does not report" in text for text in line.evidence)
    else:
        assert any(text.startswith("adjtimex: ") for text in line.evidence)
        assert (line.verdict is Verdict.OK) is clock.is_synchronised


def test_an_unsynchronised_clock_is_a_warning() -> None:
    assert single_row(check_clock(lambda: SYNCHRONISED)).verdict is Verdict.OK
    assert single_row(check_clock(lambda: None)).verdict is Verdict.OK
    line = single_row(check_clock(lambda: KernelClock(False, 16.0)))
    assert line.verdict is Verdict.WARNING and "adjtimex: not synchronised" in line.evidence


def test_a_clock_jump_is_a_warning() -> None:
    steps = itertools.count()
    line = single_row(check_clock(lambda: SYNCHRONISED, lambda: time.time() + 0.3 * next(steps)))
    assert line.verdict is Verdict.WARNING and "jumped" in line.finding


def test_a_clock_at_the_epoch_fails() -> None:
    line = single_row(check_clock(lambda: SYNCHRONISED, time.monotonic))
    assert line.verdict is Verdict.FAILED and "1970-" in line.finding


def make_machine(root: Path, *settings: str, lingers: bool = False) -> Path:
    (root / "run/systemd/system").mkdir(parents=True)
    for number, setting in enumerate(settings):
        file = root / f"etc/systemd/logind.conf.d/{number}.conf"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"[Login]\n#KillUserProcesses=no\n{setting}\n")
    if lingers:
        (root / "var/lib/systemd/linger").mkdir(parents=True)
        (root / "var/lib/systemd/linger/me").touch()
    return root


@pytest.mark.parametrize(
    ("settings", "lingers", "verdict"),
    [
        ((), False, Verdict.OK),
        (("KillUserProcesses=yes",), False, Verdict.WARNING),
        (("KillUserProcesses=yes",), True, Verdict.OK),
        (("KillUserProcesses=yes", "KillUserProcesses=no"), False, Verdict.OK),
    ],
)
def test_killing_processes_at_logout_is_a_warning(
    tmp_path: Path, settings: tuple[str, ...], lingers: bool, verdict: Verdict
) -> None:
    line = single_row(check_logout(make_machine(tmp_path, *settings, lingers=lingers), "me"))
    assert line.verdict is verdict
    assert (line.command == "loginctl enable-linger") is (verdict is Verdict.WARNING)


def test_the_logout_check_is_skipped_without_systemd(tmp_path: Path) -> None:
    assert single_row(check_logout(tmp_path, "me")).verdict is Verdict.SKIPPED
