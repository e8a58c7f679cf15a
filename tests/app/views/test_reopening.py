"""The next start: who is alive is told in full, and what had gone wrong is known before anybody clicks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QPushButton

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck_app.composition import App, alive_runs_text
from tests.helpers.app_window import open_run, process_events, wait_for
from tests.helpers.written_run import WrittenRun

MakeApp = Callable[[], App]
MakeRun = Callable[[str], WrittenRun]


@pytest.fixture
def make_run() -> Iterator[MakeRun]:
    runs: list[WrittenRun] = []

    def make(name: str) -> WrittenRun:
        runs.append(WrittenRun(Path(os.environ["RANKDECK_RUNS"]), name))
        runs[-1].start()
        return runs[-1]

    yield make
    for run in runs:
        run.lose()


def write_failure(run: WrittenRun) -> WrittenRun:
    run.write_steps(0, 1, [2.0])
    problem = Problem("rank-exception", "ValueError: bad batch 17", rank=0)
    run.writer("supervisor").write(events.ProblemRaised(problem=problem))
    run.end("failed", 1)
    return run


def tab_marks(app: App) -> dict[str, str]:
    tabs = [tab for group in app.window.editor.groups() for tab in group.tabs]
    return {tab.display_title(): tab.display_icon()[1] for tab in tabs}


def close_with_tabs(make_app: MakeApp, *runs: WrittenRun) -> None:
    """A session that ends with tabs of these runs, the welcome page in front."""
    app = make_app()
    for run in runs:
        open_run(app, run.path)
    app.window.commands.run("welcome.show")
    app.window.close()


@pytest.mark.parametrize(
    ("titles", "text"),
    [
        (["A"], "1 run is still running: A."),
        (["A", "B"], "2 runs are still running: A and B."),
        (["A", "B", "C"], "3 runs are still running: A, B and C."),
        (["A", "B", "C", "D", "E"], "5 runs are still running: A, B, C and 2 more."),
    ],
)
def test_the_toast_counts_all_live_runs(titles: list[str], text: str) -> None:
    assert alive_runs_text(titles) == text


def test_two_live_runs_have_a_button_each(make_app: MakeApp, make_run: MakeRun) -> None:
    run, other = make_run("first"), make_run("second with a long name, longer than a button")
    close_with_tabs(make_app, run)  # one of them has a tab
    app = make_app()
    toasts = app.window.toasts
    wait_for(lambda: any("still running" in notice.text for notice in toasts.history), 5, "the notice")
    assert toasts.history[-1].text.startswith("2 runs are still running: second with a long name")
    (toast,) = toasts.visible_toasts
    buttons = {button.text()[:11]: button for button in toast.findChildren(QPushButton)}
    assert {*buttons} == {"Open first", "Open second"}
    wait_for(lambda: all(button.width() > 40 for button in buttons.values()), 5, "the layout")
    for button in buttons.values():
        assert toast.rect().contains(button.geometry())
        assert button.fontMetrics().horizontalAdvance(button.text()) < button.width()
    buttons["Open second"].click()
    assert app.window.context.get("activePageId") == f"run:{other.path}"
    wait_for(lambda: app.tabs.active() is not None and app.tabs.active().is_live, 5, "the run")  # type: ignore[union-attr]


def test_problems_and_tab_marks_are_restored_without_a_click(make_app: MakeApp, make_run: MakeRun) -> None:
    bad, alive = write_failure(make_run("bad")), make_run("alive")
    close_with_tabs(make_app, bad, alive)
    app = make_app()
    assert app.window.editor.page(f"run:{bad.path}") is None, "nobody has looked at it"
    wait_for(lambda: app.session.problems.num_errors == 1, 5, "the problem")
    (entry,) = app.session.problems.entries
    assert (entry.problem.message, entry.run) == ("ValueError: bad batch 17", bad.path)
    wait_for(lambda: tab_marks(app).get("bad") == "errorForeground", 5, "the mark")
    assert app.window.editor.page(f"run:{bad.path}") is None
    # One that ends meanwhile is marked too, though nobody has looked at it either.
    wait_for(lambda: tab_marks(app).get("alive") == "rankdeck.rest", 5, "the mark of the living")
    alive.end("completed")
    wait_for(lambda: tab_marks(app).get("alive") == "rankdeck.ok", 5, "its end")
    open_run(app, bad.path)
    assert app.session.problems.num_errors == 1
    app.window.editor.close_page(f"run:{bad.path}")
    process_events()
    assert app.session.problems.entries == []


def test_closing_an_unbuilt_tab_removes_its_problems(make_app: MakeApp, make_run: MakeRun) -> None:
    bad, deleted_run = write_failure(make_run("bad")), write_failure(make_run("gone"))
    close_with_tabs(make_app, deleted_run, bad)
    for path in sorted(deleted_run.path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    deleted_run.path.rmdir()
    app = make_app()
    wait_for(lambda: app.session.problems.num_errors == 1, 5, "the problem")
    app.window.editor.close_page(f"run:{bad.path}")
    assert app.session.problems.entries == [] and app.tabs.open_runs.list_runs() == []


def test_tab_marks_are_restored_before_runs_are_read(make_app: MakeApp, make_run: MakeRun) -> None:
    bad = write_failure(make_run("bad"))
    first = make_app()
    open_run(first, bad.path)
    wait_for(lambda: tab_marks(first).get("bad") == "errorForeground", 5, "the mark")
    first.window.commands.run("welcome.show")
    first.window.close()
    assert tab_marks(make_app())["bad"] == "errorForeground"
