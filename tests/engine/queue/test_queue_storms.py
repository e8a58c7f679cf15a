"""Jobs that run while the queue's processes are killed, and the check that finds what must not happen."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest

from rankdeck.queue.entry import Entry, Need, Start
from tests.faults.queue_storms import MARK, check, storm
from tests.helpers.queued_jobs import Log


@pytest.mark.usefixtures("spool")
def test_a_short_storm_loses_and_repeats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, uuid.uuid4().hex)
    assert storm(num_jobs=6, num_kills=4, seed=7) == []


@pytest.mark.parametrize(
    ("outcomes", "began", "wrong"),
    [
        (["completed"], [1], ""),
        (["completed"], [2], "a start ran twice"),
        (["completed"], [0], "did not run to its end"),
        (["not-started", "completed"], [1, 1], "counts as not started"),
        (["completed", "completed"], [1, 1], "ran again after it had completed"),
        (["completed"], [1, 1], "ran again after it had completed"),
        (["failed", "failed"], [1, 1], "more often than its policy says"),
        (["lost"], [1], "never finished"),
    ],
)
def test_the_check_of_a_storm_finds_what_is_wrong(outcomes: list[str], began: list[int], wrong: str) -> None:
    starts = [Start(0.0, ["cpu-slot-0"], "/runs/a", outcome=outcome) for outcome in outcomes]
    entry = Entry(1, "k", "j", "script", [], "/", "/", "python", Need("cpu", 1), 0.0, 1.0, starts=starts)
    times = Counter({("j", number): count for number, count in enumerate(began, 1) if count})
    found = check([entry], Log(times, times, [], []))
    assert any(wrong in line for line in found) if wrong else not found


def test_the_check_of_a_storm_finds_conflicts_and_a_wrong_order() -> None:
    def entry(number: int, at: float) -> Entry:
        start = Start(at, ["cpu-slot-0"], "/runs/a", outcome="completed")
        position = float(number)
        return Entry(
            *(number, "k", f"j{number}", "script", [], "/", "/", "python", Need("cpu", 1), 0.0, position),
            starts=[start],
        )

    times = Counter({("j1", 1): 1, ("j2", 1): 1})
    found = check([entry(1, 20.0), entry(2, 10.0)], Log(times, times, [], ["conflict j1 cpu-slot-0"]))
    assert found == ["conflict j1 cpu-slot-0", "j2 started before j1"]
