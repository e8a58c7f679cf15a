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
from rankdeck.doctor.lines import announce_rows, encode
from rankdeck_app.composition import App
from rankdeck_app.state.problem_list import DRAFT_OWNER, LAUNCH_OWNER
from rankdeck_app.views.doctor_page import CheckRow, DoctorPage
from rankdeck_app.views.problems import ProblemsView
from tests.app.conftest import process_events
from tests.helpers.fake_doctor import NAMES, FakeDoctor, check_rows, encoded_checks
from tests.helpers.processes import command_line
from tests.helpers.shown_texts import cut_texts
from tests.helpers.waiting import scale_timeout

WAIT_MS = 10_000


@pytest.fixture
def doctor_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDoctor:
    return FakeDoctor(tmp_path, monkeypatch)


def open_doctor_page(app: App, python: str) -> DoctorPage:
    app.session.engine.python = python
    assert app.window.commands.run("doctor.show")
    page = app.window.editor.active_page()
    assert isinstance(page, DoctorPage)
    return page


def wait_until(qtbot: QtBot, condition: Callable[[], object]) -> None:
    qtbot.waitUntil(lambda: bool(condition()), timeout=WAIT_MS)


def run_doctor(qtbot: QtBot, app: App, python: str) -> DoctorPage:
    page = open_doctor_page(app, python)
    wait_until(qtbot, lambda: not app.doctor_tab.doctor.is_running)
    return page


def titles_by_heading(page: DoctorPage) -> dict[str, list[str]]:
    """Titles of the rows by the heading that they stand under, from top to bottom."""
    groups = {group._heading.text(): group for group in page._groups.values() if not group.isHidden()}
    return {
        heading: [row.title for row in sorted(group.findChildren(CheckRow), key=lambda row: row.y())]
        for heading, group in groups.items()
    }


def test_checks_are_grouped_by_verdict_worst_first(
    qtbot: QtBot, app: App, doctor_command: FakeDoctor
) -> None:
    page = run_doctor(qtbot, app, doctor_command.python)
    assert titles_by_heading(page) == {
        "BROKEN  1": ["Two ranks with gloo"],
        "WORTH A LOOK  1": ["Clock"],
        "GOOD  2": ["Shared memory", "Open files"],
        "SKIPPED  1": ["NVIDIA driver"],
    }
    assert page.headline_label.text() == "2 good, 1 worth a look, 1 broken, 1 skipped"
    assert ", took 4.2 s, with " in page.status_label.text()
    gloo = page.rows["gloo"]
    details = gloo.details.text
    assert (
        details.startswith("Ranks cannot start")
        and "/opt/" in details
        and "See the result for Python" in details
    )
    assert gloo.accessibleName().startswith("Two ranks with gloo, broken: Ranks cannot start")
    assert "See the result for Python and torch." in gloo.accessibleDescription()
    gloo.copy_button.setFocus()
    qtbot.keyClick(gloo.copy_button, Qt.Key.Key_Space)
    assert QGuiApplication.clipboard().text() == "export GLOO_SOCKET_IFNAME=lo"
    assert not page.rows["shm"].copy_button.isVisible()
    page.copy_button.click()
    assert QGuiApplication.clipboard().text() == app.doctor_tab.doctor.report()


def test_rows_keep_their_order_until_the_checks_end(
    qtbot: QtBot, app: App, doctor_command: FakeDoctor
) -> None:
    doctor_command.set_output(encode(announce_rows(NAMES)) + encode(check_rows()[3]), "hang")
    page = open_doctor_page(app, doctor_command.python)
    wait_until(qtbot, lambda: app.doctor_tab.doctor.lines)
    assert titles_by_heading(page) == {"CHECKING  5": [row.title for row in check_rows()]}
    assert page.rows["shm"].details.text == "Checking…" and page.status_label.text() == "1 of 5 · 1 broken"
    assert page.stop_button.isVisible() and not page.check_button.isEnabled()
    page.stop_button.setFocus()
    qtbot.keyClick(page.stop_button, Qt.Key.Key_Space)
    assert list(titles_by_heading(page)) == ["BROKEN  1", "NOT CHECKED  4"]
    assert (
        page.problem_label.text() == "The doctor was stopped."
        and page.rows["shm"].details.text == "This check was skipped."
    )
    assert QApplication.focusWidget() is page.check_button, "the keyboard goes on from there"
    doctor_command.set_output(encoded_checks())
    qtbot.keyClick(page.check_button, Qt.Key.Key_Space)
    assert QApplication.focusWidget() is page.stop_button
    wait_until(qtbot, lambda: not app.doctor_tab.doctor.is_running)
    assert len(titles_by_heading(page)) == 4 and page.problem_label.isHidden()


