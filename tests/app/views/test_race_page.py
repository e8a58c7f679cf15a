"""The tab of a race: what its rows say, and what can be done from it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPushButton
from pytestqt.qtbot import QtBot

from rankdeck.base.errors import Problem
from rankdeck.run.race import RUNNING, WAITING, LeftOut, Race
from rankdeck_app.composition import App
from rankdeck_app.state.draft_race import RaceSeen
from rankdeck_app.views.plan.page import PlanPage
from rankdeck_app.views.race import race_figures
from rankdeck_app.views.race.page import RacePage
from rankdeck_app.views.race.table import ROW_HEIGHT, RaceColumns
from tests.helpers.app_window import open_run, settle
from tests.helpers.told_race import WrittenRace, entry, judged, off
from tests.helpers.verified import raced_as

WAIT_MS = 10_000


def figures(race: Race, step: int = 0) -> list[race_figures.RaceRow]:
    return race_figures.rows(RaceSeen(race, step))


def test_rows_stand_by_step_time_and_what_runs_or_failed_below_them() -> None:
    entries = [
        entry(1, "single", 0.3),
        entry(2, "dp", None),
        entry(3, "ddp", 0.1),
        entry(4, "single", 0.3, repeats=1),
    ]
    entries[1].problem = Problem("out-of-memory", "Device 0 ran out of memory.", advice="Use fsdp.")
    running = [
        entries[0],
        entries[1],
        entry(3, "model", 0.2),
        entry(4, "ddp", None, state=RUNNING),
        entry(5, "fsdp", None, state=WAITING),
    ]
    shown = figures(judged(*running), step=5)
    assert [row.title for row in shown] == ["Model parallel", "Single", "DDP", "FSDP", "DP"]
    assert [row.share for row in shown] == [None, None, 0.2, None, None]
    assert (shown[4].words, shown[3].words) == ("Device 0 ran out of memory.", "waiting")
    told = {stat.label: stat.value for stat in race_figures.stats(RaceSeen(judged(*running)))}
    assert told["Raced"] == "3 of 5" and told["Fastest so far: Model parallel"] == "200 ms"
    assert told["Time left"] == "about 3.0 s"

    lost = [LeftOut(label="tensor, plan = x", verdict="cannot", reason="No layer can be split.")]
    over = judged(*entries, outcome="completed", left_out=lost)
    shown = figures(over)
    assert [row.title for row in shown] == ["DDP", "Single", "DP", "Tensor parallel"]
    assert [row.place for row in shown] == ["1", "2", "", ""] and [row.is_fastest for row in shown][:2] == [
        True,
        False,
    ]
    assert shown[3].words == "Left out: No layer can be split." and shown[3].key < 0
    assert (shown[0].time, shown[0].rate) == ("100 ms", "10.0 samples/s")
    assert (shown[0].peak, shown[0].predicted_peak, shown[0].sent) == ("4.9 KiB", "plan 4.9 KiB", "2.0 KiB")
    assert (
        shown[0].description.startswith("place 1, DDP, 100 ms a step")
        and "losses agree" in shown[0].description
    )
    assert [stat.value for stat in race_figures.stats(RaceSeen(over))] == [
        "3 of 3",
        "2 of 2",
        "100 ms",
        "+0 %",
    ]
    assert len(list(race_figures.csv_rows(RaceSeen(over)))) == 1 + 3 * 25


@pytest.mark.parametrize(
    ("other", "words", "tone", "note"),
    [
        ({}, "agree", "ok", "to the last bit"),
        ({"losses": off(1e-6)}, "agree", "ok", "1e-06 apart"),
        ({"losses": off(0.5)}, "differ", "error", "50 % apart"),
        ({"losses": off(0.5), "compress": "fp16"}, "as expected", "muted", "50 % apart"),
    ],
)
def test_losses_are_told_in_words_and_what_differs_says_why(
    other: dict[str, Any], words: str, tone: str, note: str
) -> None:
    race = judged(entry(1, "single"), entry(2, "ddp", **other))
    row = figures(race)[1]
    assert (row.losses, row.tone, row.losses_note) == (words, tone, note)
    assert any("not those of single" in said for said in race_figures.notes(race)) is (words == "differ")


def test_whether_an_entry_equals_one_device_is_told_where_it_is_known() -> None:
    race = judged(entry(1, "single"), raced_as("equal", entry(2, "ddp")), raced_as("noted", entry(3, "fsdp")))
    single, ddp, _ = figures(race)
    assert "One device: equal" in ddp.description and "Verified: equals one device" in ddp.tooltip
    assert "One device" not in single.description
    said = race_figures.notes(race)
    assert "Verified: 1 of 2 equal one device." in said
    assert "fsdp: Verified: equals one device but for its batch norms." in said


@pytest.mark.parametrize("widest_name", [40, 400])
@pytest.mark.parametrize("width", [230, 300, 439, 519, 560, 619, 660, 699, 700, 899, 900, 1300, 2000])
def test_columns_stand_beside_each_other_at_every_width(qapp: object, width: int, widest_name: int) -> None:
    columns = RaceColumns(width, widest_name)
    parts = [
        (columns.place, columns.place_width),
        (columns.icon, 16),
        (columns.name, columns.name_width),
        (columns.bar, columns.bar_width),
        (columns.step, columns.step_width),
        (columns.peak, columns.peak_width),
        (columns.sent, columns.sent_width),
        (columns.losses, columns.losses_width),
    ]
    for (left, size), (following, _) in itertools.pairwise(parts):
        assert left + size <= following, parts
    assert columns.losses + columns.losses_width <= width


@pytest.fixture
def written(tmp_path: Path) -> Iterator[WrittenRace]:
    made = WrittenRace(tmp_path / "rankdeck-runs")
    yield made
    made.lose()


def opened(qtbot: QtBot, app: App, written: WrittenRace) -> RacePage:
    open_run(app, written.folder.path)
    page = app.window.editor.active_page()
    assert isinstance(page, RacePage)
    qtbot.waitUntil(lambda: bool(page.table.rows.figures), timeout=WAIT_MS)
    return page


def test_a_running_race_is_shown_as_it_goes_on_and_stopped_from_its_tab(
    qtbot: QtBot, app: App, written: WrittenRace
) -> None:
    written.write(entry(1, "single"), entry(2, "ddp", None, state=RUNNING), kind="virtual")
    page = opened(qtbot, app, written)
    name = written.folder.name
    day = f"{name[:4]}-{name[4:6]}-{name[6:8]}"
    assert page.breadcrumbs() == ["runs", day, name.split("-", 2)[2], "Race"]
    assert page.title == "Race · GPT · 2" and race_figures.NOT_OF_GPUS in page.notes.text()
    assert page.table.currentIndex().row() == 1, "the one that runs"
    assert page.stop_button.isVisible() and not page.winner_button.isVisible()
    assert all(button.accessibleName() or button.text() for button in page.findChildren(QPushButton))
    page.stop_button.setFocus()
    qtbot.keyClick(page.stop_button, Qt.Key.Key_Space)
    assert page.stop_button.text() == "Stopping…"
    qtbot.waitUntil(written.folder.stop_request.exists, timeout=60_000)
    written.write(
        entry(1, "single"), entry(2, "ddp", None, state="stopped"), kind="virtual", outcome="stopped"
    )
    qtbot.waitUntil(lambda: not page.stop_button.isVisible(), timeout=WAIT_MS)
    assert page.notes.text().startswith("Stopped: what was measured until then is kept.")


def test_in_a_low_window_the_page_scrolls_and_three_rows_are_seen(
    qtbot: QtBot, app: App, written: WrittenRace
) -> None:
    written.write(entry(1, "single"), entry(2, "ddp", None, state=RUNNING), kind="virtual")
    page = opened(qtbot, app, written)
    app.window.resize(800, 420)
    settle()
    assert page.height() < 300 and page.table.viewport().height() >= 3 * ROW_HEIGHT
    assert page.strip.height() == page.strip.minimumHeight() and page._card.height() > 200


def test_the_key_that_stops_a_run_stops_the_race_that_is_on_show(
    qtbot: QtBot, app: App, written: WrittenRace
) -> None:
    assert not app.window.commands.enabled("race.stop")
    written.write(entry(1, "single"), entry(2, "ddp", None, state=RUNNING), kind="virtual")
    page = opened(qtbot, app, written)
    qtbot.waitUntil(lambda: app.window.commands.enabled("race.stop"), timeout=WAIT_MS)
    qtbot.waitActive(app.window)
    qtbot.keyClick(app.window, Qt.Key.Key_F5, Qt.KeyboardModifier.ShiftModifier)
    assert page.stop_button.text() == "Stopping…"
    qtbot.waitUntil(written.folder.stop_request.exists, timeout=60_000)
    app.window.editor.open("welcome:")
    assert not app.window.commands.enabled("race.stop"), "no race is on show"


def test_enter_opens_the_run_of_an_entry_and_one_that_has_none_is_said(
    qtbot: QtBot, app: App, written: WrittenRace
) -> None:
    race = written.write(entry(1, "single"), entry(2, "ddp", None, state=WAITING))
    run = written.folder.path / race.entries[0].folder
    (run / "events").mkdir(parents=True)
    (run / "config.toml").write_text("")
    page = opened(qtbot, app, written)
    page.table.setFocus()
    qtbot.keyClick(page.table, Qt.Key.Key_Down)
    qtbot.keyClick(page.table, Qt.Key.Key_Return)
    assert app.window.editor.active_page() is page
    qtbot.keyClick(page.table, Qt.Key.Key_Up)
    qtbot.keyClick(page.table, Qt.Key.Key_Return)
    app.session.disk.settle()
    active = app.window.editor.active_page()
    assert active is not None and active.page_id == f"run:{run}"


def test_the_winner_of_a_race_on_gpus_becomes_the_configurations_strategy(
    qtbot: QtBot, app: App, written: WrittenRace
) -> None:
    winner = entry(2, "ddp", 0.1, bucket_mb=50.0)
    written.write(entry(1, "single", 0.3), winner, outcome="completed")
    page = opened(qtbot, app, written)
    assert page.winner_button.isVisible() and not page.stop_button.isVisible()
    page.winner_button.click()
    assert app.session.draft.value(("strategy",)) == {"use": "ddp", "bucket_mb": 50.0}


def test_a_race_without_a_result_says_so_and_is_raced_again(
    qtbot: QtBot, app: App, written: WrittenRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = app.session.draft.config
    assert config is not None
    written.folder.asked.write_text(config.to_toml())
    again = entry(3, "single", 0.715, repeats=1)
    written.write(entry(1, "single", 0.316), entry(2, "dp", 0.196), again, outcome="completed")
    page = opened(qtbot, app, written)
    assert "Inconclusive: machine speed changed by 126 % during the race." in page.notes.text()
    assert "Fastest:" not in page.notes.text() and not page.winner_button.isVisible()
    assert [stat.value for stat in page.strip.figure] == ["2 of 2", "2 of 2", "inconclusive", "+126 %"]
    assert not any(row.is_fastest for row in page.table.rows.figures)
    asked: list[Any] = []
    engine, engine_race = app.session.engine, app.session.engine.race

    def race(*args: Any, **named: Any) -> Any:
        asked.append(named["options"])
        engine.python = "/bin/false"
        return engine_race(*args, **named)

    monkeypatch.setattr(engine, "race", race)
    page.again_button.click()
    qtbot.waitUntil(lambda: bool(asked), timeout=WAIT_MS)
    assert asked == [("--only", "single,dp", "--steps", "25")]
    qtbot.waitUntil(lambda: not app.launching.num_pending, timeout=WAIT_MS)


def test_a_race_is_asked_for_by_command_and_what_stands_in_its_way_is_said(
    qtbot: QtBot, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "race.start" in app.window.commands and app.window.keymap.text_for("race.start")
    asked: list[Any] = []
    monkeypatch.setattr(app.session.engine, "race", lambda *args, **named: asked.append(args))
    app.session.draft.set_value(("train", "global_batch"), 33)
    app.races.race_draft()
    (toast,) = app.window.toasts.all_shown
    assert not asked and "The race did not start" in toast.accessibleName() + toast.accessibleDescription()


def test_a_race_of_the_folder_is_beside_the_plan_of_the_app(
    qtbot: QtBot, app: App, written: WrittenRace
) -> None:
    config = app.session.draft.config
    assert config is not None
    written.folder.asked.write_text(config.to_toml())
    written.write(entry(1, "single", 0.3), kind="virtual", outcome="completed")
    app.actions.show_plan()
    raced = app.session.raced
    qtbot.waitUntil(lambda: raced.race is not None, timeout=WAIT_MS)
    page = app.window.editor.page("plan:")
    assert isinstance(page, PlanPage)
    qtbot.waitUntil(lambda: "in rehearsal" in page.race_words.text(), timeout=WAIT_MS)
    assert not page.winner_button.isVisible()
    page._open_race()
    active = app.window.editor.active_page()
    assert active is not None and active.page_id == f"race:{written.folder.path}"
