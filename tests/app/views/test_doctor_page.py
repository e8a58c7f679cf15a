"""The Doctor's page: every check under its verdict, the worst first, with what to do."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path

import psutil
import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from rankdeck.base.errors import MachineError, Problem
from rankdeck.doctor.lines import announced, encode
from rankdeck_app.composition import App
from rankdeck_app.state.problem_list import DRAFT, LAUNCH
from rankdeck_app.views.doctor_page import CheckRow, DoctorPage
from rankdeck_app.views.problems import ProblemsView
from tests.app.conftest import settle
from tests.helpers.shown_texts import cut
from tests.helpers.told_doctor import NAMES, ToldDoctor, told_rows, whole_look
from tests.helpers.waiting import with_load

WAIT_MS = 10_000


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToldDoctor:
    return ToldDoctor(tmp_path, monkeypatch)


def opened(app: App, python: str) -> DoctorPage:
    app.session.engine.python = python
    assert app.window.commands.run("doctor.show")
    page = app.window.editor.active_page()
    assert isinstance(page, DoctorPage)
    return page


def until(qtbot: QtBot, condition: Callable[[], object]) -> None:
    qtbot.waitUntil(lambda: bool(condition()), timeout=WAIT_MS)


def looked(qtbot: QtBot, app: App, python: str) -> DoctorPage:
    page = opened(app, python)
    until(qtbot, lambda: not app.doctor.doctor.is_looking)
    return page


def grouped(page: DoctorPage) -> dict[str, list[str]]:
    """Titles of the rows by the heading that they stand under, from top to bottom."""
    shown = {group._heading.text(): group for group in page._groups.values() if not group.isHidden()}
    return {
        heading: [row.title for row in sorted(group.findChildren(CheckRow), key=lambda row: row.y())]
        for heading, group in shown.items()
    }


def test_checks_stand_under_their_verdicts_the_worst_first(qtbot: QtBot, app: App, told: ToldDoctor) -> None:
    page = looked(qtbot, app, told.python)
    assert grouped(page) == {
        "BROKEN  1": ["Two ranks by gloo"],
        "WORTH A LOOK  1": ["Clock"],
        "GOOD  2": ["Shared memory", "Open files"],
        "NOT TRIED  1": ["NVIDIA driver"],
    }
    assert page.headline.text() == "2 good, 1 worth a look, 1 broken, 1 not tried"
    assert ", took 4.2 s, by " in page.told.text()
    gloo = page.rows["gloo"]
    words = gloo.words.words
    assert words.startswith("No two ranks can start") and "/opt/" in words and "See Python" in words
    assert gloo.accessibleName().startswith("Two ranks by gloo, broken: No two ranks")
    assert "See Python and torch." in gloo.accessibleDescription()
    gloo.copy_button.setFocus()
    qtbot.keyClick(gloo.copy_button, Qt.Key.Key_Space)
    assert QGuiApplication.clipboard().text() == "export GLOO_SOCKET_IFNAME=lo"
    assert not page.rows["shm"].copy_button.isVisible()
    page.copy_button.click()
    assert QGuiApplication.clipboard().text() == app.doctor.doctor.report()


def test_rows_keep_their_places_until_the_look_is_over(qtbot: QtBot, app: App, told: ToldDoctor) -> None:
    told.tell(encode(announced(NAMES)) + encode(told_rows()[3]), "hang")
    page = opened(app, told.python)
    until(qtbot, lambda: app.doctor.doctor.lines)
    assert grouped(page) == {"BEING LOOKED AT  5": [row.title for row in told_rows()]}
    assert page.rows["shm"].words.words == "Being looked at…" and page.told.text() == "1 of 5 · 1 broken"
    assert page.stop_button.isVisible() and not page.look_button.isEnabled()
    page.stop_button.setFocus()
    qtbot.keyClick(page.stop_button, Qt.Key.Key_Space)
    assert list(grouped(page)) == ["BROKEN  1", "NOT LOOKED AT  4"]
    assert page.problem.text() == "It was stopped." and page.rows["shm"].words.words == "It was not come to."
    assert QApplication.focusWidget() is page.look_button, "the keyboard goes on from there"
    told.tell(whole_look())
    qtbot.keyClick(page.look_button, Qt.Key.Key_Space)
    assert QApplication.focusWidget() is page.stop_button
    until(qtbot, lambda: not app.doctor.doctor.is_looking)
    assert len(grouped(page)) == 4 and page.problem.isHidden()


def test_looking_again_moves_nothing_until_its_end(qtbot: QtBot, app: App, told: ToldDoctor) -> None:
    page = looked(qtbot, app, told.python)
    before, words = grouped(page), page.rows["gloo"].words.words
    told.tell(encode(announced(NAMES)), "hang")
    page.look_button.click()
    until(qtbot, lambda: len(told.pids) == 2 and page._doctor.is_looking)
    assert grouped(page) == before and page.rows["gloo"].words.words == words
    assert page.rows["gloo"].state == "looking"


def test_the_keyboard_stays_at_a_row_that_moves(qtbot: QtBot, app: App, told: ToldDoctor) -> None:
    page = looked(qtbot, app, told.python)
    button = page.rows["gloo"].copy_button
    button.setFocus()
    told.tell(whole_look().replace(b'"verdict":"broken"', b'"verdict":"look"'))
    app.doctor.doctor.look()
    until(qtbot, lambda: not app.doctor.doctor.is_looking)
    assert grouped(page)["WORTH A LOOK  2"] == ["Two ranks by gloo", "Clock"]
    assert QApplication.focusWidget() is button


def test_a_death_of_the_command_is_said(qtbot: QtBot, app: App, told: ToldDoctor) -> None:
    told.tell(encode(announced(NAMES)) + encode(told_rows()[1]), "die")
    page = looked(qtbot, app, told.python)
    assert page.problem.isVisible() and "signal 9" in page.problem.text()
    assert page.headline.text() == "1 good" and list(grouped(page)) == ["GOOD  1", "NOT LOOKED AT  4"]


@pytest.mark.parametrize("how", ["page", "window"])
def test_closing_while_it_looks_leaves_no_process(qtbot: QtBot, app: App, told: ToldDoctor, how: str) -> None:
    told.tell(encode(announced(NAMES)), "hang")
    opened(app, told.python)
    until(qtbot, lambda: app.doctor.doctor.rows)
    (pid,) = told.pids
    assert Path(f"/proc/{pid}").exists()
    if how == "page":
        app.window.editor.close_page("doctor:")
        settle()
    else:
        app.window.close()
    assert not Path(f"/proc/{pid}").exists()


def test_asked_for_again_it_looks_only_where_no_look_was_finished(
    qtbot: QtBot, app: App, told: ToldDoctor
) -> None:
    told.tell(encode(announced(NAMES)), "hang")
    opened(app, told.python)
    until(qtbot, lambda: app.doctor.doctor.rows)
    app.window.editor.close_page("doctor:")
    settle()
    told.tell(whole_look())
    looked(qtbot, app, told.python)
    app.window.editor.close_page("doctor:")
    settle()
    page = looked(qtbot, app, told.python)
    assert len(told.pids) == 2 and len(grouped(page)) == 4, "what was found is still there"


def test_a_tab_that_is_moved_keeps_its_look(qtbot: QtBot, app: App, told: ToldDoctor) -> None:
    told.tell(encode(announced(NAMES)), "hang")
    app.window.editor.open("welcome:")
    opened(app, told.python)
    until(qtbot, lambda: app.doctor.doctor.rows)
    app.window.commands.run("editor.splitRight")
    settle()
    assert app.doctor.doctor.is_looking and len(app.window.editor.groups()) == 2
    app.window.editor.close_page("doctor:")
    app.window.editor.open("doctor:")
    settle()
    assert app.doctor.doctor.is_looking, "the tab that was closed leaves the new one its own"


def test_a_launch_ends_a_look(qtbot: QtBot, app: App, told: ToldDoctor, tmp_path: Path) -> None:
    told.tell(encode(announced(NAMES)), "hang")
    page = opened(app, told.python)
    until(qtbot, lambda: app.doctor.doctor.rows)
    (pid,) = told.pids
    launch = app.session.engine.run_script("mine", ["none.py"], workspace=tmp_path / "workspace")
    app.launching.show_starting(launch)
    assert not Path(f"/proc/{pid}").exists() and page.problem.text() == "It was stopped for a launch."
    launch.cancel()
    until(qtbot, lambda: not app.launching.num_pending)


def test_a_tab_that_is_restored_looks_at_nothing_by_itself(
    make_app: Callable[[], App], told: ToldDoctor
) -> None:
    first = make_app()
    first.session.engine.python = told.python
    first.window.editor.open("doctor:")
    first.window.close()
    second = make_app()
    page = second.window.editor.active_page()
    assert isinstance(page, DoctorPage) and not second.doctor.doctor.was_asked
    assert page.headline.text() == "This machine has not been looked over yet."
    assert page.look_button.text() == "Look" and page.look_button.isEnabled() and not told.pids


def test_problems_that_it_may_explain_offer_it(qtbot: QtBot, app: App, told: ToldDoctor) -> None:
    app.session.engine.python = told.python
    view = app.window.show_panel("problems")
    assert isinstance(view, ProblemsView)
    app.session.problems.set(DRAFT, "draft", [Problem("config", "train.steps must be a whole number.")])
    assert "Look the Machine Over" not in view.rows[0].labels
    app.session.problems.set(LAUNCH, "mine", [Problem(MachineError.code, "No port can be opened.")])
    (button,) = [one for one in view.rows[0].buttons if one.text() == "Look the Machine Over"]
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    page = app.window.editor.active_page()
    assert isinstance(page, DoctorPage)
    until(qtbot, lambda: len(grouped(page)) == 4)


def test_help_and_the_devices_tab_lead_to_it(app: App) -> None:
    command = app.window.commands["doctor.show"]
    assert command.shown == "Help: Look This Machine Over" and command.menu.startswith("Help/")
    page = app.window.editor.open("devices:")
    assert [action.command for action in page.tab_actions()] == ["doctor.show"]


def test_no_text_is_cut_at_any_width(qtbot: QtBot, app: App, told: ToldDoctor) -> None:
    page = looked(qtbot, app, told.python)
    app.window.show()
    for theme, width in product(("Dark Modern", "Light Modern", "Dark High Contrast"), (1440, 1000, 760)):
        app.window.theme.load(theme)
        app.window.resize(width, 720)
        settle()
        assert not list(cut(page))
        for row in page.rows.values():
            edit = row.words
            assert edit.document().size().height() <= edit.height() + 1, (theme, width, row.title)
            assert edit.document().idealWidth() <= edit.width() + 1, "a long path is broken"
            assert row.mapTo(page, row.rect().topRight()).x() <= page.width()


def test_the_real_command_fills_the_page_and_what_it_has_started_ends_with_it(qtbot: QtBot, app: App) -> None:
    page = opened(app, sys.executable)
    doctor = app.doctor.doctor
    qtbot.waitUntil(lambda: "runs" in doctor.lines and "python" not in doctor.lines, timeout=60_000)
    states = {key: page.rows[key].state for key in doctor.lines}
    assert len(page.rows) >= 20 and "looking" not in states.values() and doctor.problem == ""
    assert "are free" in page.rows["runs"].words.words
    command = next(child for child in psutil.Process().children() if "doctor" in child.cmdline())
    qtbot.waitUntil(
        lambda: any("probe_torch" in " ".join(each) for each in _lines_of(command)), timeout=60_000
    )
    started = [command, *command.children(recursive=True)]
    app.window.editor.close_page("doctor:")
    settle()
    _, alive = psutil.wait_procs(started, timeout=with_load(10))
    assert len(started) > 2 and not alive


def _lines_of(command: psutil.Process) -> list[list[str]]:
    """Of all that it has started."""
    found = []
    for child in command.children(recursive=True):
        with suppress(psutil.Error):
            found.append(child.cmdline())
    return found


@pytest.mark.slow
def test_the_real_command_fills_the_page(qtbot: QtBot, app: App) -> None:
    """To its end; that its rows come in is held by the test above too."""
    page = opened(app, sys.executable)
    qtbot.waitUntil(lambda: not app.doctor.doctor.is_looking, timeout=120_000)
    assert app.doctor.doctor.problem == "" and app.doctor.doctor.done is not None
    assert page.rows["gloo"].state == "good", json.dumps(page.rows["gloo"].words.words)
    assert page.rows["python"].state == "good" and "torch" in page.rows["python"].words.words
    assert "looking" not in {row.state for row in page.rows.values()} and len(page.rows) >= 20
