"""Which race's figures stand beside the plan: of the draft as it is, and dropped with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from rankdeck.run.race import RUNNING
from rankdeck.run.race_row import race_info
from rankdeck_app.state.draft_race import DraftRace
from rankdeck_app.state.runs import Runs
from tests.helpers.fake_plan import PlanWorld
from tests.helpers.racing import plan_line
from tests.helpers.written_race import WrittenRace, make_entry

WAIT_MS = 10_000


@pytest.fixture
def written(world: PlanWorld, tmp_path: Path) -> Iterator[WrittenRace]:
    """A race that goes on, of what the draft says."""
    written_race = WrittenRace(tmp_path / "runs")
    assert world.draft.config is not None
    written_race.folder.request_file.write_text(world.draft.config.to_toml())
    written_race.write(
        make_entry(1, "single", 0.3),
        make_entry(2, "ddp", 0.1, bucket_mb=50),
        make_entry(3, "dp", None, state=RUNNING),
    )
    yield written_race
    written_race.lose()


@pytest.fixture
def raced(world: PlanWorld, written: WrittenRace, tmp_path: Path) -> Iterator[DraftRace]:
    runs = Runs(tmp_path / "runs", world.parent)
    runs._set_infos([race_info(written.folder)])
    draft_race = DraftRace(world.draft, runs, world.parent)
    yield draft_race
    draft_race.close()


def test_a_race_of_the_draft_is_found_while_visible(
    qtbot: QtBot, raced: DraftRace, written: WrittenRace
) -> None:
    assert raced.race is None
    raced.set_wanted(True)
    qtbot.waitUntil(lambda: raced.race is not None, timeout=WAIT_MS)
    assert raced.path == written.folder.path and raced.is_running and raced.winner is None
    entry = raced.find_entry(plan_line("single"))
    assert entry is not None and entry.number == 1
    assert raced.find_entry(plan_line("ddp")) is None, "it raced with other options"
    entry = raced.find_entry(plan_line("ddp", bucket_mb=50))
    assert entry is not None and entry.number == 2
    written.write(make_entry(1, "single", 0.3), make_entry(2, "ddp", 0.1, bucket_mb=50), outcome="completed")
    qtbot.waitUntil(lambda: raced.winner is not None, timeout=WAIT_MS)
    assert raced.winner is not None and raced.winner.label == "ddp"


def test_a_relevant_change_of_the_draft_drops_the_race(
    qtbot: QtBot, world: PlanWorld, raced: DraftRace
) -> None:
    raced.set_wanted(True)
    qtbot.waitUntil(lambda: raced.race is not None, timeout=WAIT_MS)
    for key, value in ((("strategy", "use"), "fsdp"), (("train", "steps"), 77), (("name",), "other")):
        world.draft.set_values({key: value})
        assert raced.race is not None, key
    world.draft.set_values({("train", "global_batch"): 64})
    assert raced.race is None and raced.path is None
    world.draft.set_values({("train", "global_batch"): None})
    qtbot.waitUntil(lambda: raced.race is not None, timeout=WAIT_MS)
    world.draft.set_values({("devices", "use"): "cpu:3"})
    assert raced.race is None


def test_a_race_with_an_unreadable_configuration_is_ignored(
    qtbot: QtBot, raced: DraftRace, written: WrittenRace
) -> None:
    written.folder.request_file.write_bytes(b"\xff[")
    raced.set_wanted(True)
    qtbot.waitUntil(lambda: written.folder.path in raced._questions, timeout=WAIT_MS)
    assert raced.race is None
