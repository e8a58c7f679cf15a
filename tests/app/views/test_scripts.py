"""Scripts in the app: the form and its problems, entries, the interpreter picker, dropped files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import QMimeData, QPointF, Qt, QUrl
from PySide6.QtGui import QDragEnterEvent, QDropEvent
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from rankdeck.config.script import OBSERVE_LEVELS
from rankdeck_app.composition import App
from rankdeck_app.views.launch.side_bar import LaunchView
from rankdeck_app.views.runs import RunsView
from tests.helpers.app_window import open_run
from tests.helpers.own_scripts import environment, project
from tests.helpers.written_script import WrittenScript


@pytest.fixture
def opened(qtbot: QtBot, tmp_path: Path, make_app: Callable[[], App], monkeypatch: pytest.MonkeyPatch) -> App:
    """The app on a folder of scripts, looked at."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    project(tmp_path / "workspace")
    app = make_app()
    qtbot.waitUntil(lambda: app.session.scripts.is_known, timeout=10_000)
    return app


def find_launch_view(app: App) -> LaunchView:
    view = app.window.show_activity("launch")
    assert isinstance(view, LaunchView)
    return view


def palette_labels(app: App) -> list[str]:
    return [row.item.label for row in app.window.command_palette.model.rows]


def test_the_switch_shows_the_script_form(qtbot: QtBot, opened: App) -> None:
    view = find_launch_view(opened)
    assert view.model.isVisible() and not view.script.isVisible()
    qtbot.mouseClick(view.script_button, Qt.MouseButton.LeftButton)
    assert view.script.isVisible() and not view.model.isVisible() and not view.strategy.isVisible()
    assert view.devices.local_devices.rehearsal_button.text() == "No GPUs"
    opened.window.commands.run("run.launch")
    assert not opened.launcher.num_pending and view.script.file_box.hasFocus()
    assert view.footer.launch_button.toolTip().startswith("No script is chosen.")
    assert not opened.session.problems.entries, "an empty form is no fault"
    line = view.script.file_box.lineEdit()
    assert line is not None
    qtbot.keyClicks(line, "train.py")
    assert not view.footer.blocker_banner.isVisible()
    assert view.footer.estimate.text() == "train.py on 1 rank, Python 3.10.4 ('.venv')"
    qtbot.mouseClick(view.devices.local_devices.stepper.increase_button, Qt.MouseButton.LeftButton)
    assert opened.session.script.ranks == 2
    assert [card.accessibleName() for card in view.devices.local_devices.grid.cards] == ["Rank 0", "Rank 1"]
    qtbot.mouseClick(view.configuration_button, Qt.MouseButton.LeftButton)
    assert view.model.isVisible() and view.devices.local_devices.rehearsal_button.text() == "Rehearsal"
    assert opened.session.draft.value(("devices", "use")) == "cpu:4"


def test_an_invalid_field_is_reported_below_it_and_in_problems(qtbot: QtBot, opened: App) -> None:
    view = find_launch_view(opened)
    opened.session.script.set_chosen(True)
    opened.session.script.set_fields(run="train.py")
    qtbot.keyClicks(view.script.arguments_edit, "--name 'open")
    line = view.script.arguments_line
    assert line.problem_label.isVisible() and "quotation" in line.problem_label.text()
    assert line.editor.property("invalid") == "true"
    (entry,) = opened.session.problems.entries
    assert entry.problem.path == "script.arguments" and opened.launcher.blocker() == entry.problem
    qtbot.keyClicks(view.script.arguments_edit, "'")
    assert not line.problem_label.isVisible() and not opened.session.problems.entries


def test_entries_fill_the_form_and_have_commands(qtbot: QtBot, opened: App) -> None:
    view = find_launch_view(opened)
    opened.session.script.set_chosen(True)
    box = view.script.entry_box
    assert [box.itemText(at) for at in range(box.count())] == ["none", "small", "large"]
    box.activated.emit(1)
    assert view.script.arguments_edit.text() == "--lr 1e-3" and opened.session.script.ranks == 2
    assert box.currentText() == "small"
    opened.session.script.set_fields(arguments="--lr 1e-2")
    assert box.currentText() == "small (changed)"
    box.activated.emit(1)
    assert box.currentText() == "small" and view.script.arguments_edit.text() == "--lr 1e-3"
    assert opened.window.commands["run.entry.large"].title == "Run: large"
    opened.scripts.save_entry("mine")
    qtbot.waitUntil(lambda: "run.entry.mine" in opened.window.commands, timeout=10_000)
    assert box.currentText() == "mine"
    qtbot.mouseClick(view.script.remove_button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: "run.entry.mine" not in opened.window.commands, timeout=10_000)
    assert "# how I run it" in (opened.session.workspace.folder / "rankdeck.toml").read_text()


