"""Races from Python: refused in a caller's words, and read from the race's folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rankdeck
from rankdeck.base.errors import ConfigError, Problem, RankdeckError, TrainingError
from rankdeck.run.race import FAILED, RUNNING
from tests.helpers.racing import plan_line
from tests.helpers.written_race import STEPS, WrittenRace, make_entry, shifted_losses

TINY: dict[str, Any] = {
    "model": {"use": "mlp", "args": {"hidden": [8]}},
    "data": {"use": "digits"},
    "train": {"steps": 30, "global_batch": 16},
    "devices": {"use": "cpu:1"},
}


@pytest.fixture
def written(tmp_path: Path) -> Iterator[WrittenRace]:
    race = WrittenRace(tmp_path / "runs")
    yield race
    race.lose()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 5}, "steps = 5 is not a valid number of steps"),
        ({"steps": 5.5}, "steps = 5.5 is not a valid number"),
        ({"only": []}, "only = [] is not a list of strategies"),
        ({"only": 3}, "only = 3 is not a list"),
        ({"only": ["ddp", ""]}, "is not a list of strategies"),
        ({"devices": 2}, "devices = 2 is not a string"),
        ({"overrides": {"train.global_bach": 3}}, "global_bach"),
    ],
)
def test_wrong_arguments_are_refused_before_a_race_starts(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(RankdeckError) as refused:
        rankdeck.race(TINY, **wrong)
    assert message in f"{refused.value} {refused.value.problem.message}"


def test_a_race_is_read_from_its_folder(written: WrittenRace, tmp_path: Path) -> None:
    written.folder.request_file.write_text("[train]\nsteps = 77\n[devices]\nuse = 'cpu:2'\n")
    written.write(
        make_entry(1, "single", 0.3), make_entry(2, "ddp", 0.1), make_entry(3, "fsdp", None, state=RUNNING)
    )
    raced = rankdeck.Raced(written.folder.path)
    assert (raced.name, raced.path, raced.outcome) == (written.folder.name, written.folder.path, "running")
    assert [entry.label for entry in raced.entries] == ["single", "ddp", "fsdp"]
    assert (raced.fastest, raced.winner) == ("ddp", "ddp") and raced.check() is raced
    assert repr(raced) == f"<Raced {raced.name}: running, 2 of 3, ddp fastest>"
    config = raced.config("ddp")
    assert (config.strategy.use, config.train.steps) == ("ddp", 77)
    assert raced.run("ddp").path == written.folder.path / "entries/2-ddp"
    with pytest.raises(ConfigError, match="no entry 'dp'") as missing:
        raced.run("dp")
    assert missing.value.advice == "Entries: single, ddp, fsdp."
    with pytest.raises(RankdeckError, match="did not finish within 0 s"):
        raced.wait(0.0)
    written.folder.file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        print(raced.outcome)


def test_a_rehearsal_has_no_winner_and_check_raises_failures(
    written: WrittenRace, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = make_entry(2, "dp", None, state=FAILED)
    failed.problem = Problem("out-of-memory", "Device 0 ran out of memory.")
    written.write(
        make_entry(1, "single"),
        failed,
        make_entry(3, "ddp", losses=shifted_losses(0.5)),
        kind="virtual",
        outcome="completed",
    )
    written.lose()
    written.lose = lambda: None  # type: ignore[method-assign]
    raced = rankdeck.Raced(written.folder.path)
    assert (raced.fastest, raced.winner) == ("single", None)
    assert raced.wait(progress=True) is raced and raced.stop() is raced
    rows = [text.split()[:2] for text in capsys.readouterr().out.splitlines() if "/4  " in text]
    assert rows == [["1/4", "single"], ["2/4", "dp"], ["3/4", "ddp"]]
    with pytest.raises(TrainingError, match="dp failed; losses of ddp differ") as wrong:
        raced.check()
    assert [problem.code for problem in wrong.value.problems] == ["out-of-memory"]
    assert raced.facts["steps"] == STEPS and raced.facts["race"] == raced.name
    assert plan_line("ddp").label == raced.entries[2].label


@pytest.mark.slow
def test_a_race_runs_and_returns_the_configuration_of_an_entry(tmp_path: Path) -> None:
    raced = rankdeck.race(TINY, only="single", steps=20, runs=tmp_path / "runs", progress=False)
    assert raced.outcome == "completed" and raced.check().fastest == "single"
    assert len(raced.run("single").loss) == 20
    assert raced.config("single").train.steps == 30
    with pytest.raises(ConfigError) as refused:
        rankdeck.race(TINY, only="pipeline-async", steps=20, runs=tmp_path / "runs")
    assert refused.value.problem.code in ("nothing-fits", "nothing-to-race")
    later = rankdeck.race(TINY, only="single", steps=1000, runs=tmp_path / "runs", wait=False)
    assert later.outcome == "running" and later.stop().outcome == "stopped"