def test_checking_again_moves_no_row_until_its_end(
    qtbot: QtBot, app: App, doctor_command: FakeDoctor
) -> None:
    page = run_doctor(qtbot, app, doctor_command.python)
    before, details = titles_by_heading(page), page.rows["gloo"].details.text
    doctor_command.set_output(encode(announce_rows(NAMES)), "hang")
    page.check_button.click()
    wait_until(qtbot, lambda: len(doctor_command.pids) == 2 and page._doctor.is_running)
    assert titles_by_heading(page) == before and page.rows["gloo"].details.text == details
    assert page.rows["gloo"].state == "looking"


def test_focus_stays_in_a_row_that_moves(qtbot: QtBot, app: App, doctor_command: FakeDoctor) -> None:
    page = run_doctor(qtbot, app, doctor_command.python)
    button = page.rows["gloo"].copy_button
    button.setFocus()
    doctor_command.set_output(encoded_checks().replace(b'"verdict":"broken"', b'"verdict":"look"'))
    app.doctor_tab.doctor.start()
    wait_until(qtbot, lambda: not app.doctor_tab.doctor.is_running)
    assert titles_by_heading(page)["WORTH A LOOK  2"] == ["Two ranks with gloo", "Clock"]
    assert QApplication.focusWidget() is button


def test_a_crash_of_the_command_is_shown(qtbot: QtBot, app: App, doctor_command: FakeDoctor) -> None:
    doctor_command.set_output(encode(announce_rows(NAMES)) + encode(check_rows()[1]), "die")
    page = run_doctor(qtbot, app, doctor_command.python)
    assert page.problem_label.isVisible() and "signal 9" in page.problem_label.text()
    assert page.headline_label.text() == "1 good" and list(titles_by_heading(page)) == [
        "GOOD  1",
        "NOT CHECKED  4",
    ]


@pytest.mark.parametrize("how", ["page", "window"])
def test_closing_during_the_checks_leaves_no_process(
    qtbot: QtBot, app: App, doctor_command: FakeDoctor, how: str
) -> None:
    doctor_command.set_output(encode(announce_rows(NAMES)), "hang")
    open_doctor_page(app, doctor_command.python)
    wait_until(qtbot, lambda: app.doctor_tab.doctor.rows)
    (pid,) = doctor_command.pids
    assert Path(f"/proc/{pid}").exists()
    if how == "page":
        app.window.editor.close_page("doctor:")
        process_events()
    else:
        app.window.close()
    assert not Path(f"/proc/{pid}").exists()


def test_showing_the_doctor_again_starts_checks_only_if_none_finished(
    qtbot: QtBot, app: App, doctor_command: FakeDoctor
) -> None:
    doctor_command.set_output(encode(announce_rows(NAMES)), "hang")
    open_doctor_page(app, doctor_command.python)
    wait_until(qtbot, lambda: app.doctor_tab.doctor.rows)
    app.window.editor.close_page("doctor:")
    process_events()
    doctor_command.set_output(encoded_checks())
    run_doctor(qtbot, app, doctor_command.python)
    app.window.editor.close_page("doctor:")
    process_events()
    page = run_doctor(qtbot, app, doctor_command.python)
    assert len(doctor_command.pids) == 2 and len(titles_by_heading(page)) == 4, (
        "what was found is still there"
    )


def test_moving_the_tab_keeps_the_checks_running(qtbot: QtBot, app: App, doctor_command: FakeDoctor) -> None:
    doctor_command.set_output(encode(announce_rows(NAMES)), "hang")
    app.window.editor.open("welcome:")
    open_doctor_page(app, doctor_command.python)
    wait_until(qtbot, lambda: app.doctor_tab.doctor.rows)
    app.window.commands.run("editor.splitRight")
    process_events()
    assert app.doctor_tab.doctor.is_running and len(app.window.editor.groups()) == 2
    app.window.editor.close_page("doctor:")
    app.window.editor.open("doctor:")
    process_events()
    assert app.doctor_tab.doctor.is_running, "the tab that was closed leaves the new one its own"


def test_a_launch_stops_the_checks(
    qtbot: QtBot, app: App, doctor_command: FakeDoctor, tmp_path: Path
) -> None:
    doctor_command.set_output(encode(announce_rows(NAMES)), "hang")
    page = open_doctor_page(app, doctor_command.python)
    wait_until(qtbot, lambda: app.doctor_tab.doctor.rows)
    (pid,) = doctor_command.pids
    launch = app.session.engine.run_script("mine", ["none.py"], workspace=tmp_path / "workspace")
    app.launcher.show_starting_page(launch)
    assert (
        not Path(f"/proc/{pid}").exists()
        and page.problem_label.text() == "The doctor was stopped because a run is starting."
    )
    launch.cancel()
    wait_until(qtbot, lambda: not app.launcher.num_pending)


