"""The lists of runs in the app: looked at, renamed, tagged, put away, thrown away and brought back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import QEvent, QItemSelectionModel, QObject, Qt
from PySide6.QtGui import QAction, QGuiApplication
from PySide6.QtWidgets import QApplication, QCheckBox, QComboBox, QLineEdit, QPushButton, QWidget
from pytestqt.qtbot import QtBot

from rankdeck import events
from rankdeck.checkpoint_files import write_commit
from rankdeck.run_dir import Labels, read_labels, write_labels
from rankdeck_app.composition import App
from rankdeck_app.controllers.run_actions import COMPARE_COMMAND, RUN_ACTIONS
from rankdeck_app.views.runs import RunsView
from rankdeck_app.views.runs_page import NoteDialog, RunsPage
from rankdeck_app.widgets.run_columns import COLUMN_INDICES
from tests.helpers.app_window import open_run
from tests.helpers.written_race import WrittenRace, make_entry
from tests.helpers.written_run import WrittenRun, device_infos

NAMES = ("one", "two", "three", "four")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, WrittenRun]:
    """Four runs that are over, of a person whose trash is empty."""
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    written_runs = {}
    for age, name in enumerate(NAMES):
        written_runs[name] = WrittenRun(
            Path(os.environ["RANKDECK_RUNS"]), name, config={"strategy": {"use": "ddp"}}
        )
        written_runs[name].started -= 1000 * age
        written_runs[name].start(devices=device_infos(2), steps=150, strategy="ddp")
        written_runs[name].write_steps(0, 1, [3.0 - age / 10] * 103)
        written_runs[name].end("stopped" if name == "two" else "completed")
    return written_runs


@pytest.fixture
def page(qtbot: QtBot, runs: dict[str, WrittenRun], make_app: Callable[[], App]) -> RunsPage:
    return open_page(qtbot, make_app())


def app_of(page: RunsPage) -> App:
    return page.property("app")  # type: ignore[no-any-return]


def open_page(qtbot: QtBot, app: App, num_runs: int = 4) -> RunsPage:
    app.window.commands.run("runs.table")
    page = app.window.editor.active_page()
    assert isinstance(page, RunsPage)
    page.setProperty("app", app)
    qtbot.waitUntil(lambda: len(app.session.runs.infos) == num_runs, timeout=10_000)
    return page


def titles(page: RunsPage) -> list[str]:
    return [getattr(row, "title", getattr(row, "label", "")) for row in page.model.rows]


def select_runs(qtbot: QtBot, page: RunsPage, *names: str) -> None:
    """Choose runs with the keyboard in the table."""
    page.table.setFocus()
    page.table.clearSelection()
    flags = QItemSelectionModel.SelectionFlag
    for name in names:
        index = page.model.index(titles(page).index(name), 0)
        page.table.selectionModel().setCurrentIndex(index, flags.Select | flags.Rows)
    selected = app_of(page).run_lists
    qtbot.waitUntil(lambda: [info.title for info in selected.selected_runs] == list(names), timeout=5000)


def tab_titles(page: RunsPage) -> list[list[tuple[str, bool]]]:
    groups = app_of(page).window.editor.groups()
    return [[(tab.display_title(), tab.preview) for tab in group.tabs] for group in groups]


def test_a_click_previews_a_run_and_enter_opens_it(qtbot: QtBot, page: RunsPage) -> None:
    left, table = Qt.MouseButton.LeftButton, page.table
    for name in ("two", "three"):
        row = titles(page).index(name)
        qtbot.mouseClick(table.viewport(), left, pos=table.visualRect(page.model.index(row, 0)).center())
        qtbot.waitUntil(lambda name=name: tab_titles(page)[1:] == [[(name, True)]], timeout=10_000)
        QApplication.processEvents()
        assert QApplication.focusWidget() is table, "the keyboard stays in the table"
    qtbot.waitUntil(lambda: app_of(page).window.commands.is_enabled("runs.rename"), timeout=5000)
    qtbot.keyClick(table, Qt.Key.Key_Return)
    assert tab_titles(page)[1:] == [[("three", False)]]
    page.preview_box.setChecked(False)
    table.setFocus()
    row = titles(page).index("one")
    qtbot.mouseClick(table.viewport(), left, pos=table.visualRect(page.model.index(row, 0)).center())
    assert tab_titles(page)[1:] == [[("three", False)]]


def test_ages_in_table_and_side_bar_update_together(qtbot: QtBot, page: RunsPage) -> None:
    runs, view = app_of(page).session.runs, app_of(page).window.show_activity("runs")
    assert isinstance(view, RunsView)
    qtbot.waitUntil(lambda: all(info.metrics for info in runs.infos), timeout=10_000)
    QApplication.processEvents()
    painted = PaintCounter(view.list.viewport())
    with qtbot.waitSignal(page.model.dataChanged) as changed:
        runs.ages_changed.emit()
    QApplication.processEvents()
    assert painted.count
    assert changed.args[0].column() == changed.args[1].column() == COLUMN_INDICES["began"]
    assert (changed.args[0].row(), changed.args[1].row()) == (0, 3)
    page.hide()
    with qtbot.assertNotEmitted(page.model.dataChanged):
        runs.ages_changed.emit()


class PaintCounter(QObject):
    """How often a widget is."""

    def __init__(self, widget: QWidget) -> None:
        super().__init__(widget)
        self.count = 0
        widget.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        self.count += event.type() == QEvent.Type.Paint
        return False


def test_the_side_bar_shows_progress_and_previews_runs(qtbot: QtBot, page: RunsPage) -> None:
    app = app_of(page)
    view = app.window.show_activity("runs")
    assert isinstance(view, RunsView) and view.proxy.rowCount() == 4
    index = next(view.proxy.index(row, 0) for row in range(4) if "two" in view.proxy.index(row, 0).data())
    text = index.data(Qt.ItemDataRole.AccessibleTextRole)
    assert text == "two, ddp, stopped, step 103 of 150"
    qtbot.mouseClick(
        view.list.viewport(), Qt.MouseButton.LeftButton, pos=view.list.visualRect(index).center()
    )
    qtbot.waitUntil(lambda: tab_titles(page)[0][-1] == ("two", True), timeout=10_000)
    view.list.activated.emit(index)
    assert tab_titles(page)[0][-1] == ("two", False)
    view.list.setCurrentIndex(index)
    view.list.setFocus()
    qtbot.waitUntil(lambda: app.window.commands.is_enabled("runs.rename"), timeout=5000)
    qtbot.keyClick(view.list, Qt.Key.Key_F2)
    assert app.window.command_palette.isVisible() and app.window.command_palette.input.text() == "two"
    app.window.command_palette.dismiss()
    app.window.editor.close_page("runs:")
    view.table_button.click()
    assert app.window.context.get("activePageId") == "runs:"


def test_f2_renames_a_run_everywhere(qtbot: QtBot, page: RunsPage, runs: dict[str, WrittenRun]) -> None:
    app = app_of(page)
    select_runs(qtbot, page, "two")
    assert app.window.commands.run("runs.rename")
    editor = page.table.viewport().findChild(QLineEdit)
    assert editor is not None
    write_labels(runs["one"].path, Labels(name="changed meanwhile"))
    app.session.runs.rescan(is_full=True)
    qtbot.waitUntil(lambda: app.session.runs.get_title(runs["one"].path) == "changed meanwhile", timeout=5000)
    assert editor.isVisible(), "what else happens does not take the field away"
    qtbot.keyClicks(editor, "the second")
    qtbot.keyClick(editor, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: {"the second", "changed meanwhile"} <= set(titles(page)), timeout=5000)
    assert read_labels(runs["two"].path).name == "the second"
    assert [info.title for info in page.selected_runs()] == ["the second"]
    assert app.window.editor.active_page() is page, "Enter was the field's, and opened nothing"


def test_editing_tags_of_several_runs_keeps_their_other_tags(
    qtbot: QtBot, page: RunsPage, runs: dict[str, WrittenRun]
) -> None:
    app = app_of(page)
    write_labels(runs["one"].path, Labels(tags=("own", "both")))
    write_labels(runs["two"].path, Labels(tags=("both",)))
    app.session.runs.rescan(is_full=True)
    qtbot.waitUntil(lambda: all(app.session.runs.find_info(runs[n].path).labels.tags for n in NAMES[:2]))  # type: ignore[union-attr]
    select_runs(qtbot, page, "one", "two")
    app.window.commands.run("runs.tags")
    box = app.window.command_palette
    assert box.input.text() == "both"
    box.input.setText("#new, other ")
    qtbot.keyClick(box.input, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: read_labels(runs["two"].path).tags == ("new", "other"), timeout=5000)
    assert read_labels(runs["one"].path).tags == ("own", "new", "other")
    page.search.setText("tag:nobody")
    assert (
        titles(page) == [] and page.empty_label.text() == "No matching runs." and page.empty_label.isVisible()
    )
    page.search.setText("tag:own")
    qtbot.waitUntil(lambda: titles(page) == ["one"], timeout=5000)


def test_a_note_is_edited_in_a_dialog(qtbot: QtBot, page: RunsPage, runs: dict[str, WrittenRun]) -> None:
    app = app_of(page)
    select_runs(qtbot, page, "three")
    app.window.commands.run("runs.note")
    sheet = app.run_lists.organizer.note_dialog
    assert isinstance(sheet, NoteDialog) and sheet.text_edit.accessibleName() == "Note for three"
    sheet.text_edit.setPlainText("warm-up too short\nagain with 500")
    sheet.save_button.click()
    qtbot.waitUntil(lambda: "again" in read_labels(runs["three"].path).note, timeout=5000)
    assert app.run_lists.organizer.note_dialog is None


def test_archived_runs_are_hidden_until_requested(
    qtbot: QtBot, page: RunsPage, runs: dict[str, WrittenRun]
) -> None:
    app = app_of(page)
    select_runs(qtbot, page, "one", "four")
    app.window.commands.run("runs.archive")
    qtbot.waitUntil(lambda: titles(page) == ["two", "three"], timeout=5000)
    assert "2 archived" in page.count_label.text()
    page.archived_box.setChecked(True)
    assert len(titles(page)) == 4
    select_runs(qtbot, page, "one")
    assert not app.window.commands.is_enabled("runs.archive")
    app.window.commands.run("runs.unarchive")
    page.archived_box.setChecked(False)
    qtbot.waitUntil(lambda: titles(page) == ["one", "two", "three"], timeout=5000)
    (toast,) = [
        candidate
        for candidate in app.window.toasts.visible_toasts
        if "archived" in candidate.notification.text
    ]
    toast.findChildren(QPushButton)[0].click()
    qtbot.waitUntil(lambda: len(titles(page)) == 4, timeout=5000)


def test_deleted_runs_close_their_tabs_and_can_be_restored(
    qtbot: QtBot, page: RunsPage, runs: dict[str, WrittenRun], tmp_path: Path
) -> None:
    app = app_of(page)
    open_run(app, runs["two"].path)
    app.window.editor.open("runs:")
    select_runs(qtbot, page, "two", "three")
    qtbot.keyClick(page.table, Qt.Key.Key_Delete)
    qtbot.waitUntil(lambda: titles(page) == ["one", "four"], timeout=10_000)
    assert not runs["two"].path.exists() and len(list((tmp_path / "data/Trash/files").iterdir())) == 2
    assert app.window.editor.page(f"run:{runs['two'].path}") is None
    (toast,) = [
        candidate for candidate in app.window.toasts.visible_toasts if "trash" in candidate.notification.text
    ]
    assert toast.notification.text == "2 runs were moved to the trash."
    toast.findChildren(QPushButton)[0].click()
    qtbot.waitUntil(lambda: len(titles(page)) == 4, timeout=10_000)


def test_a_race_is_one_row_that_can_be_edited_and_deleted(
    qtbot: QtBot, make_app: Callable[[], App], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    raced = WrittenRace(Path(os.environ["RANKDECK_RUNS"]))
    raced.write(make_entry(1, "single", 0.3), make_entry(2, "ddp", 0.1), outcome="completed", ended=1.0)
    path = raced.folder.path
    page = open_page(qtbot, make_app(), 1)
    app = app_of(page)
    select_runs(qtbot, page, "Race · GPT · 2")
    menu = app.run_lists.actions.build_menu(page.selected_runs(), page)
    offered = {action.text().split("\t")[0] for action in menu.actions()}
    menu.deleteLater()
    assert {"Open", "Rename", "Archive", "Delete", "Rerun with Changes"} <= offered
    assert not {"Run Again", "Resume", "Stop"} & offered
    qtbot.keyClick(page.table, Qt.Key.Key_Right)
    assert titles(page) == ["Race · GPT · 2", "single", "ddp"]
    app.run_lists.actions.select([page.model.rows[1], page.model.rows[2]])  # type: ignore[list-item]
    assert app.window.context.get("runsComparable") and not app.window.context.get("runsCan.trash")
    app.run_lists.organizer.rename(path, "Which one")
    qtbot.waitUntil(lambda: titles(page)[0] == "Which one", timeout=5000)
    view = app.window.show_activity("runs")
    assert isinstance(view, RunsView) and view.proxy.rowCount() == 1
    view.list.setCurrentIndex(view.proxy.index(0, 0))
    qtbot.keyClick(view.list, Qt.Key.Key_Right)
    assert view.proxy.rowCount() == 3
    open_run(app, path)
    opened = app.window.editor.active_page()
    assert opened is not None and opened.page_id == f"race:{path}"
    qtbot.waitUntil(lambda: opened.title == "Which one", timeout=5000)
    infos = [info for info in app.session.runs.infos if info.race is not None]
    app.run_lists.organizer.trash(infos)
    history = app.window.toasts.history
    qtbot.waitUntil(lambda: any("is running" in notice.text for notice in history), timeout=5000)
    assert path.is_dir()
    raced.lose()
    app.run_lists.organizer.trash(infos)
    qtbot.waitUntil(lambda: not app.session.runs.infos, timeout=10_000)
    assert not path.exists() and app.window.editor.page(f"race:{path}") is None
    (toast,) = [
        candidate for candidate in app.window.toasts.visible_toasts if "trash" in candidate.notification.text
    ]
    toast.findChildren(QPushButton)[0].click()
    qtbot.waitUntil(lambda: len(app.session.runs.infos) == 1, timeout=10_000)
    assert (path / "race.json").is_file() and (path / "entries").is_dir()


def test_a_live_run_is_not_deleted(qtbot: QtBot, make_app: Callable[[], App]) -> None:
    run = WrittenRun(Path(os.environ["RANKDECK_RUNS"]), "busy")
    run.start()
    page = open_page(qtbot, make_app(), 1)
    select_runs(qtbot, page, "busy")
    app_of(page).window.commands.run("runs.trash")
    history = app_of(page).window.toasts.history
    qtbot.waitUntil(lambda: any("is running" in notice.text for notice in history), timeout=5000)
    assert run.path.is_dir()
    run.lose()


def test_menus_and_keys_offer_only_applicable_actions(
    qtbot: QtBot, page: RunsPage, runs: dict[str, WrittenRun]
) -> None:
    app = app_of(page)

    def offered(*names: str) -> set[str]:
        select_runs(qtbot, page, *names)
        menu = app.run_lists.actions.build_menu(page.selected_runs(), page)
        texts = {action.text().split("\t")[0] for action in menu.actions() if action.text()}
        menu.deleteLater()
        return texts

    def compare() -> QAction:
        menu = app.run_lists.actions.build_menu(page.selected_runs(), page)
        qtbot.addWidget(menu)
        return next(action for action in menu.actions() if action.text().startswith("Compare"))

    assert {"Run Again", "Rename", "Delete"} <= offered("two")
    assert not {"Resume"} & (offered("one") | offered("two")), "there is no checkpoint"
    saved = runs["two"].dir.checkpoints_folder / "50"
    saved.mkdir(parents=True)
    write_commit(saved, {})
    runs["two"].writer("rank-0").write(
        events.CheckpointSaved(step=50, num_bytes=9, seconds=0.1, reason="schedule")
    )
    app.session.runs.rescan(is_full=True)
    qtbot.waitUntil(lambda: "Resume" in offered("two"), timeout=10_000)
    assert offered("one", "two") == {
        "Compare", "Open 2 Runs", "Edit Tags of 2 Runs…", "Archive 2 Runs", "Copy 2 Paths", "Delete 2 Runs",
    }  # fmt: skip
    assert "Compare" not in offered("one") and "Compare" in offered("one", "two", "three")
    assert compare().text() == "Compare", "no key is its own"
    app.window.keymap.set_keys(COMPARE_COMMAND, ("Ctrl+K Y",))
    assert compare().text().partition("\t")[2] == app.window.keymap.text_for(COMPARE_COMMAND) != ""
    compare().trigger()
    compared = app.window.editor.active_page()
    assert compared is not None and compared.kind == "compare"
    assert app.comparisons.current is not None
    assert [at.path.name[16:-5] for at in app.comparisons.current.refs] == ["one", "two", "three"]


def test_actions_apply_to_the_focused_list(qtbot: QtBot, page: RunsPage, runs: dict[str, WrittenRun]) -> None:
    app = app_of(page)
    enabled = app.window.commands.is_enabled
    select_runs(qtbot, page, "one")
    assert enabled("runs.trash")
    page.search.setFocus()
    qtbot.waitUntil(lambda: not enabled("runs.trash"), timeout=5000)
    qtbot.keyClick(page.search, Qt.Key.Key_Delete)
    assert runs["one"].path.exists(), "Delete in a field deletes a letter"
    qtbot.keyClick(page.search, Qt.Key.Key_Down)
    qtbot.waitUntil(lambda: enabled("runs.copy"), timeout=5000)
    app.window.command_palette.show_commands()
    QApplication.processEvents()
    listed = [row.item.label for row in app.window.command_palette.model.rows]
    assert {f"Runs: {act.text}" for act in RUN_ACTIONS if act.key in ("rename", "tags", "trash")} <= set(
        listed
    )
    app.window.command_palette.dismiss()
    app.window.commands.run("runs.copy")
    assert QGuiApplication.clipboard().text() == str(runs["one"].path)
    qtbot.keyClick(page.table, Qt.Key.Key_F, Qt.KeyboardModifier.ControlModifier)
    assert QApplication.focusWidget() is page.search


def test_the_table_layout_is_restored(qtbot: QtBot, page: RunsPage, make_app: Callable[[], App]) -> None:
    app = app_of(page)
    page.table.sort_by("loss")
    page.group_box.setCurrentIndex(page.group_box.findData("state"))
    page.group_box.activated.emit(page.group_box.currentIndex())
    page.table.set_group_open("stopped", False)
    page.table.header.show_column(3, False)
    page.preview_box.setChecked(False)
    page.search.setText("state:completed")
    state = page.table_state()
    app.window.close()
    fresh = open_page(qtbot, make_app())
    assert fresh.table_state() == state and fresh.search.text() == "state:completed"
    app_of(fresh).window.editor.close_page("runs:")
    again = open_page(qtbot, app_of(fresh))
    assert again.table_state() == state, "also where the tab was closed"


def test_the_page_fits_in_every_size_in_both_themes(page: RunsPage) -> None:
    for theme in ("Dark Modern", "Light Modern"):
        app_of(page).window.theme.load(theme)
        for size in ((1440, 900), (1280, 720), (800, 500)):
            app_of(page).window.resize(*size)
            check_fit(page)


def check_fit(page: RunsPage) -> None:
    QApplication.processEvents()
    controls = [*page.findChildren(QCheckBox), *page.findChildren(QComboBox), page.search, page.table]
    for control in controls:
        assert control.accessibleName() or control.text(), control  # type: ignore[attr-defined]
        corner = control.mapTo(page, control.rect().bottomRight())
        assert page.rect().contains(corner) and control.height() >= 20, control
    assert page.count_label.width() >= page.count_label.sizeHint().width()
    assert not app_of(page).window.grab().toImage().isNull()


def test_the_compare_key_takes_the_selected_runs(qtbot: QtBot, page: RunsPage) -> None:
    app, box = app_of(page), app_of(page).window.command_palette
    select_runs(qtbot, page, "one", "three")
    app.window.commands.run("compare.runs")
    assert not box.isVisible() and app.comparisons.current is not None
    assert [at.path.name for at in app.comparisons.current.refs] == [
        info.name for info in page.selected_runs()
    ]
    app.window.commands.run("runs.table")
    select_runs(qtbot, page, "two")
    app.window.commands.run("compare.runs")
    ticked = [row.item.label for row in box.model.rows if row.item.icon == "check"]
    assert box.isVisible() and ticked == ["two"], "one is too few: the others are asked for"
    box.hide()
