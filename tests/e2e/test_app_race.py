"""A race that the app begins: planned, raced by a process of its own, stopped by the next start of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from rankdeck.run.race import RUNNING
from rankdeck_app.views.plan.page import PlanPage
from rankdeck_app.views.race.page import RacePage
from tests.helpers.app_window import close_app, open_app, wait_for

TINY = """
[model]
use = "mlp"
args = { hidden = [1024, 1024] }
[data]
use = "digits"
[train]
global_batch = 16
[devices]
use = "cpu:2"
"""


@pytest.mark.slow
def test_a_race_outlives_the_app_and_can_be_stopped_after_a_restart(
    qtbot: QtBot, qapp: QApplication, tmp_path: Path
) -> None:
    app = open_app(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY)
    app.actions.open_config(tmp_path / "tiny.toml")
    app.session.io_thread.wait_for_done()
    plan = app.window.editor.open("plan:")
    assert isinstance(plan, PlanPage)
    plan.race_button.click()
    wait_for(lambda: isinstance(app.window.editor.active_page(), RacePage), 120, "the race's tab")
    page = app.window.editor.active_page()
    assert isinstance(page, RacePage)
    wait_for(lambda: any(row.step_s for row in page.table.rows.figures), 120, "the first entry's time")
    folder, page_id = page._watch.folder, page.page_id
    close_app(app)
    assert folder.is_alive()

    app = open_app(tmp_path)
    page = app.window.editor.page(page_id) or app.window.editor.open(page_id)
    assert isinstance(page, RacePage)
    wait_for(lambda: page.stop_button.isVisible(), 30, "the race as it goes on")
    page.stop_button.click()
    wait_for(lambda: not folder.is_alive(), 60, "the end of the race")
    wait_for(lambda: page._watch.is_over, 30, "the news of it")
    race = page._watch.race
    assert race is not None and race.outcome != RUNNING and race.entries[0].place is not None
    close_app(app)
