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
from rankdeck.run.race import RUNNING, WAITING, ExcludedStrategy, Race
from rankdeck_app.composition import App
from rankdeck_app.state.draft_race import RaceSnapshot
from rankdeck_app.views.plan.page import PlanPage
from rankdeck_app.views.race import race_chart_data
from rankdeck_app.views.race.page import RacePage
from rankdeck_app.views.race.table import ROW_HEIGHT, RaceColumns
from tests.helpers.app_window import open_run, process_events
from tests.helpers.verified import with_race_verification
from tests.helpers.written_race import WrittenRace, judged_race, make_entry, shifted_losses

WAIT_MS = 10_000


def race_rows(race: Race, step: int = 0) -> list[race_chart_data.RaceRow]:
    return race_chart_data.rows(RaceSnapshot(race, step))


def test_rows_are_sorted_by_step_time() -> None:
    entries = [
        make_entry(1, "single", 0.3),
        make_entry(2, "dp", None),
        make_entry(3, "ddp", 0.1),
        make_entry(4, "single", 0.3, repeats=1),
    ]
    entries[1].problem = Problem("out-of-memory", "Device 0 ran out of memory.", advice="Use fsdp.")
    running = [
        entries[0],
        entries[1],
        make_entry(3, "model", 0.2),
        make_entry(4, "ddp", None, state=RUNNING),
        make_entry(5, "fsdp", None, state=WAITING),
    ]
    rows = race_rows(judged_race(*running), step=5)
    assert [row.title for row in rows] == ["Model parallel", "Single", "DDP", "FSDP", "DP"]
    assert [row.progress for row in rows] == [None, None, 0.2, None, None]
    assert (rows[4].status, rows[3].status) == ("Device 0 ran out of memory.", "waiting")
    stats = {stat.label: stat.value for stat in race_chart_data.stats(RaceSnapshot(judged_race(*running)))}
    assert stats["Raced"] == "3 of 5" and stats["Fastest so far: Model parallel"] == "200 ms"
    assert stats["Time left"] == "about 3.0 s"

    lost = [ExcludedStrategy(label="tensor, plan = x", verdict="cannot", reason="No layer can be split.")]
    over = judged_race(*entries, outcome="completed", left_out=lost)
    rows = race_rows(over)
    assert [row.title for row in rows] == ["DDP", "Single", "DP", "Tensor parallel"]
    assert [row.position for row in rows] == ["1", "2", "", ""] and [row.is_fastest for row in rows][:2] == [
        True,
        False,
    ]
    assert rows[3].status == "Left out: No layer can be split." and rows[3].key < 0
    assert (rows[0].time, rows[0].rate) == ("100 ms", "10.0 samples/s")
    assert (rows[0].peak, rows[0].predicted_peak, rows[0].sent) == ("4.9 KiB", "plan 4.9 KiB", "2.0 KiB")
    assert (
        rows[0].description.startswith("position 1, DDP, 100 ms a step")
        and "losses agree" in rows[0].description
    )
    assert [stat.value for stat in race_chart_data.stats(RaceSnapshot(over))] == [
        "3 of 3",
        "2 of 2",
        "100 ms",
        "+0 %",
    ]
    assert len(list(race_chart_data.csv_rows(RaceSnapshot(over)))) == 1 + 3 * 25


@pytest.mark.parametrize(
    ("other", "verdict", "tone", "note"),
    [
        ({}, "agree", "ok", "to the last bit"),
        ({"losses": shifted_losses(1e-6)}, "agree", "ok", "1e-06 apart"),
        ({"losses": shifted_losses(0.5)}, "differ", "error", "50 % apart"),
        ({"losses": shifted_losses(0.5), "compress": "fp16"}, "as expected", "muted", "50 % apart"),
    ],
)
def test_loss_verdicts_have_texts_and_reasons(
    other: dict[str, Any], verdict: str, tone: str, note: str
) -> None:
    race = judged_race(make_entry(1, "single"), make_entry(2, "ddp", **other))
    row = race_rows(race)[1]
    assert (row.losses, row.tone, row.losses_note) == (verdict, tone, note)
    assert any(
        "this entry's loss differs from that of single" in text for text in race_chart_data.notes(race)
    ) is (verdict == "differ")


