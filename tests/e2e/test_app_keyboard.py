"""A person without a mouse, in a real window: from the palette to a resumed run, nothing but keys."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankdeck.run_dir import RaceDir, RunDir, list_races, list_runs
from tests.helpers.app_window import stop_all_runs
from tests.helpers.real_window import RealApp, real_app, window_manager, write_small_draft
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.xvfb, pytest.mark.timeout(300)]
FOCUS = "[one.accessibleName() or getattr(one, 'text', str)() for one in [window.focusWidget()] if one]"
PAGE = "window.editor.active_page().page_id"
PALETTE = "(window.command_palette.isVisible() and window.command_palette.input.hasFocus())"


@pytest.fixture
def app(x_display: str, tmp_path: Path) -> Iterator[RealApp]:
    """The app of somebody whose draft is small."""
    write_small_draft(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    try:
        with window_manager(x_display, home), real_app(x_display, home) as app:
            yield app
        assert app.process.returncode == 0
    finally:
        stop_all_runs(Path(os.environ["RANKDECK_RUNS"]))


def run_palette_command(app: RealApp, *queries: str) -> None:
    """Open the palette, and in it and in each list after it type what is wanted and take the first row."""
    app.press("ctrl+shift+p")
    for text in queries:
        app.wait(PALETTE)
        app.xdotool("type", "--delay", 5, text)
        app.wait(f"{text!r} in window.command_palette.input.text()")
        app.press("Return")


def press_keys(app: RealApp, *keys: str) -> None:
    for key in keys:
        app.press(key)


def tab_to(app: RealApp, name: str, max_tabs: int = 80) -> None:
    """Tab until the keyboard is at what has this name."""
    focused_names: list[str] = []
    for _ in range(max_tabs):
        if any(name in focused_name for focused_name in app.evaluate(FOCUS)):
            return
        focused_names += app.evaluate(FOCUS)
        app.press("Tab")
    raise AssertionError(f"no Tab leads to {name}: {focused_names}")


def newest_run(count: int) -> RunDir:
    runs = Path(os.environ["RANKDECK_RUNS"])
    wait_until(lambda: len(list_runs(runs)) == count, deadline_s=60, what=f"{count} runs")
    return max(list_runs(runs), key=lambda run: run.path.stat().st_ctime_ns)


def only_race() -> RaceDir:
    runs = Path(os.environ["RANKDECK_RUNS"])
    wait_until(lambda: list_races(runs), deadline_s=120, what="the race")
    (race,) = list_races(runs)
    return race


def launch_run(app: RealApp, count: int) -> RunDir:
    app.press("ctrl+F5")
    run = newest_run(count)
    app.wait(f"{PAGE} == {f'run:{run.path}'!r}", 60)
    app.wait("len(window.editor.active_page().run.state.losses) > 20", 60)
    return run


def stop_run(app: RealApp, run: RunDir) -> None:
    app.press("shift+F5")
    wait_until(lambda: not run.is_alive(), deadline_s=60, what="the stop")
    app.wait("window.editor.active_page().run.outcome == 'stopped'")


def test_the_app_can_be_used_with_the_keyboard_alone(app: RealApp) -> None:
    run_palette_command(app, "change strategy", "ddp")
    app.press("ctrl+shift+l")
    tab_to(app, "virtual devices")
    app.press("Up")
    first = launch_run(app, 1)
    config = first.config()
    assert (config.strategy.use, config.devices.use) == ("ddp", "cpu:2")
    stop_run(app, first)

    second = launch_run(app, 2)
    stop_run(app, second)
    run_palette_command(app, "run: resume")
    wait_until(second.is_alive, deadline_s=60, what="the resumed run")
    app.wait("window.editor.active_page().run.outcome == 'running'", 60)
    stop_run(app, second)

    press_keys(app, "ctrl+k", "c")
    for keys in (["Down", "Return"], ["Down", "Down", "Return"], ["Return"]):
        app.wait(PALETTE)
        for key in keys:
            app.press(key)
    app.wait(f"{PAGE} == 'compare:1' and len(window.editor.active_page().comparing.runs) == 2")

    press_keys(app, "ctrl+k", "F5")
    race = only_race()
    app.wait(f"{PAGE} == {f'race:{race.path}'!r}", 60)
    app.wait("window.context.get('activeRaceAlive')", 60)
    app.press("shift+F5")
    wait_until(lambda: not race.is_alive(), deadline_s=60, what="the end of the race")
