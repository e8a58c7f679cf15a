"""How long a run lasted: the time of its attempts, as a list's row and the fold of its events tell it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from rankdeck import events
from rankdeck.run.attempt import spells_of
from rankdeck.run.fold import read_fold
from rankdeck.run.row import read_info
from rankdeck.run.spells import Spell, lasted_s
from tests.helpers.written_run import WrittenRun, backdated, device_infos

BEGAN = 1000.0
LATER = BEGAN + 10**6


def attempt(run: WrittenRun, number: int, began: float, *told: float, ended: float | None = None) -> None:
    """One that was announced, whose rank told something at these moments."""
    started = events.RunStarted(
        run=run.dir.name, attempt=number, world_size=1, devices=device_infos(1), started=began
    )
    lines: list[tuple[float, events.Event]] = [(began + 1, started)]
    if ended is not None:
        lines.append((ended, events.RunEnded(outcome="stopped", exit_code=0, attempt=number)))
    backdated(run.dir.events_folder / f"supervisor.{number}.jsonl", lines)
    ranks = [(t, events.Phase(rank=0, phase="training")) for t in told]
    backdated(run.dir.events_folder / f"rank-0.{number}.jsonl", ranks)


def spells(run: WrittenRun) -> tuple[Spell, ...]:
    """Of the row and of the fold, which say the same."""
    info = read_info(run.dir)
    told = spells_of(read_fold(run.dir).attempts.values(), is_over=not info.is_alive)
    assert info.spells == tuple(told)
    return info.spells


@pytest.mark.parametrize(
    ("told", "now", "expected"),
    [
        ([], LATER, None),
        ([Spell(10, 15), Spell(100, 107)], LATER, 12.0),
        ([Spell(10, 15), Spell(100)], 103, 8.0),
        ([Spell(10, 15), Spell(100, 107)], 60, 5.0),
        ([Spell(10, 15), Spell(10, 18)], LATER, 8.0),
        ([Spell(10)], 5, 0.0),
    ],
)
def test_a_run_lasted_as_long_as_its_spells_until_then(
    told: Iterable[Spell], now: float, expected: float | None
) -> None:
    assert lasted_s(told, now) == expected


def test_the_time_in_which_a_run_lay_stopped_is_none_of_its_own(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    attempt(run, 0, BEGAN, BEGAN + 30, ended=BEGAN + 40)
    attempt(run, 1, BEGAN + 5000, BEGAN + 5020)
    assert spells(run) == ((BEGAN, BEGAN + 40), (BEGAN + 5000, None)), "it goes on"
    attempt(run, 1, BEGAN + 5000, BEGAN + 5020, ended=BEGAN + 5060)
    assert spells(run) == ((BEGAN, BEGAN + 40), (BEGAN + 5000, BEGAN + 5060)), "only its guard is still there"
    run.end("stopped")
    assert lasted_s(spells(run), LATER) == 100


def test_an_attempt_that_was_lost_counts_until_the_last_that_it_told(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    attempt(run, 0, BEGAN, BEGAN + 30, BEGAN + 70)
    assert spells(run) == ((BEGAN, None),)
    run.lose()
    assert spells(run) == ((BEGAN, BEGAN + 70),)
    attempt(run, 1, BEGAN + 5000, ended=BEGAN + 5010)
    assert lasted_s(spells(run), LATER) == 80


def test_a_run_that_is_being_resumed_lasts_no_longer_until_its_attempt_is_announced(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    attempt(run, 0, BEGAN, BEGAN + 30)
    (run.path / "config.1.toml").write_bytes(run.dir.config_file.read_bytes())
    info = read_info(run.dir)
    assert info.is_alive and info.spells == ((BEGAN, BEGAN + 30),)
    run.lose()
