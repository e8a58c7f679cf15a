"""Which ranks lack events, since which step, and why."""

from __future__ import annotations

from pathlib import Path

from rankdeck import events
from rankdeck.base.heartbeat import Beat, finished_phase
from rankdeck.launch.lost_events import disk_problem, find_lost_events
from tests.helpers.written_run import WrittenRun


def test_lost_events_name_ranks_and_the_step_before_the_gap(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path)
    run.write_steps(0, 1, [1.0, 1.0])
    run.writer("rank-0").write(events.Dropped(lines=3, reason="No space left on device"))
    run.write_steps(0, 9, [1.0])
    run.write_steps(1, 1, [1.0])
    run.writer("rank-2").write(events.RankStarted(rank=2, pid=1, devices=[0], uuids=[None]))
    run.lose()
    lost = find_lost_events(
        run.dir, 0, {1: Beat(9, finished_phase(0, 0), 0.0), 2: Beat(9, finished_phase(5, 28), 0.0)}
    )
    assert [(event.rank, event.lines, event.after_step) for event in lost] == [(0, 3, 2), (2, 5, None)]
    problem = disk_problem(lost[0].reason, 8, lost)
    assert problem.message == (
        "No space left on device: 8 lines of the run's events could not be written "
        "(rank 0 after step 2, rank 2 before its first step)."
    )
    assert "4 more ranks" in disk_problem("x", 8, lost * 4).message