def test_entries_show_their_verification() -> None:
    race = judged_race(
        make_entry(1, "single"),
        with_race_verification("equal", make_entry(2, "ddp")),
        with_race_verification("noted", make_entry(3, "fsdp")),
    )
    single, ddp, _ = race_rows(race)
    assert "One device: equal" in ddp.description and "Verified: matches one device" in ddp.tooltip
    assert "One device" not in single.description
    notes = race_chart_data.notes(race)
    assert "Verified: the same result as one device for 1 of 2." in notes
    assert "fsdp: Verified: matches one device except for its batch norms." in notes


@pytest.mark.parametrize("widest_name", [40, 400])
@pytest.mark.parametrize("width", [230, 300, 439, 519, 560, 619, 660, 699, 700, 899, 900, 1300, 2000])
def test_columns_do_not_overlap_at_any_width(qapp: object, width: int, widest_name: int) -> None:
    columns = RaceColumns(width, widest_name)
    extents = [
        (columns.position, columns.position_width),
        (columns.icon, 16),
        (columns.name, columns.name_width),
        (columns.bar, columns.bar_width),
        (columns.step, columns.step_width),
        (columns.peak, columns.peak_width),
        (columns.sent, columns.sent_width),
        (columns.losses, columns.losses_width),
    ]
    for (left, size), (following, _) in itertools.pairwise(extents):
        assert left + size <= following, extents
    assert columns.losses + columns.losses_width <= width


@pytest.fixture
def written(tmp_path: Path) -> Iterator[WrittenRace]:
    written_race = WrittenRace(tmp_path / "rankdeck-runs")
    yield written_race
    written_race.lose()


def open_race_page(qtbot: QtBot, app: App, written: WrittenRace) -> RacePage:
    open_run(app, written.folder.path)
    page = app.window.editor.active_page()
    assert isinstance(page, RacePage)
    qtbot.waitUntil(lambda: bool(page.table.row_model.rows), timeout=WAIT_MS)
    return page


def test_a_running_race_is_updated_and_stopped_from_its_tab(
    qtbot: QtBot, app: App, written: WrittenRace
) -> None:
    written.write(make_entry(1, "single"), make_entry(2, "ddp", None, state=RUNNING), kind="virtual")
    page = open_race_page(qtbot, app, written)
    name = written.folder.name
    day = f"{name[:4]}-{name[4:6]}-{name[6:8]}"
    assert page.breadcrumbs() == ["runs", day, name.split("-", 2)[2], "Race"]
    assert page.title == "Race · GPT · 2" and race_chart_data.CPU_TIMES_NOTE in page.notes_label.text()
    assert page.table.currentIndex().row() == 1, "the one that runs"
    assert page.stop_button.isVisible() and not page.winner_button.isVisible()
    assert all(button.accessibleName() or button.text() for button in page.findChildren(QPushButton))
    page.stop_button.setFocus()
    qtbot.keyClick(page.stop_button, Qt.Key.Key_Space)
    assert page.stop_button.text() == "Stopping…"
    qtbot.waitUntil(written.folder.stop_request.exists, timeout=60_000)
    written.write(
        make_entry(1, "single"),
        make_entry(2, "ddp", None, state="stopped"),
        kind="virtual",
        outcome="stopped",
    )
    qtbot.waitUntil(lambda: not page.stop_button.isVisible(), timeout=WAIT_MS)
    assert page.notes_label.text().startswith("The race was stopped. Its measurements so far are kept.")


def test_a_low_window_scrolls_and_shows_three_rows(qtbot: QtBot, app: App, written: WrittenRace) -> None:
    written.write(make_entry(1, "single"), make_entry(2, "ddp", None, state=RUNNING), kind="virtual")
    page = open_race_page(qtbot, app, written)
    app.window.resize(800, 420)
    process_events()
    assert page.height() < 300 and page.table.viewport().height() >= 3 * ROW_HEIGHT
    assert page.stat_strip.height() == page.stat_strip.minimumHeight() and page._card.height() > 200


def test_the_stop_key_stops_the_active_race(qtbot: QtBot, app: App, written: WrittenRace) -> None:
    assert not app.window.commands.is_enabled("race.stop")
    written.write(make_entry(1, "single"), make_entry(2, "ddp", None, state=RUNNING), kind="virtual")
    page = open_race_page(qtbot, app, written)
    qtbot.waitUntil(lambda: app.window.commands.is_enabled("race.stop"), timeout=WAIT_MS)
    qtbot.waitActive(app.window)
    qtbot.keyClick(app.window, Qt.Key.Key_F5, Qt.KeyboardModifier.ShiftModifier)
    assert page.stop_button.text() == "Stopping…"
    qtbot.waitUntil(written.folder.stop_request.exists, timeout=60_000)
    app.window.editor.open("welcome:")
    assert not app.window.commands.is_enabled("race.stop"), "no race is on show"


