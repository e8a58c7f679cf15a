"""The clock of this machine, one that jumps, and a session whose end takes everything along."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from rankdeck.doctor import limits
from rankdeck.doctor.limits import KernelClock, kernel_clock, look_at_clock, look_at_logout
from rankdeck.doctor.lines import CheckLine, Verdict

RIGHT = KernelClock(True, 0.01)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_LOOKS_S", 0.01)


def only(rows: Iterable[CheckLine]) -> CheckLine:
    (line,) = rows
    return line


def test_the_kernels_own_word_is_taken() -> None:
    line, told = only(look_at_clock()), kernel_clock()
    if told is None:
        assert any("does not tell" in words for words in line.evidence)
    else:
        assert any(words.startswith("adjtimex: ") for words in line.evidence)
        assert (line.verdict is Verdict.GOOD) is told.is_synchronised


def test_a_clock_that_somebody_keeps_right_is_good_and_another_is_told() -> None:
    assert only(look_at_clock(lambda: RIGHT)).verdict is Verdict.GOOD
    assert only(look_at_clock(lambda: None)).verdict is Verdict.GOOD
    line = only(look_at_clock(lambda: KernelClock(False, 16.0)))
    assert line.verdict is Verdict.LOOK and "adjtimex: not synchronised" in line.evidence


def test_a_clock_that_jumps_is_told() -> None:
    steps = itertools.count()
    line = only(look_at_clock(lambda: RIGHT, lambda: time.time() + 0.3 * next(steps)))
    assert line.verdict is Verdict.LOOK and "jumped" in line.finding


def test_a_clock_that_starts_at_the_epoch_is_broken() -> None:
    line = only(look_at_clock(lambda: RIGHT, time.monotonic))
    assert line.verdict is Verdict.BROKEN and "1970-" in line.finding


def machine(root: Path, *settings: str, lingers: bool = False) -> Path:
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
        ((), False, Verdict.GOOD),
        (("KillUserProcesses=yes",), False, Verdict.LOOK),
        (("KillUserProcesses=yes",), True, Verdict.GOOD),
        (("KillUserProcesses=yes", "KillUserProcesses=no"), False, Verdict.GOOD),
    ],
)
def test_a_session_that_takes_runs_along_is_told(
    tmp_path: Path, settings: tuple[str, ...], lingers: bool, verdict: Verdict
) -> None:
    line = only(look_at_logout(machine(tmp_path, *settings, lingers=lingers), "me"))
    assert line.verdict is verdict
    assert (line.command == "loginctl enable-linger") is (verdict is Verdict.LOOK)


def test_without_systemd_nothing_is_asked(tmp_path: Path) -> None:
    assert only(look_at_logout(tmp_path, "me")).verdict is Verdict.NOT_TRIED
