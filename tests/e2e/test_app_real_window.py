"""The app in a real window, with a real mouse and keyboard, and killed as only the system kills."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankdeck.base.home import state_dir
from rankdeck.run_dir import RunDir, list_runs
from tests.helpers.app_window import stop_all_runs
from tests.helpers.real_window import RealApp, real_app, window_manager, write_small_draft
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.xvfb, pytest.mark.timeout(240)]
GROUPS = "[[tab.page_id for tab in group.tabs] for group in window.editor.groups()]"
RIGHT_EDGE = "on_screen(window.editor, QPoint(window.editor.width() - 40, window.editor.height() // 2))"
IS_DROP_OVERLAY_VISIBLE = "any(group._overlay.isVisible() for group in window.editor.groups())"
LOSSES = "[len(page.run.state.losses) for page in window.editor.pages() if page.page_id.startswith('run:')]"


@pytest.fixture(scope="module")
def display(x_display: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with window_manager(x_display, tmp_path_factory.mktemp("home")):
        yield x_display


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home of somebody whose draft is small."""
    write_small_draft(tmp_path)
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def only_run() -> RunDir:
    wait_until(lambda: list_runs(Path(os.environ["RANKDECK_RUNS"])), deadline_s=60, what="a run")
    (run,) = list_runs(Path(os.environ["RANKDECK_RUNS"]))
    return run


def steps_in(run: RunDir) -> list[int]:
    """Every step that the rank's file tells of, read without the engine."""
    steps: list[int] = []
    for line in (run.events_folder / "rank-0.0.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["kind"] == "steps":
            steps.extend(range(event["first"], event["first"] + len(event["loss_sum"])))
    return steps


def split_with_the_mouse(app: RealApp, page_id: str) -> None:
    app.drag(app.evaluate(f"tab({page_id!r})"), app.evaluate(RIGHT_EDGE), IS_DROP_OVERLAY_VISIBLE)
    app.wait(f"len({GROUPS}) == 2 and {page_id!r} in {GROUPS}[1]")


def test_the_first_window_fits_on_the_screen_with_its_frame(display: str, home: Path) -> None:
    with real_app(display, home) as app:
        app.wait("window.frameGeometry().height() > window.geometry().height()")
        app.wait("window.screen().availableGeometry().contains(window.frameGeometry())")
        assert app.evaluate("window.status_bar.isVisible()")
    assert app.process.returncode == 0
    assert not list(home.iterdir()), "nothing is put into a home unasked"


def test_a_killed_app_restores_its_layout_and_every_step(display: str, home: Path) -> None:
    try:
        with real_app(display, home) as app:
            app.press("ctrl+F5")
            run = only_run()
            page = f"run:{run.path}"
            app.wait(f"{page!r} in sum({GROUPS}, [])", 60)
            split_with_the_mouse(app, page)
            app.wait(f"({LOSSES} or [0])[0] > 20", 60)
            groups = app.evaluate(GROUPS)
            state = state_dir() / "app" / "window.json"
            layout = app.evaluate("window.editor.save_state()")
            wait_until(
                lambda: state.is_file() and json.loads(state.read_text())["editor"] == layout,
                what="the layout on disk",
            )
            app.kill()
        num_steps = len(steps_in(run))
        wait_until(lambda: len(steps_in(run)) > num_steps + 20, what="steps that nobody watches")
        with real_app(display, home) as app:
            app.wait(f"{GROUPS} == {groups!r}")
            app.wait(f"({LOSSES} or [0])[0] > {num_steps + 20}", 60)
            app.click(app.evaluate(f"tab({page!r})"))
            app.wait(f"window.editor.active_page().page_id == {page!r}")
            app.press("shift+F5")
            wait_until(lambda: not run.is_alive(), deadline_s=60, what="the stop")
            steps = steps_in(run)
            assert steps == list(range(1, len(steps) + 1))
            app.wait(f"{LOSSES} == [{len(steps)}]")
        assert app.process.returncode == 0
    finally:
        stop_all_runs(Path(os.environ["RANKDECK_RUNS"]))
