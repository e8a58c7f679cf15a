"""A comparison follows its runs, refuses in words, and comes back as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication
from pytestqt.qtbot import QtBot

from rankdeck import events
from rankdeck.compare.run_ref import MAX_RUNS, RunRef
from rankdeck_app.state.run_comparison import RunComparison
from rankdeck_app.state.state_file import MAX_RECENT, RecentComparisons
from tests.helpers.written_run import WrittenRun, device_infos


@pytest.fixture
def make(qapp: QCoreApplication) -> Iterator[Callable[[], RunComparison]]:
    comparisons: list[RunComparison] = []

    def make_one() -> RunComparison:
        comparisons.append(RunComparison())
        return comparisons[-1]

    yield make_one
    for comparison in comparisons:
        comparison.close()


def write_run(tmp_path: Path, name: str, step_s: float = 0.5, *, over: bool = True) -> WrittenRun:
    run = WrittenRun(tmp_path / "runs", name)
    run.start(1, device_infos(2), steps=8)
    run.write_steps(0, 1, [4.0, 3.0, 2.0, 1.0], step_s=step_s)
    if over:
        run.end()
    return run


def wait_for_values(qtbot: QtBot, comparing: RunComparison, key: str, values: list[float | None]) -> None:
    def is_settled() -> bool:
        comparing.drain()
        comparison = comparing.comparison
        return comparison is not None and [run.value(key) for run in comparison.runs] == values

    qtbot.waitUntil(is_settled, timeout=10_000)


def test_live_and_finished_runs_are_compared(
    make: Callable[[], RunComparison], tmp_path: Path, qtbot: QtBot
) -> None:
    done, live = write_run(tmp_path, "done"), write_run(tmp_path, "live", over=False)
    comparing = make()
    assert comparing.add([RunRef(done.path), RunRef(live.path)]) == [] and comparing.comparison is None
    wait_for_values(qtbot, comparing, "step", [4.0, 4.0])
    assert comparing.comparison is not None
    assert [run.outcome for run in comparing.comparison.runs] == ["completed", "running"]
    assert comparing.title() == "done / live"
    live.write_steps(0, 5, [0.5, 0.4])
    wait_for_values(qtbot, comparing, "step", [4.0, 6.0])
    live.end("stopped")
    qtbot.waitUntil(lambda: not comparing.drain() and comparing.comparison.runs[1].outcome == "stopped")  # type: ignore[func-returns-value, union-attr]


def test_the_baseline_stays_with_its_run(
    make: Callable[[], RunComparison], tmp_path: Path, qtbot: QtBot
) -> None:
    ats = [RunRef(write_run(tmp_path, name).path) for name in "abc"]
    comparing = make()
    comparing.add(ats)
    comparing.set_baseline(ats[2])
    wait_for_values(qtbot, comparing, "step", [4.0, 4.0, 4.0])
    assert comparing.comparison is not None and comparing.comparison.baseline == 2
    comparing.remove(ats[0])
    assert (comparing.refs, comparing.baseline) == (ats[1:], 1)
    comparing.remove(ats[2])
    assert (comparing.refs, comparing.baseline) == ([ats[1]], 0)
    comparing.remove(ats[1])
    assert (comparing.refs, comparing.baseline, comparing.comparison) == ([], 0, None)


def test_refused_runs_are_explained(make: Callable[[], RunComparison], tmp_path: Path) -> None:
    ats = [RunRef(write_run(tmp_path, f"run {number}").path) for number in range(MAX_RUNS + 1)]
    comparing = make()
    assert comparing.add(ats) == ["You can compare at most 8 runs. Remove a run from the comparison first."]
    assert comparing.refs == ats[:MAX_RUNS]
    comparing.remove(ats[0])
    assert comparing.add([ats[1]]) == ["This run is already in the comparison."]
    assert comparing.add([RunRef(tmp_path)]) == [f"{tmp_path} is not a run folder."]
    assert comparing.refs == ats[1:MAX_RUNS]


def test_a_comparison_is_restored_without_deleted_runs(
    make: Callable[[], RunComparison], tmp_path: Path, qtbot: QtBot
) -> None:
    a, b = write_run(tmp_path, "a"), write_run(tmp_path, "b")
    b.start(1, device_infos(2), steps=8, attempt=1)
    b.writer("rank-0", 1).write(events.Restored(rank=0, step=2))
    b.write_steps(0, 3, [0.2], attempt=1)
    b.end()
    comparing = make()
    comparing.add([RunRef(a.path), RunRef(b.path, 0), RunRef(b.path, 1)])
    comparing.set_baseline(RunRef(b.path, 1))
    again = make()
    assert again.restore_state(comparing.save_state()) == []
    assert (again.refs, again.baseline) == (comparing.refs, 2)
    wait_for_values(qtbot, again, "step", [4.0, 4.0, 3.0])
    assert again.runs[1].other_attempts == []  # alone
    a.path.rename(tmp_path / "moved")
    restored = make()
    assert restored.restore_state(comparing.save_state()) == [f"{a.path} is not a run folder."]
    assert (restored.refs, restored.baseline) == ([RunRef(b.path, 0), RunRef(b.path, 1)], 1)
    for damaged in ({}, {"runs": 3}, {"runs": [None, 1], "baseline": "x"}, {"runs": [], "baseline": 7}, None):
        assert make().restore_state(damaged) == []


def test_recent_comparisons_are_saved(qapp: QCoreApplication, tmp_path: Path) -> None:
    file, parent = tmp_path / "state/comparisons.json", qapp
    recent = RecentComparisons(file, parent)
    a, b, c = (
        RunRef(Path(f"/runs/{name}"), attempt) for name, attempt in (("a", None), ("b", 0), ("c", None))
    )
    recent.add([a])
    recent.add([a, b])
    recent.add([a, b, c], before=[a, b])
    recent.add([a, c])
    recent.add([c, a])
    assert recent.comparisons == [(c, a), (a, b, c)]
    recent.close()
    assert RecentComparisons(file, parent).comparisons == [(c, a), (a, b, c)]
    for number in range(MAX_RECENT + 3):
        recent.add([a, RunRef(Path(f"/runs/{number}"))])
    assert len(recent.comparisons) == MAX_RECENT
    recent.close()
    for damaged in ("", "[]", '{"recent": [[1], ["/a"], 3]}', '{"recent": null}'):
        file.write_text(damaged)
        assert RecentComparisons(file, parent).comparisons == []