def test_a_restored_tab_starts_no_checks(make_app: Callable[[], App], doctor_command: FakeDoctor) -> None:
    first = make_app()
    first.session.engine.python = doctor_command.python
    first.window.editor.open("doctor:")
    first.window.close()
    second = make_app()
    page = second.window.editor.active_page()
    assert isinstance(page, DoctorPage) and not second.doctor_tab.doctor.has_results
    assert page.headline_label.text() == "This machine has not been checked yet."
    assert page.check_button.text() == "Check" and page.check_button.isEnabled() and not doctor_command.pids


def test_problems_of_the_machine_offer_the_doctor(qtbot: QtBot, app: App, doctor_command: FakeDoctor) -> None:
    app.session.engine.python = doctor_command.python
    view = app.window.show_panel("problems")
    assert isinstance(view, ProblemsView)
    app.session.problems.set(DRAFT_OWNER, "draft", [Problem("config", "train.steps must be a whole number.")])
    assert "Check This Machine" not in view.rows[0].labels
    app.session.problems.set(LAUNCH_OWNER, "mine", [Problem(MachineError.code, "No port can be opened.")])
    (button,) = [candidate for candidate in view.rows[0].buttons if candidate.text() == "Check This Machine"]
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    page = app.window.editor.active_page()
    assert isinstance(page, DoctorPage)
    wait_until(qtbot, lambda: len(titles_by_heading(page)) == 4)


def test_help_and_the_devices_tab_open_the_doctor(app: App) -> None:
    command = app.window.commands["doctor.show"]
    assert command.display_title == "Help: Check This Machine" and command.menu.startswith("Help/")
    page = app.window.editor.open("devices:")
    assert [action.command for action in page.tab_actions()] == ["doctor.show"]


def test_no_text_is_cut_at_any_width(qtbot: QtBot, app: App, doctor_command: FakeDoctor) -> None:
    page = run_doctor(qtbot, app, doctor_command.python)
    app.window.show()
    for theme, width in product(("Dark Modern", "Light Modern", "Dark High Contrast"), (1440, 1000, 760)):
        app.window.theme.load(theme)
        app.window.resize(width, 720)
        process_events()
        assert not list(cut_texts(page))
        for row in page.rows.values():
            edit = row.details
            assert edit.document().size().height() <= edit.height() + 1, (theme, width, row.title)
            assert edit.document().idealWidth() <= edit.width() + 1, "a long path is broken"
            assert row.mapTo(page, row.rect().topRight()).x() <= page.width()


def test_stopping_the_real_command_ends_its_processes(qtbot: QtBot, app: App) -> None:
    page = open_doctor_page(app, sys.executable)
    doctor = app.doctor_tab.doctor
    qtbot.waitUntil(lambda: "runs" in doctor.lines and "python" not in doctor.lines, timeout=60_000)
    states = {key: page.rows[key].state for key in doctor.lines}
    assert len(page.rows) >= 20 and "looking" not in states.values() and doctor.problem == ""
    assert "is free" in page.rows["runs"].details.text
    command = next(child for child in psutil.Process().children() if "doctor" in command_line(child))
    qtbot.waitUntil(
        lambda: any("probe_torch" in " ".join(each) for each in _child_command_lines(command)), timeout=60_000
    )
    started = [command, *command.children(recursive=True)]
    app.window.editor.close_page("doctor:")
    process_events()
    _, alive = psutil.wait_procs(started, timeout=scale_timeout(10))
    assert len(started) > 2 and not alive


def _child_command_lines(command: psutil.Process) -> list[list[str]]:
    """Of all that it has started."""
    command_lines = []
    for child in command.children(recursive=True):
        with suppress(psutil.Error):
            command_lines.append(child.cmdline())
    return command_lines


@pytest.mark.slow
def test_the_real_command_fills_the_page(qtbot: QtBot, app: App) -> None:
    """To its end; that its rows come in is held by the test above too."""
    page = open_doctor_page(app, sys.executable)
    qtbot.waitUntil(lambda: not app.doctor_tab.doctor.is_running, timeout=120_000)
    assert app.doctor_tab.doctor.problem == "" and app.doctor_tab.doctor.done is not None
    assert page.rows["gloo"].state == "good", json.dumps(page.rows["gloo"].details.text)
    assert page.rows["python"].state == "good" and "torch" in page.rows["python"].details.text
    assert "looking" not in {row.state for row in page.rows.values()} and len(page.rows) >= 20
