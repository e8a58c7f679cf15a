"""A race's folder, read while it is written."""

from __future__ import annotations

from pathlib import Path

from pytestqt.qtbot import QtBot

from rankdeck import events
from rankdeck.run.race import RUNNING, entry_run
from rankdeck_app.state.draft_race import RaceMonitor
from tests.helpers.written_race import WrittenRace, make_entry

WAIT_MS = 10_000


def test_a_race_is_polled_while_visible_and_running(qtbot: QtBot, tmp_path: Path) -> None:
    written = WrittenRace(tmp_path)
    race = written.write(make_entry(1, "single"), make_entry(2, "ddp", None, state=RUNNING))
    watch = RaceMonitor(written.folder.path)
    assert watch.race is None and not watch.is_over
    with qtbot.waitSignal(watch.changed, timeout=WAIT_MS):
        watch.set_active(True)
    assert watch.race == race and watch.snapshot.step == 0
    # How far the entry that runs has come stands in its own files.
    run = entry_run(written.folder, race.entries[1])
    for folder in (run.events_folder, run.logs_folder):
        folder.mkdir(parents=True)
    supervisor, rank = run.writer("supervisor"), run.writer("rank-0")
    with qtbot.waitSignal(watch.changed, timeout=WAIT_MS):
        started = events.RunStarted(run="r", attempt=0, world_size=1, devices=[], started=0.0, strategy="ddp")
        supervisor.write(started)
        rank.write(events.Steps(rank=0, first=1, ended=[1.0] * 7, step_s=[1.0] * 7))
    supervisor.close()
    rank.close()
    qtbot.waitUntil(lambda: watch.snapshot.step == 7, timeout=WAIT_MS)
    with qtbot.waitSignal(watch.changed, timeout=WAIT_MS):
        written.write(make_entry(1, "single"), make_entry(2, "ddp"), outcome="completed")
    assert watch.is_over and watch.snapshot.step == 0
    written.lose()
    watch.close()


def test_a_deleted_race_is_over(qtbot: QtBot, tmp_path: Path) -> None:
    watch = RaceMonitor(tmp_path / "gone")
    with qtbot.waitSignal(watch.changed, timeout=WAIT_MS):
        watch.set_active(True)
    assert watch.is_over and watch.race is None
    watch.close()
