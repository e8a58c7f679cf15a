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

from rankdeck.doctor.lines import CheckLine, Verdict, row
from rankdeck.doctor.looking import Check, look_over
from tests.helpers.waiting import wait_until

# The command has one thread; this process has those of whatever other tests imported.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def good(name: str, *evidence: str) -> CheckLine:
    return row(name, Verdict.GOOD, "It is there.", *evidence)


def check(name: str, after: str | None = None, *, needs: bool = False) -> Check:
    return Check((name,), lambda: [good(name)], 60.0, after, needs)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def hanging(file: Path) -> Iterator[CheckLine]:
    """Never comes back, deaf to requests, and waits for a process of its own."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with subprocess.Popen(["sleep", "600"]) as child:
        file.with_suffix(".new").write_text(f"{os.getpid()} {child.pid}")
        file.with_suffix(".new").rename(file)
        yield good("clock")
        child.wait()


def test_rows_come_as_they_are_known_and_no_check_waits_for_another(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def patient() -> Iterator[CheckLine]:
        wait_until(mark.exists)
        yield good("runs")

    def first() -> Iterator[CheckLine]:
        mark.touch()
        yield good("shm")

    # The second lets the first go on: one after the other they would never end.
    told = list(look_over([Check(("runs",), patient, 60), Check(("shm",), first, 60)]))
    assert {line.name for line in told} == {"runs", "shm"}
    assert all(line.verdict is Verdict.GOOD for line in told)


def test_a_check_that_hangs_is_told_and_all_that_it_started_is_ended(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    told = list(look_over([Check(("clock", "gpus"), lambda: hanging(file), 1.0), check("files")]))
    by_name = {line.name: line for line in told}
    assert by_name["clock"].verdict is by_name["files"].verdict is Verdict.GOOD
    assert by_name["gpus"].verdict is Verdict.BROKEN
    assert by_name["gpus"].finding == "It did not answer within 1 s."
    assert by_name["gpus"].evidence == ["ended with all that it had started"]
    for pid in map(int, file.read_text().split()):
        wait_until(lambda pid=pid: is_gone(pid))


def test_whoever_stops_listening_ends_the_checks(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    looking = look_over([Check(("clock", "gpus"), lambda: hanging(file), 600)])
    assert next(looking).name == "clock"
    looking.close()  # type: ignore[attr-defined]
    for pid in map(int, file.read_text().split()):
        wait_until(lambda pid=pid: is_gone(pid))


def test_what_goes_wrong_in_a_check_is_told_in_words(capfd: pytest.CaptureFixture[str]) -> None:
    def wrong() -> Iterator[CheckLine]:
        yield good("runs")
        raise RuntimeError("no such thing")

    first, second = look_over([Check(("runs", "shm"), wrong, 60)])
    assert (first.name, first.verdict) == ("runs", Verdict.GOOD)
    assert (second.name, second.verdict) == ("shm", Verdict.NOT_TRIED)
    assert second.finding == "It could not be looked at: RuntimeError: no such thing."
    assert capfd.readouterr().err == ""


def test_a_check_whose_process_dies_is_told() -> None:
    def crash() -> Iterator[CheckLine]:
        os.kill(os.getpid(), signal.SIGKILL)
        yield good("runs")

    (line,) = look_over([Check(("runs",), crash, 60)])
    assert (line.verdict, line.evidence) == (Verdict.BROKEN, ["exit status -9"])


def test_what_is_measured_waits_for_what_comes_before(tmp_path: Path) -> None:
    def measured() -> Iterator[CheckLine]:
        began_s = time.monotonic()
        time.sleep(0.2)
        yield good("runs", str(began_s), str(time.monotonic()))

    def next_one() -> Iterator[CheckLine]:
        yield good("gloo", str(time.monotonic()))

    first, second = look_over([Check(("gloo",), next_one, 60, "runs"), Check(("runs",), measured, 60)])
    assert (first.name, second.name) == ("runs", "gloo")
    assert float(second.evidence[0]) >= float(first.evidence[1])


def test_what_needs_one_that_hung_is_not_tried() -> None:
    hung = Check(("python",), lambda: iter(lambda: time.sleep(600), None), 0.3)  # type: ignore[arg-type]
    told = list(
        look_over(
            [
                hung,
                check("gloo", "python", needs=True),
                check("nccl", "gloo", needs=True),
                check("shm", "python"),
            ]
        )
    )
    assert {line.name: line.verdict for line in told} == {
        "python": Verdict.BROKEN,
        "gloo": Verdict.NOT_TRIED,
        "nccl": Verdict.NOT_TRIED,
        "shm": Verdict.GOOD,
    }


def test_a_check_alone_waits_for_none_that_is_left_out() -> None:
    assert [line.name for line in look_over([check("gloo", after="python")])] == ["gloo"]
