"""A comparison follows its runs, refuses in words, and comes back as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication
from pytestqt.qtbot import QtBot

from rankdeck import events
from rankdeck.compare.naming import MOST_RUNS, RunAt
from rankdeck_app.state.comparing import Comparing
from rankdeck_app.state.kept_file import MOST, RecentComparisons
from tests.helpers.written_run import WrittenRun, device_infos


@pytest.fixture
def make(qapp: QCoreApplication) -> Iterator[Callable[[], Comparing]]:
    made: list[Comparing] = []

    def make_one() -> Comparing:
        made.append(Comparing())
        return made[-1]

    yield make_one
    for one in made:
        one.close()


def written(tmp_path: Path, name: str, step_s: float = 0.5, *, over: bool = True) -> WrittenRun:
    run = WrittenRun(tmp_path / "runs", name)
    run.begin(1, device_infos(2), steps=8)
    run.steps(0, 1, [4.0, 3.0, 2.0, 1.0], step_s=step_s)
    if over:
        run.end()
    return run


def settled(qtbot: QtBot, comparing: Comparing, key: str, values: list[float | None]) -> None:
    def is_settled() -> bool:
        comparing.drain()
        known = comparing.comparison
        return known is not None and [run.value(key) for run in known.runs] == values

    qtbot.waitUntil(is_settled, timeout=10_000)


def test_runs_are_compared_and_one_that_goes_on_is_followed(
    make: Callable[[], Comparing], tmp_path: Path, qtbot: QtBot
) -> None:
    done, live = written(tmp_path, "done"), written(tmp_path, "live", over=False)
    comparing = make()
    assert comparing.add([RunAt(done.path), RunAt(live.path)]) == [] and comparing.comparison is None
    settled(qtbot, comparing, "step", [4.0, 4.0])
    assert comparing.comparison is not None
    assert [run.outcome for run in comparing.comparison.runs] == ["completed", "running"]
    assert comparing.title() == "done / live"
    live.steps(0, 5, [0.5, 0.4])
    settled(qtbot, comparing, "step", [4.0, 6.0])
    live.end("stopped")
    qtbot.waitUntil(lambda: not comparing.drain() and comparing.comparison.runs[1].outcome == "stopped")  # type: ignore[func-returns-value, union-attr]


def test_the_baseline_stays_with_its_run(make: Callable[[], Comparing], tmp_path: Path, qtbot: QtBot) -> None:
    ats = [RunAt(written(tmp_path, name).path) for name in "abc"]
    comparing = make()
    comparing.add(ats)
    comparing.set_baseline(ats[2])
    settled(qtbot, comparing, "step", [4.0, 4.0, 4.0])
    assert comparing.comparison is not None and comparing.comparison.baseline == 2
    comparing.remove(ats[0])
    assert (comparing.ats, comparing.baseline) == (ats[1:], 1)
    comparing.remove(ats[2])
    assert (comparing.ats, comparing.baseline) == ([ats[1]], 0)
    comparing.remove(ats[1])
    assert (comparing.ats, comparing.baseline, comparing.comparison) == ([], 0, None)


def test_what_cannot_be_added_is_said(make: Callable[[], Comparing], tmp_path: Path) -> None:
    ats = [RunAt(written(tmp_path, f"run {number}").path) for number in range(MOST_RUNS + 1)]
    comparing = make()
    assert comparing.add(ats) == ["At most 8 runs can be compared: take one out first."]
    assert comparing.ats == ats[:MOST_RUNS]
    comparing.remove(ats[0])
    assert comparing.add([ats[1]]) == ["It is in this comparison already."]
    assert comparing.add([RunAt(tmp_path)]) == [f"{tmp_path} is not the folder of a run."]
    assert comparing.ats == ats[1:MOST_RUNS]


def test_a_comparison_comes_back_without_what_is_gone(
    make: Callable[[], Comparing], tmp_path: Path, qtbot: QtBot
) -> None:
    a, b = written(tmp_path, "a"), written(tmp_path, "b")
    b.begin(1, device_infos(2), steps=8, attempt=1)
    b.writer("rank-0", 1).write(events.Restored(rank=0, step=2))
    b.steps(0, 3, [0.2], attempt=1)
    b.end()
    comparing = make()
    comparing.add([RunAt(a.path), RunAt(b.path, 0), RunAt(b.path, 1)])
    comparing.set_baseline(RunAt(b.path, 1))
    again = make()
    assert again.restore(comparing.saved()) == []
    assert (again.ats, again.baseline) == (comparing.ats, 2)
    settled(qtbot, again, "step", [4.0, 4.0, 3.0])
    assert again.runs[1].other_attempts == []  # alone
    a.path.rename(tmp_path / "moved")
    rest = make()
    assert rest.restore(comparing.saved()) == [f"{a.path} is not the folder of a run."]
    assert (rest.ats, rest.baseline) == ([RunAt(b.path, 0), RunAt(b.path, 1)], 1)
    for damaged in ({}, {"runs": 3}, {"runs": [None, 1], "baseline": "x"}, {"runs": [], "baseline": 7}, None):
        assert make().restore(damaged) == []


def test_recent_comparisons_are_kept(qapp: QCoreApplication, tmp_path: Path) -> None:
    file, parent = tmp_path / "state/comparisons.json", qapp
    recent = RecentComparisons(file, parent)
    a, b, c = (
        RunAt(Path(f"/runs/{name}"), attempt) for name, attempt in (("a", None), ("b", 0), ("c", None))
    )
    recent.note([a])
    recent.note([a, b])
    recent.note([a, b, c], before=[a, b])
    recent.note([a, c])
    recent.note([c, a])
    assert recent.all == [(c, a), (a, b, c)]
    recent.close()
    assert RecentComparisons(file, parent).all == [(c, a), (a, b, c)]
    for number in range(MOST + 3):
        recent.note([a, RunAt(Path(f"/runs/{number}"))])
    assert len(recent.all) == MOST
    recent.close()
    for damaged in ("", "[]", '{"recent": [[1], ["/a"], 3]}', '{"recent": null}'):
        file.write_text(damaged)
        assert RecentComparisons(file, parent).all == []
