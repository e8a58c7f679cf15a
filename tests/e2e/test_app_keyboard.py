"""A person without a mouse, in a real window: from the palette to a resumed run, nothing but keys."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankdeck.rundir import RaceDir, RunDir, list_races, list_runs
from tests.helpers.app_window import end_all_runs
from tests.helpers.real_window import RealApp, keep_small_draft, real_app, window_manager
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.xvfb, pytest.mark.timeout(300)]
FOCUS = "[one.accessibleName() or getattr(one, 'text', str)() for one in [window.focusWidget()] if one]"
PAGE = "window.editor.active_page().page_id"
PALETTE = "(window.palette_box.isVisible() and window.palette_box.input.hasFocus())"


@pytest.fixture
def app(x_display: str, tmp_path: Path) -> Iterator[RealApp]:
    """The app of somebody whose draft is small."""
    keep_small_draft(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    try:
        with window_manager(x_display, home), real_app(x_display, home) as app:
            yield app
        assert app.process.returncode == 0
    finally:
        end_all_runs(Path(os.environ["RANKDECK_RUNS"]))


def say(app: RealApp, *words: str) -> None:
    """Open the palette, and in it and in each list after it type what is wanted and take the first row."""
    app.press("ctrl+shift+p")
    for text in words:
        app.wait(PALETTE)
        app.person("type", "--delay", 5, text)
        app.wait(f"{text!r} in window.palette_box.input.text()")
        app.press("Return")


def chord(app: RealApp, *keys: str) -> None:
    for key in keys:
        app.press(key)


def walk_to(app: RealApp, name: str, most: int = 80) -> None:
    """Tab until the keyboard is at what has this name."""
    seen: list[str] = []
    for _ in range(most):
        if any(name in one for one in app.ask(FOCUS)):
            return
        seen += app.ask(FOCUS)
        app.press("Tab")
    raise AssertionError(f"no Tab leads to {name}: {seen}")


def newest_run(count: int) -> RunDir:
    runs = Path(os.environ["RANKDECK_RUNS"])
    wait_until(lambda: len(list_runs(runs)) == count, deadline_s=60, what=f"{count} runs")
    return max(list_runs(runs), key=lambda run: run.path.stat().st_ctime_ns)


def only_race() -> RaceDir:
    runs = Path(os.environ["RANKDECK_RUNS"])
    wait_until(lambda: list_races(runs), deadline_s=120, what="the race")
    (race,) = list_races(runs)
    return race


def launched(app: RealApp, count: int) -> RunDir:
    app.press("ctrl+F5")
    run = newest_run(count)
    app.wait(f"{PAGE} == {f'run:{run.path}'!r}", 60)
    app.wait("len(window.editor.active_page().run.fold.losses) > 20", 60)
    return run


def stopped(app: RealApp, run: RunDir) -> None:
    app.press("shift+F5")
    wait_until(lambda: not run.is_alive(), deadline_s=60, what="the stop")
    app.wait("window.editor.active_page().run.outcome == 'stopped'")


def test_a_walk_with_nothing_but_keys(app: RealApp) -> None:
    say(app, "change strategy", "ddp")
    app.press("ctrl+shift+l")
    walk_to(app, "virtual devices")
    app.press("Up")
    first = launched(app, 1)
    config = first.config()
    assert (config.strategy.use, config.devices.use) == ("ddp", "cpu:2")
    stopped(app, first)

    second = launched(app, 2)
    stopped(app, second)
    say(app, "run: resume")
    wait_until(second.is_alive, deadline_s=60, what="the resumed run")
    app.wait("window.editor.active_page().run.outcome == 'running'", 60)
    stopped(app, second)

    chord(app, "ctrl+k", "c")
    for keys in (["Down", "Return"], ["Down", "Down", "Return"], ["Return"]):
        app.wait(PALETTE)
        for key in keys:
            app.press(key)
    app.wait(f"{PAGE} == 'compare:1' and len(window.editor.active_page().comparing.runs) == 2")

    chord(app, "ctrl+k", "F5")
    race = only_race()
    app.wait(f"{PAGE} == {f'race:{race.path}'!r}", 60)
    app.wait("window.context.get('activeRaceAlive')", 60)
    app.press("shift+F5")
    wait_until(lambda: not race.is_alive(), deadline_s=60, what="the end of the race")
