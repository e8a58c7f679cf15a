"""What the engine's rules find in an open run stands in the Problems panel: with what was seen, links to it,
and the button that takes its cure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from rankdeck import events
from rankdeck.base.errors import Evidence, Problem
from rankdeck_app.composition import App
from rankdeck_app.state.problem_list import LAUNCH_OWNER, ListedProblem
from rankdeck_app.views.code_page import CodePage
from rankdeck_app.views.problems import ProblemsView, evidence_file
from tests.helpers.app_window import open_run, process_events, wait_for
from tests.helpers.written_run import WrittenRun, device_infos


@pytest.fixture
def crowded() -> Iterator[WrittenRun]:
    """16 worker processes for each of two ranks, once they are up."""
    config = {
        "data": {"use": "digits", "workers": 16},
        "strategy": {"use": "ddp"},
        "devices": {"use": "cpu:2"},
    }
    run = WrittenRun(Path(os.environ["RANKDECK_RUNS"]), "crowded", config)
    run.start(2, device_infos(2), strategy="ddp", cores=8)
    yield run
    run.lose()


def start_ranks(run: WrittenRun) -> None:
    for rank in range(2):
        run.writer(f"rank-{rank}").write(events.RankStarted(rank=rank, pid=rank + 1, devices=[rank]))


def find_entries(app: App) -> list[ListedProblem]:
    return [entry for entry in app.session.problems.entries if entry.problem.code == "workers-too-many"]


def button_labels(app: App) -> list[str]:
    return [label for label, _ in app.fixes.actions_of(find_entries(app)[0])]


def test_a_finding_has_a_link_and_a_fix(qtbot: QtBot, app: App, crowded: WrittenRun) -> None:
    start_ranks(crowded)
    open_run(app, crowded.path)
    view = app.window.show_panel("problems")
    assert isinstance(view, ProblemsView)
    wait_for(
        lambda: find_entries(app) and "Resume with data.workers = 4" in button_labels(app), 5, "the finding"
    )
    (entry,) = find_entries(app)
    assert entry.is_warning and entry.run == crowded.path
    assert "32 worker processes read data on 8 cores" in entry.problem.message
    (row,) = view.rows
    assert "Resume with data.workers = 4" in [button.text() for button in row.buttons]
    (link,) = row.links
    assert link.text() == "config.toml"
    qtbot.mouseClick(link, Qt.MouseButton.LeftButton)
    page = app.window.editor.active_page()
    assert isinstance(page, CodePage)
    wait_for(lambda: "workers = 16" in page.editor.toPlainText(), 5, "the file")
    assert not any("worker processes" in notice.text for notice in app.window.toasts.history)
    app.window.editor.close_all()
    process_events()
    assert find_entries(app) == [], "nobody follows it any more"


def test_later_events_are_found_by_the_next_check(app: App, crowded: WrittenRun) -> None:
    open_run(app, crowded.path)
    run = app.tabs.current
    assert run is not None
    wait_for(lambda: run.state.started is not None, 5, "its announcement")
    assert find_entries(app) == []
    start_ranks(crowded)
    wait_for(lambda: find_entries(app), 5, "the finding")


def test_the_row_of_a_problem_shows_its_evidence(app: App, tmp_path: Path) -> None:
    log = tmp_path / "rank-0.err"
    log.write_text("one\ntwo\n")
    evidence = (Evidence("it said two", str(log), 2), Evidence("no file shows this"))
    app.session.problems.set(LAUNCH_OWNER, "mine", [Problem("failed", "It failed.", evidence=evidence)])
    view = app.window.show_panel("problems")
    assert isinstance(view, ProblemsView)
    (row,) = view.rows
    assert [link.text() for link in row.links] == ["rank-0.err, line 2"]
    row.links[0].click()
    page = app.window.editor.active_page()
    assert isinstance(page, CodePage)
    wait_for(lambda: page.editor.toPlainText(), 5, "the file")
    assert page.editor.textCursor().blockNumber() + 1 == 2 and page.message_label.text() == "it said two"


def test_evidence_paths_are_relative_to_the_run_folder() -> None:
    run, inside = Path("/runs/one"), Evidence("", "logs/rank-0.0.err", 3)
    assert evidence_file(inside, run) == run / "logs/rank-0.0.err"
    assert evidence_file(inside, None) is None and evidence_file(Evidence(""), run) is None
    assert evidence_file(Evidence("", "/p/train.py"), run) == Path("/p/train.py")