def test_enter_opens_the_run_of_an_entry(qtbot: QtBot, app: App, written: WrittenRace) -> None:
    race = written.write(make_entry(1, "single"), make_entry(2, "ddp", None, state=WAITING))
    run = written.folder.path / race.entries[0].folder
    (run / "events").mkdir(parents=True)
    (run / "config.toml").write_text("")
    page = open_race_page(qtbot, app, written)
    page.table.setFocus()
    qtbot.keyClick(page.table, Qt.Key.Key_Down)
    qtbot.keyClick(page.table, Qt.Key.Key_Return)
    assert app.window.editor.active_page() is page
    qtbot.keyClick(page.table, Qt.Key.Key_Up)
    qtbot.keyClick(page.table, Qt.Key.Key_Return)
    app.session.io_thread.wait_for_done()
    active = app.window.editor.active_page()
    assert active is not None and active.page_id == f"run:{run}"


def test_the_winner_becomes_the_strategy_of_the_draft(qtbot: QtBot, app: App, written: WrittenRace) -> None:
    winner = make_entry(2, "ddp", 0.1, bucket_mb=50.0)
    written.write(make_entry(1, "single", 0.3), winner, outcome="completed")
    page = open_race_page(qtbot, app, written)
    assert page.winner_button.isVisible() and not page.stop_button.isVisible()
    page.winner_button.click()
    assert app.session.draft.value(("strategy",)) == {"use": "ddp", "bucket_mb": 50.0}


def test_an_inconclusive_race_can_be_run_again(
    qtbot: QtBot, app: App, written: WrittenRace, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = app.session.draft.config
    assert config is not None
    written.folder.request_file.write_text(config.to_toml())
    again = make_entry(3, "single", 0.715, repeats=1)
    written.write(make_entry(1, "single", 0.316), make_entry(2, "dp", 0.196), again, outcome="completed")
    page = open_race_page(qtbot, app, written)
    assert "Inconclusive: step times changed by 126 % during the race." in page.notes_label.text()
    assert "Fastest:" not in page.notes_label.text() and not page.winner_button.isVisible()
    assert [stat.value for stat in page.stat_strip.data] == ["2 of 2", "2 of 2", "inconclusive", "+126 %"]
    assert not any(row.is_fastest for row in page.table.row_model.rows)
    requests: list[Any] = []
    engine, engine_race = app.session.engine, app.session.engine.race

    def race(*args: Any, **named: Any) -> Any:
        requests.append(named["options"])
        engine.python = "/bin/false"
        return engine_race(*args, **named)

    monkeypatch.setattr(engine, "race", race)
    page.again_button.click()
    qtbot.waitUntil(lambda: bool(requests), timeout=WAIT_MS)
    assert requests == [("--only", "single,dp", "--steps", "25")]
    qtbot.waitUntil(lambda: not app.launcher.num_pending, timeout=WAIT_MS)


def test_a_command_starts_a_race_or_reports_the_problem(
    qtbot: QtBot, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "race.start" in app.window.commands and app.window.keymap.text_for("race.start")
    requests: list[Any] = []
    monkeypatch.setattr(app.session.engine, "race", lambda *args, **named: requests.append(args))
    app.session.draft.set_value(("train", "global_batch"), 33)
    app.race_tabs.race_draft()
    (toast,) = app.window.toasts.visible_toasts
    assert not requests and "The race did not start" in toast.accessibleName() + toast.accessibleDescription()


def test_the_plan_page_shows_measurements_of_a_race(qtbot: QtBot, app: App, written: WrittenRace) -> None:
    config = app.session.draft.config
    assert config is not None
    written.folder.request_file.write_text(config.to_toml())
    written.write(make_entry(1, "single", 0.3), kind="virtual", outcome="completed")
    app.actions.show_plan()
    raced = app.session.draft_race
    qtbot.waitUntil(lambda: raced.race is not None, timeout=WAIT_MS)
    page = app.window.editor.page("plan:")
    assert isinstance(page, PlanPage)
    qtbot.waitUntil(lambda: "in rehearsal" in page.race_label.text(), timeout=WAIT_MS)
    assert not page.winner_button.isVisible()
    page._open_race()
    active = app.window.editor.active_page()
    assert active is not None and active.page_id == f"race:{written.folder.path}"
