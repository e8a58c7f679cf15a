"""Checks side by side: each has its time, and what does not come back is ended and told."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rankdeck.doctor.check_runner import Check, run_checks
from rankdeck.doctor.lines import CheckLine, Verdict, make_row
from tests.helpers.waiting import wait_until

# The command has one thread; this process has those of whatever other tests imported.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def ok_row(name: str, *evidence: str) -> CheckLine:
    return make_row(name, Verdict.OK, "It is there.", *evidence)


def make_check(name: str, after: str | None = None, *, needs: bool = False) -> Check:
    return Check((name,), lambda: [ok_row(name)], 60.0, after, needs)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def hanging_check(file: Path) -> Iterator[CheckLine]:
    """Never comes back, deaf to requests, and waits for a process of its own."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with subprocess.Popen(["sleep", "600"]) as child:
        file.with_suffix(".new").write_text(f"{os.getpid()} {child.pid}")
        file.with_suffix(".new").rename(file)
        yield ok_row("clock")
        child.wait()


def test_checks_run_in_parallel(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def patient() -> Iterator[CheckLine]:
        wait_until(mark.exists)
        yield ok_row("runs")

    def first() -> Iterator[CheckLine]:
        mark.touch()
        yield ok_row("shm")

    # The second lets the first go on: one after the other they would never end.
    lines = list(run_checks([Check(("runs",), patient, 60), Check(("shm",), first, 60)]))
    assert {line.name for line in lines} == {"runs", "shm"}
    assert all(line.verdict is Verdict.OK for line in lines)


def test_a_hanging_check_fails_and_its_processes_are_killed(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    lines = list(
        run_checks([Check(("clock", "gpus"), lambda: hanging_check(file), 1.0), make_check("files")])
    )
    by_name = {line.name: line for line in lines}
    assert by_name["clock"].verdict is by_name["files"].verdict is Verdict.OK
    assert by_name["gpus"].verdict is Verdict.FAILED
    assert by_name["gpus"].finding == "The check did not finish within 1 s."
    assert by_name["gpus"].evidence == ["the check's process and its child processes were killed"]
    for pid in map(int, file.read_text().split()):
        wait_until(lambda pid=pid: is_gone(pid))


def test_closing_the_iterator_kills_the_checks(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    check_lines = run_checks([Check(("clock", "gpus"), lambda: hanging_check(file), 600)])
    assert next(check_lines).name == "clock"
    check_lines.close()  # type: ignore[attr-defined]
    for pid in map(int, file.read_text().split()):
        wait_until(lambda pid=pid: is_gone(pid))


def test_an_exception_in_a_check_becomes_a_row(capfd: pytest.CaptureFixture[str]) -> None:
    def wrong() -> Iterator[CheckLine]:
        yield ok_row("runs")
        raise RuntimeError("no such thing")

    first, second = run_checks([Check(("runs", "shm"), wrong, 60)])
    assert (first.name, first.verdict) == ("runs", Verdict.OK)
    assert (second.name, second.verdict) == ("shm", Verdict.SKIPPED)
    assert second.finding == "The check failed with RuntimeError: no such thing."
    assert capfd.readouterr().err == ""


def test_a_killed_check_fails() -> None:
    def crash() -> Iterator[CheckLine]:
        os.kill(os.getpid(), signal.SIGKILL)
        yield ok_row("runs")

    (line,) = run_checks([Check(("runs",), crash, 60)])
    assert (line.verdict, line.evidence) == (Verdict.FAILED, ["exit status -9"])


def test_a_check_starts_after_the_check_it_waits_for(tmp_path: Path) -> None:
    def measured() -> Iterator[CheckLine]:
        began_s = time.monotonic()
        time.sleep(0.2)
        yield ok_row("runs", str(began_s), str(time.monotonic()))

    def next_one() -> Iterator[CheckLine]:
        yield ok_row("gloo", str(time.monotonic()))

    first, second = run_checks([Check(("gloo",), next_one, 60, "runs"), Check(("runs",), measured, 60)])
    assert (first.name, second.name) == ("runs", "gloo")
    assert float(second.evidence[0]) >= float(first.evidence[1])


def test_checks_that_need_a_hanging_check_are_skipped() -> None:
    hung = Check(("python",), lambda: iter(lambda: time.sleep(600), None), 0.3)  # type: ignore[arg-type]
    lines = list(
        run_checks(
            [
                hung,
                make_check("gloo", "python", needs=True),
                make_check("nccl", "gloo", needs=True),
                make_check("shm", "python"),
            ]
        )
    )
    assert {line.name: line.verdict for line in lines} == {
        "python": Verdict.FAILED,
        "gloo": Verdict.SKIPPED,
        "nccl": Verdict.SKIPPED,
        "shm": Verdict.OK,
    }


def test_a_check_does_not_wait_for_unselected_checks() -> None:
    assert [line.name for line in run_checks([make_check("gloo", after="python")])] == ["gloo"]
