"""How long a run lasted: the time of its attempts, as a list's row and the fold of its events tell it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from rankdeck import events
from rankdeck.run.attempt import run_intervals
from rankdeck.run.row import read_info
from rankdeck.run.run_intervals import RunInterval, total_duration_s
from rankdeck.run.run_state import read_run_state
from tests.helpers.written_run import WrittenRun, device_infos, write_backdated

START_TIME = 1000.0
LATER = START_TIME + 10**6


def write_attempt(
    run: WrittenRun, number: int, start_time: float, *times: float, ended: float | None = None
) -> None:
    """One that was announced, whose rank times something at these moments."""
    started = events.RunStarted(
        run=run.dir.name, attempt=number, world_size=1, devices=device_infos(1), started=start_time
    )
    lines: list[tuple[float, events.Event]] = [(start_time + 1, started)]
    if ended is not None:
        lines.append((ended, events.RunEnded(outcome="stopped", exit_code=0, attempt=number)))
    write_backdated(run.dir.events_folder / f"supervisor.{number}.jsonl", lines)
    ranks = [(t, events.Phase(rank=0, phase="training")) for t in times]
    write_backdated(run.dir.events_folder / f"rank-0.{number}.jsonl", ranks)


def intervals_of(run: WrittenRun) -> tuple[RunInterval, ...]:
    """Of the row and of the fold, which say the same."""
    info = read_info(run.dir)
    intervals = run_intervals(read_run_state(run.dir).attempts.values(), is_over=not info.is_alive)
    assert info.intervals == tuple(intervals)
    return info.intervals


@pytest.mark.parametrize(
    ("intervals", "now", "expected"),
    [
        ([], LATER, None),
        ([RunInterval(10, 15), RunInterval(100, 107)], LATER, 12.0),
        ([RunInterval(10, 15), RunInterval(100)], 103, 8.0),
        ([RunInterval(10, 15), RunInterval(100, 107)], 60, 5.0),
        ([RunInterval(10, 15), RunInterval(10, 18)], LATER, 8.0),
        ([RunInterval(10)], 5, 0.0),
    ],
)
def test_a_run_lasts_the_sum_of_its_intervals(
    intervals: Iterable[RunInterval], now: float, expected: float | None
) -> None:
    assert total_duration_s(intervals, now) == expected


def test_the_time_between_attempts_is_not_counted(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    write_attempt(run, 0, START_TIME, START_TIME + 30, ended=START_TIME + 40)
    write_attempt(run, 1, START_TIME + 5000, START_TIME + 5020)
    assert intervals_of(run) == ((START_TIME, START_TIME + 40), (START_TIME + 5000, None)), "it goes on"
    write_attempt(run, 1, START_TIME + 5000, START_TIME + 5020, ended=START_TIME + 5060)
    assert intervals_of(run) == ((START_TIME, START_TIME + 40), (START_TIME + 5000, START_TIME + 5060)), (
        "only its guard is still there"
    )
    run.end("stopped")
    assert total_duration_s(intervals_of(run), LATER) == 100


def test_a_lost_attempt_counts_until_its_last_event(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    write_attempt(run, 0, START_TIME, START_TIME + 30, START_TIME + 70)
    assert intervals_of(run) == ((START_TIME, None),)
    run.lose()
    assert intervals_of(run) == ((START_TIME, START_TIME + 70),)
    write_attempt(run, 1, START_TIME + 5000, ended=START_TIME + 5010)
    assert total_duration_s(intervals_of(run), LATER) == 80


def test_a_resuming_run_lasts_longer_once_its_attempt_starts(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    write_attempt(run, 0, START_TIME, START_TIME + 30)
    (run.path / "config.1.toml").write_bytes(run.dir.config_file.read_bytes())
    info = read_info(run.dir)
    assert info.is_alive and info.intervals == ((START_TIME, START_TIME + 30),)
    run.lose()
