"""In the whole app: one line below the dashboard, and cards, Output and Problems show the moment on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from rankdeck_app.composition import App
from rankdeck_app.views.dashboard.page import RunPage
from rankdeck_app.views.output import OutputView
from rankdeck_app.widgets.painting import Overflow, watch_overflows
from tests.helpers.app_window import open_run
from tests.helpers.resumed_run import NUM_STEPS, STEP_S, bytes_of, second_start_time, write_resumed
from tests.helpers.written_run import WrittenRun
from tests.helpers.written_script import WrittenScript

NAMES = ("back", "forward", "start", "now", "play")


@pytest.fixture
def written(tmp_path: Path) -> Iterator[WrittenRun]:
    run = write_resumed(tmp_path / "runs")
    yield run
    run.lose()


@pytest.fixture
def opened(qtbot: QtBot, app: App) -> Callable[[WrittenRun], RunPage]:
    def open_page(run: WrittenRun) -> RunPage:
        app.window.commands.run("view.panel.output")
        open_run(app, run.path)
        page = app.window.editor.active_page()
        assert isinstance(page, RunPage)
        qtbot.waitUntil(lambda: page.run.outcome is not None and page.run.step == NUM_STEPS)
        return page

    return open_page


def problem_codes(app: App) -> list[str]:
    return sorted(entry.problem.code for entry in app.session.problems.entries)


def seek(qtbot: QtBot, page: RunPage, time_s: float) -> None:
    page.run.time_machine.go_to(time_s)
    qtbot.waitUntil(lambda: not page.run.time_machine.is_loading and not page._pending)


def test_cards_and_panel_show_the_viewed_time(
    qtbot: QtBot, app: App, written: WrittenRun, opened: Callable[[WrittenRun], RunPage]
) -> None:
    page = opened(written)
    output = app.window.panel.body
    assert isinstance(output, OutputView)
    qtbot.waitUntil(lambda: any(f"step {NUM_STEPS} " in line.text for line in output.model.visible_lines))
    assert problem_codes(app) == ["imbalance", "slow"]
    plots = [page.cards[name] for name in ("band", "loss", "rate")]
    qtbot.waitUntil(lambda: all(card.built_body is not None for card in plots))
    seek(qtbot, page, written.started + 13 * STEP_S + 0.1)
    assert page._stat_strip.data[0].value.startswith("13 / ") and page._verification_line.isVisible()
    assert [bar.total_bytes for bar in page.grid.bars.data.bars] == [bytes_of(10, 0), bytes_of(10, 1)]
    subtitle = page.cards["bars"].subtitle
    assert "peak of step 10" in subtitle and "sampled 1 s ago" in subtitle
    assert "step 10" in page.cards["anatomy"].subtitle
    assert page.grid.anatomy.data.rows[0].spans[0].duration_s == pytest.approx(0.01)
    assert page.grid.heat.data.values == [pytest.approx(0.12, abs=0.02)] * 2
    assert page.grid.heat.data.marked_share == pytest.approx(6.6 / 120, abs=0.01)
    assert [card.body._mark.value() for card in plots] == [pytest.approx(6.6, abs=0.01), 13, 13]
    assert all(card.body._mark.isVisible() for card in plots)
    texts = [line.text for line in output.model.visible_lines]
    assert any("step 13 " in text for text in texts) and not any("step 14 " in text for text in texts)
    assert problem_codes(app) == ["imbalance"], "there was no other yet"
    assert (
        "Viewing the run 6.6 s after its start" in page._banner.text
        and "apply to the run's current state" in page._banner.text
    )
    seek(qtbot, page, written.started + 31 * STEP_S)
    assert problem_codes(app) == ["imbalance", "slow"]
    seek(qtbot, page, written.started + 0.2)
    assert not problem_codes(app), "nothing was measured yet"
    seek(qtbot, page, written.started + 31 * STEP_S)
    assert "a later attempt repeated" in page._banner.text
    loss = page.cards["loss"].body._series[0]
    assert loss.last_x == 31 and page.run.state.losses.last_x == NUM_STEPS
    assert app.window.commands.run("time.now")
    qtbot.waitUntil(lambda: not page._pending)
    assert page.cards["loss"].body._series[0] is page.run.state.losses and page._banner.isHidden()
    assert not any(card.body._mark.isVisible() for card in plots)
    assert any(f"step {NUM_STEPS} " in line.text for line in output.model.visible_lines)


def test_verification_is_hidden_before_its_time(
    qtbot: QtBot, written: WrittenRun, opened: Callable[[WrittenRun], RunPage]
) -> None:
    page = opened(written)
    seek(qtbot, page, written.started + 0.15)
    assert not page._verification_line.isVisible() and not page._verification_line.data
    page.run.time_machine.go_to_now()
    qtbot.waitUntil(lambda: page._verification_line.isVisible())


def test_keys_move_in_time_and_stop_acts_on_the_live_run(
    qtbot: QtBot, app: App, written: WrittenRun, opened: Callable[[WrittenRun], RunPage]
) -> None:
    commands, keymap = app.window.commands, app.window.keymap
    assert all(keymap.text_for(f"time.{name}") for name in NAMES)
    assert not any(commands.is_enabled(f"time.{name}") for name in NAMES)
    page = opened(written)
    machine = page.run.time_machine
    assert commands.is_enabled("time.back") and not commands.is_enabled("time.now")
    with qtbot.waitActive(app.window):
        app.window.activateWindow()
    scrubber = page.time_bar.scrubber
    scrubber.setFocus()
    qtbot.keyClick(scrubber, Qt.Key.Key_Left, Qt.KeyboardModifier.AltModifier)
    qtbot.waitUntil(lambda: page.viewed_run.step == NUM_STEPS - 1)
    qtbot.keyClick(scrubber, Qt.Key.Key_Left, Qt.KeyboardModifier.ShiftModifier)
    qtbot.waitUntil(lambda: page.viewed_run.step == NUM_STEPS - 11)
    qtbot.keyClick(scrubber, Qt.Key.Key_Home)
    qtbot.waitUntil(lambda: page.viewed_run.step is None and not machine.is_loading)
    assert commands.is_enabled("run.stop") and page.tab_actions()[-1].command == "run.stop"
    assert app.window.context.get("activeRunAlive")
    for key in (Qt.Key.Key_K, Qt.Key.Key_P):
        qtbot.keyClick(scrubber, key, Qt.KeyboardModifier.ControlModifier)
    assert machine.is_playing and page.time_bar.play_button.accessibleName() == "Pause"
    commands.run("time.play")
    assert not machine.is_playing and page.time_bar.play_button.accessibleName() == "Play"
    qtbot.keyClick(scrubber, Qt.Key.Key_End, Qt.KeyboardModifier.AltModifier)
    assert machine.viewed_time is None and not commands.is_enabled("time.now")


def test_focus_stays_in_the_time_bar_after_now(
    qtbot: QtBot, app: App, written: WrittenRun, opened: Callable[[WrittenRun], RunPage]
) -> None:
    """Whatever else it would go to: a button there starts a run."""
    bar = opened(written).time_bar
    with qtbot.waitActive(app.window):
        app.window.activateWindow()
    bar.scrubber.skip_requested.emit(-1)
    qtbot.waitUntil(lambda: bar.now_button.isEnabled())
    bar.now_button.setFocus()
    qtbot.mouseClick(bar.now_button, Qt.MouseButton.LeftButton)
    assert not bar.now_button.isEnabled() and bar.play_button.hasFocus()


def test_dragging_the_scrubber_responds_at_once(
    qtbot: QtBot, written: WrittenRun, opened: Callable[[WrittenRun], RunPage]
) -> None:
    page = opened(written)
    scrubber, times_s = page.time_bar.scrubber, []
    left, right = scrubber.line
    for share in range(0, 100, 10):
        start_s = time.thread_time()
        scrubber.seek_requested.emit(scrubber._seconds_at(left + share / 100 * (right - left)))
        times_s.append(time.thread_time() - start_s)
        assert page.time_bar.scrubber.data.viewed_s is not None
        qtbot.wait(1)
    assert max(times_s) < 0.05
    qtbot.waitUntil(lambda: not page.run.time_machine.is_loading)


def test_a_past_attempt_fits_at_every_size_in_both_themes(
    qtbot: QtBot, app: App, written: WrittenRun, opened: Callable[[WrittenRun], RunPage]
) -> None:
    page = opened(written)
    overflows: list[Overflow] = []
    for theme, size in (
        ("Dark Modern", (1280, 720)),
        ("Light Modern", (800, 500)),
    ):
        app.window.theme.load(theme)
        app.window.resize(*size)
        for time_s in (written.started + 30 * STEP_S, second_start_time(written) + 3, written.started + 0.05):
            seek(qtbot, page, time_s)
            with watch_overflows(overflows.append):
                page.grab()
    assert not overflows
    assert page.time_bar.play_button.accessibleName() and page.time_bar.scrubber.accessibleName()
    page.run.time_machine.go_to_now()


def test_script_runs_support_time_travel(qtbot: QtBot, app: App, tmp_path: Path) -> None:
    run = WrittenScript(tmp_path / "runs")
    run.started = time.time() - 60
    run.start_script()
    for first in (1, 11, 21):
        run.write_step_line(0, first, [2.0 - 0.01 * step for step in range(first, first + 10)])
    open_run(app, run.path)
    page = app.window.editor.active_page()
    assert isinstance(page, RunPage)
    qtbot.waitUntil(lambda: page.run.step == 30)
    bounds = page.run.time_machine.bounds
    assert bounds is not None
    page.run.time_machine.go_to(bounds[0])
    qtbot.waitUntil(lambda: not page.run.time_machine.is_loading and not page._pending)
    assert page.viewed_run.step is None and page._stat_strip.data[0].value == "–"
    page.run.time_machine.go_to_now()
    qtbot.waitUntil(lambda: not page._pending)
    assert page._stat_strip.data[0].value == "30"
    run.lose()
