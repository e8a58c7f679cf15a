"""A run whose ranks make no progress says so wherever it is shown, and no longer than that lasts."""

from __future__ import annotations

import re
import time
from pathlib import Path

from pytestqt.qtbot import QtBot

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.base.phrases import phrase
from rankdeck_app.composition import App
from rankdeck_app.views.code_page import CodePage
from rankdeck_app.views.dashboard import run_status
from rankdeck_app.views.dashboard.page import RunPage
from tests.helpers.app_window import open_run
from tests.helpers.written_run import WrittenRun, device_infos


def write_hang(run: WrittenRun, tmp_path: Path) -> None:
    """Two ranks that trained, and one that has stood still for 15 s since."""
    script = tmp_path / "train.py"
    script.write_text("import time\n\ntime.sleep(1e9)\n")
    run.started = time.time() - 60
    run.start(2, device_infos(2), steps=100, strategy="ddp")
    for rank in (0, 1):
        run.write_steps(rank, 1, [1.0] * 25)
    location = phrase("it is in step 25, in main ({file}, line 3)", file=str(script))
    message = phrase("No progress for {seconds:.0f} s: {stands}.", seconds=15.0, stands=location)
    problem = Problem("hang-suspected", message, advice="Stop it.", rank=1, severity="warning")
    run.writer("supervisor").write(events.ProblemRaised(problem=problem))


def problem_texts(app: App) -> list[str]:
    return [entry.problem.message for entry in app.session.problems.entries]


def hang_seconds(text: str) -> int:
    match = re.search(r"No progress for (\d+) s", text)
    assert match is not None, text
    return int(match[1])


def test_a_hang_is_shown_and_counts_up_until_a_step(
    qtbot: QtBot, app: App, written: WrittenRun, tmp_path: Path
) -> None:
    write_hang(written, tmp_path)
    open_run(app, written.path)
    page = app.window.editor.active_page()
    assert isinstance(page, RunPage)
    qtbot.waitUntil(lambda: page._banner.text.startswith("Rank 1: No progress for "))
    first_s = hang_seconds(page._banner.text)
    assert [button.text() for button in page._banner.buttons] == ["Go to Line", "Show Stacks", "Stop Run"]
    assert page._banner.isVisible() and len(problem_texts(app)) == 1
    assert next(cell.value for cell in run_status.stats(page.viewed_run) if cell.label == "Samples/s") == "0"
    assert app.window.status_bar.item("run", "left", 90).text().startswith("Hanging")
    qtbot.waitUntil(lambda: page._banner.isVisible() and hang_seconds(page._banner.text) > first_s >= 15)
    qtbot.waitUntil(lambda: [hang_seconds(text) > first_s for text in problem_texts(app)] == [True])
    page._banner.buttons[0].click()
    qtbot.waitUntil(lambda: isinstance(app.window.editor.active_page(), CodePage))
    code = app.window.editor.active_page()
    assert isinstance(code, CodePage) and (code.path.name, code.line) == ("train.py", 3)
    written.started = time.time()
    for rank in (0, 1):
        written.write_steps(rank, 26, [1.0])
    open_run(app, written.path)
    qtbot.waitUntil(lambda: not page._banner.isVisible() and not problem_texts(app))
    assert not app.window.status_bar.item("run", "left", 90).text().startswith("Hanging")


def test_a_stopped_run_has_no_hang_problem(
    qtbot: QtBot, app: App, written: WrittenRun, tmp_path: Path
) -> None:
    write_hang(written, tmp_path)
    open_run(app, written.path)
    qtbot.waitUntil(lambda: len(problem_texts(app)) == 1)
    written.end("stopped")
    page = app.window.editor.active_page()
    assert isinstance(page, RunPage)
    qtbot.waitUntil(lambda: not problem_texts(app) and "No progress" not in page._banner.text)
