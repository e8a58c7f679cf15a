"""Ctrl+\\ shows a page a second time beside itself; both follow the same thing, and each closes alone."""

from __future__ import annotations

from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from rankdeck_app.composition import App
from rankdeck_app.views.dashboard.page import RunPage
from rankdeck_app.views.race.page import RacePage
from tests.helpers.app_window import open_run, process_events, wait_for
from tests.helpers.every_view import EveryView


def test_two_dashboards_share_one_live_run(qtbot: QtBot, app: App, every: EveryView) -> None:
    open_run(app, every.alive.path)
    qtbot.keyClick(app.window, Qt.Key.Key_Backslash, Qt.KeyboardModifier.ControlModifier)
    process_events()
    first, second = (page for page in app.window.editor.pages() if isinstance(page, RunPage))
    assert first.isVisible() and second.isVisible() and first.run is second.run
    every.alive.write_steps(0, 31, [0.5, 0.4])
    descriptions = [lambda page=page: page._stat_strip.describe() for page in (first, second)]
    wait_for(lambda: all("32 / 40" in describe() for describe in descriptions), 10, "both at step 32")
    app.window.editor.close_page()
    process_events()
    every.alive.write_steps(0, 33, [0.3])
    wait_for(lambda: "33 / 40" in first._stat_strip.describe(), 10, "the other follows on")


def test_splitting_a_race_moves_its_page(app: App, every: EveryView) -> None:
    app.window.editor.open("welcome:")
    open_run(app, every.race.folder.path)
    app.window.commands.run("editor.splitRight")
    (page,) = (page for page in app.window.editor.pages() if isinstance(page, RacePage))
    wait_for(lambda: bool(page.table.row_model.rows), 10, "its table")
    assert len(app.window.editor.groups()) == 2 and page._watch._timer.isActive()
    app.window.editor.close_all()
    open_run(app, every.race.folder.path)
    process_events()
    assert len(app.race_tabs._watches) == 1, "the tab that was closed leaves the new one its own"
    app.window.editor.close_all()
    process_events()
    assert not app.race_tabs._watches


def test_splitting_copies_these_pages(app: App) -> None:
    for page_id in ("settings:", "keys:", "devices:", "welcome:"):
        app.window.editor.close_all()
        app.window.editor.open(page_id)
        app.window.commands.run("editor.splitDown")
        assert [page.page_id for page in app.window.editor.pages()] == [page_id, page_id]


def test_settings_in_two_tabs_show_the_same(app: App) -> None:
    app.window.editor.open("settings:")
    app.window.commands.run("editor.splitRight")
    first, second = (page for page in app.window.editor.pages() if page.page_id == "settings:")
    wait_for(lambda: first.trusted_frame.isVisible() and second.trusted_frame.isVisible(), 10, "all rows")  # type: ignore[attr-defined]
    first.rows["window.density"].editor.setCurrentText("compact")  # type: ignore[attr-defined]
    first.rows["window.density"].editor.activated.emit(1)  # type: ignore[attr-defined]
    assert second.rows["window.density"].editor.currentText() == "compact"  # type: ignore[attr-defined]
    app.window.settings.set("window.density", "comfortable")


def test_splitting_moves_pages_with_one_form(app: App) -> None:
    """Two would fight over one draft, or over what was read."""
    for page_id in ("config:", "plan:", "notifications:"):
        app.window.editor.close_all()
        app.window.editor.open("welcome:")
        app.window.editor.open(page_id)
        app.window.commands.run("editor.splitRight")
        assert [page.page_id for page in app.window.editor.pages()].count(page_id) == 1
        assert len(app.window.editor.groups()) == 2