def test_the_status_bar_shows_and_changes_the_interpreter(qtbot: QtBot, opened: App, tmp_path: Path) -> None:
    item, disk = opened.window.status_bar.item("python"), opened.session.io_thread
    assert item.text() == "Python 3.10.4 ('.venv')" and "torch 2.4.1" in item.toolTip()
    other = environment(tmp_path / "workspace" / "other", "3.12.1", None)
    qtbot.mouseClick(item, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: "Python 3.12.1 ('other')" in palette_labels(opened), timeout=10_000)
    box = opened.window.command_palette
    box.input.setText("3.12.1 other")
    qtbot.keyClick(box.input, Qt.Key.Key_Return)
    disk.wait_for_done()
    assert item.text() == "Python 3.12.1 ('other')"
    view = find_launch_view(opened)
    opened.session.script.set_chosen(True)
    assert "torch was not found" in view.script.python_line.problem_label.text()
    opened.interpreter_picker._choose_path("nowhere/at/all")
    disk.wait_for_done()
    assert "nowhere/at/all" in opened.window.toasts.history[-1].text
    opened.interpreter_picker._choose_path(str(other.parent.parent.parent / ".venv"))
    disk.wait_for_done()
    assert item.text() == "Python 3.10.4 ('.venv')"
    assert opened.session.scripts.is_chosen
    opened.window.commands.run("python.select")
    assert palette_labels(opened)[:2] == ["Enter interpreter path…", "Use the default interpreter"]


def test_a_dropped_script_fills_the_form(opened: App) -> None:
    def drop(path: Path) -> None:
        data = QMimeData()
        data.setUrls([QUrl.fromLocalFile(str(path))])
        at, copy = QPointF(700, 300), Qt.DropAction.CopyAction
        left, none = Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier
        for event in (
            QDragEnterEvent(at.toPoint(), copy, data, left, none),
            QDropEvent(at, copy, data, left, none),
        ):
            QApplication.sendEvent(opened.window, event)
        opened.session.io_thread.wait_for_done()

    folder = opened.session.workspace.folder
    drop(folder / "models" / "large.py")
    assert opened.session.script.is_chosen and opened.session.script.form.run == "models/large.py"
    assert opened.window.side_bar.current_id == "launch"
    drop(folder / "picture.png")
    assert "neither a script (.py)" in opened.window.toasts.history[-1].text


def test_the_palette_offers_scripts(qtbot: QtBot, opened: App) -> None:
    opened.window.command_palette.show_quick_open("large.py")
    qtbot.keyClick(opened.window.command_palette.input, Qt.Key.Key_Return)
    assert opened.session.script.form.run == "models/large.py"
    opened.window.commands.run("run.script")
    assert palette_labels(opened) == ["train.py", "large.py", "Browse…"]


def test_a_script_run_can_be_rerun_but_not_resumed(qtbot: QtBot, opened: App) -> None:
    written = WrittenScript(
        opened.session.workspace.runs_folder,
        config={"folder": str(opened.session.workspace.folder), "args": ["--lr", "two words"], "ranks": 3},
    )
    written.start_script(3)
    written.end_script(1)
    opened.session.runs.rescan()
    view = opened.window.show_activity("runs")
    assert isinstance(view, RunsView)
    qtbot.waitUntil(lambda: view.proxy.rowCount() == 1, timeout=10_000)
    view.list.setCurrentIndex(view.proxy.index(0, 0))
    info = view.current_run()
    assert info is not None
    texts = [action.text() for action in view.build_menu(info).actions()]
    assert "Run Again" in texts and not {"Resume", "Save Checkpoint Now"} & set(texts)
    (item,) = opened.actions.run_items()
    assert "3 on CPU" in item.description and all(item.description.split(" · ")), "it has no strategy"
    opened.actions.use_configuration(written.path)
    opened.session.io_thread.wait_for_done()
    form = opened.session.script.form
    assert form.run == "train.py" and form.arguments == "--lr 'two words'" and form.ranks == 3
    open_run(opened, written.path)
    qtbot.waitUntil(lambda: opened.window.commands.is_enabled("run.again"), timeout=10_000)
    assert not opened.window.commands.is_enabled("run.resume")
    page = opened.window.editor.active_page()
    assert page is not None and [action.tooltip for action in page.tab_actions()] == ["Run Again", "Compare"]


def test_the_form_offers_every_observe_level(opened: App) -> None:
    box = find_launch_view(opened).script.observe_box
    assert {box.itemText(index) for index in range(box.count())} == set(OBSERVE_LEVELS)
    box.setCurrentText("check")
    box.activated.emit(box.currentIndex())
    assert opened.session.script.form.observe == "check"
    assert not any("observe" in problem.message for problem in opened.session.script.problems)
