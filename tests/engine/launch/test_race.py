"""A race of real runs under real guards: its locks, what it keeps, and how it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from rankdeck.base.errors import DeviceError, RankdeckError
from rankdeck.base.files import lease_holder
from rankdeck.cli.race import race_facts, save_winner
from rankdeck.config import load
from rankdeck.launch.race import RaceRunner
from rankdeck.run.prediction import read_prediction
from rankdeck.run.race import RaceEntry, entry_run, read_race
from rankdeck.run_dir import RaceDir, list_folder, list_races, list_runs
from tests.helpers.fake_racer import PEAK_BYTES
from tests.helpers.processes import processes_of_run
from tests.helpers.racing import UNSYNCED, UUIDS, fake_gpus, race_request, run_race, start_racer
from tests.helpers.waiting import wait_until

TINY = {
    "model": {"use": "mlp", "args": {"hidden": [16]}},
    "train": {"steps": 40, "global_batch": 16, "optimizer": {"use": "sgd", "lr": 0.1}},
}


def test_a_race_with_a_removed_folder_reports_it(tmp_path: Path) -> None:
    with (
        pytest.raises(RankdeckError) as caught,
        RaceRunner(race_request(tmp_path, ["single", "ddp"])) as racing,
    ):
        shutil.rmtree(tmp_path / "runs")
        racing.start(racing.race.entries[0])
    assert caught.value.code == "removed" and "because its folder was removed" in caught.value.message


def test_a_race_holds_its_gpus_throughout_and_continues_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = {"single": {"step_s": 0.2, "again_s": 0.21, "loss": 2.0}, "ddp": {"ends": "failing"}}
    monkeypatch.setenv("FAKE_RACE", json.dumps(fake))
    what = race_request(tmp_path, ["single", "ddp"], devices="gpu:0,1")
    leases: list[tuple[str, list[str | None]]] = []

    def see(racing: RaceRunner, entry: RaceEntry) -> None:
        leases.append((entry.label, [lease_holder(uuid) for uuid in UUIDS]))
        assert racing.folder.is_alive()
        if entry.number == 2:
            with pytest.raises(DeviceError, match=racing.folder.name), RaceRunner(what):
                pass

    with fake_gpus():
        racing = run_race(what, see)
    holders = [str(racing.folder.path)] * 2
    assert leases == [("single", holders), ("ddp", holders), ("single", holders)]
    assert [lease_holder(uuid) for uuid in UUIDS] == [None, None] and not racing.folder.is_alive()

    race = read_race(racing.folder)
    assert race is not None and race == racing.race
    assert [(entry.state, entry.repeats) for entry in race.entries] == [
        ("completed", None),
        ("failed", None),
        ("completed", 1),
    ]
    assert race.entries[1].problem is not None and race.entries[1].problem.advice == "Use fsdp."
    assert race.outcome == "completed" and race.exit_code == 1
    assert race.verdicts.drift == pytest.approx(0.05) and race.verdicts.winner == 1
    first = race.entries[0].measured
    assert first is not None and len(first.step_s) == 20 and first.peak_bytes == [PEAK_BYTES]

    for entry in race.entries:
        run = entry_run(racing.folder, entry)
        assert not run.checkpoints_folder.exists() and not run.weights.exists()
        assert read_prediction(run) == entry.predicted
    # One row, and nothing beside it: neither entries nor what was refused meanwhile.
    assert [race_dir.path for race_dir in list_races(what.runs)] == [racing.folder.path]
    assert list_runs(what.runs) == [] == list_folder(what.runs)
    assert race_facts(racing.folder, race)["path"] == str(racing.folder.path)
    assert not racing.folder.request_file.stat().st_mode & 0o077, "it may hold secrets"

    save_winner(race, what.config, tmp_path / "winner.toml")
    saved = load(tmp_path / "winner.toml")
    assert (
        saved == what.config.model_copy(update={"strategy": saved.strategy})
        and saved.strategy.use == "single"
    )


def test_races_with_the_same_title_get_different_titles(tmp_path: Path) -> None:
    first, again = (race_request(tmp_path, ["single"], tables=TINY) for _ in range(2))
    other = race_request(tmp_path, ["single"], tables={**TINY, "train": {**TINY["train"], "seed": 3}})
    titles = []
    for what in (first, again, other):
        with RaceRunner(what) as racing:
            titles.append(racing.race.title)
    assert titles == ["Race · small", "Race · small #2", "Race · small · seed 3"]
    assert [race_dir.name[15:-5] for race_dir in list_races(what.runs)][:1] == ["-race-small-seed-3"]


def test_a_killed_racer_leaves_no_process_and_keeps_measurements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = {"single": {"step_s": 0.2, "loss": 2.0}, "ddp": {"ends": "hanging"}}
    monkeypatch.setenv("FAKE_RACE", json.dumps(fake))
    racer = start_racer(tmp_path, ["single", "ddp"])
    (folder,) = wait_until(lambda: list_races(tmp_path / "runs"), deadline_s=60)
    second = folder.entries_folder / "2-ddp"
    wait_until(lambda: list(second.glob("events/rank-*")), deadline_s=60, what="the second entry")
    os.kill(racer.pid, signal.SIGKILL)
    racer.wait()
    # The entry's guard ends it, and holds the leases until it has.
    wait_until(lambda: not folder.is_alive(), deadline_s=10, what="the end of the race")
    assert [lease_holder(uuid) for uuid in UUIDS] == [None, None]
    assert processes_of_run(second) == []
    race = read_race(RaceDir(folder.path))
    assert race is not None and race.outcome == "lost"
    assert [entry.state for entry in race.entries] == ["completed", "running"]


@pytest.mark.slow
def test_a_race_detects_ranks_without_gradient_sync(tmp_path: Path) -> None:
    # Otherwise the check before the first step refuses ddp, and the race has no losses to compare.
    tables = {**TINY, "train": {**TINY["train"], "verify": "off"}}
    racing = run_race(
        race_request(tmp_path, ["single", "ddp"], worker=UNSYNCED, tables=tables), max_entries=2
    )
    single, ddp = racing.race.entries
    assert single.state == ddp.state == "completed"
    assert single.agreement is not None and single.agreement.verdict == "reference"
    assert ddp.agreement is not None and ddp.agreement.verdict == "differs"
    assert racing.race.title == "Race · small"
    assert "In step 2, this entry's loss differs from that of single by " in (ddp.agreement.reason or "")
    assert racing.race.exit_code == 1 and racing.race.verdicts.fastest == single.number
