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
from rankdeck.rundir import Labels, read_labels, write_labels
from rankdeck_app.composition import App
from rankdeck_app.controllers.run_acts import COMPARE, RUN_ACTS
from rankdeck_app.views.runs import RunsView
from rankdeck_app.views.runs_page import RunNote, RunsPage
from rankdeck_app.widgets.run_columns import PLACES
from tests.helpers.app_window import open_run
from tests.helpers.told_race import WrittenRace, entry
from tests.helpers.written_run import WrittenRun, device_infos

NAMES = ("one", "two", "three", "four")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, WrittenRun]:
    """Four runs that are over, of a person whose trash is empty."""
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    made = {}
    for age, name in enumerate(NAMES):
        made[name] = WrittenRun(Path(os.environ["RANKDECK_RUNS"]), name, config={"strategy": {"use": "ddp"}})
        made[name].started -= 1000 * age
        made[name].begin(devices=device_infos(2), steps=150, strategy="ddp")
        made[name].steps(0, 1, [3.0 - age / 10] * 103)
        made[name].end("stopped" if name == "two" else "completed")
    return made


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


def choose(qtbot: QtBot, page: RunsPage, *names: str) -> None:
    """Choose runs with the keyboard in the table."""
    page.table.setFocus()
    page.table.clearSelection()
    flags = QItemSelectionModel.SelectionFlag
    for name in names:
        index = page.model.index(titles(page).index(name), 0)
        page.table.selectionModel().setCurrentIndex(index, flags.Select | flags.Rows)
    selected = app_of(page).lists
    qtbot.waitUntil(lambda: [info.title for info in selected.selected_runs] == list(names), timeout=5000)


def tabs(page: RunsPage) -> list[list[tuple[str, bool]]]:
    groups = app_of(page).window.editor.groups()
    return [[(tab.shown_title(), tab.preview) for tab in group.tabs] for group in groups]


def test_a_click_looks_beside_the_table_and_enter_keeps(qtbot: QtBot, page: RunsPage) -> None:
    left, table = Qt.MouseButton.LeftButton, page.table
    for name in ("two", "three"):
        row = titles(page).index(name)
        qtbot.mouseClick(table.viewport(), left, pos=table.visualRect(page.model.index(row, 0)).center())
        qtbot.waitUntil(lambda name=name: tabs(page)[1:] == [[(name, True)]], timeout=10_000)
        QApplication.processEvents()
        assert QApplication.focusWidget() is table, "the keyboard stays in the table"
    qtbot.waitUntil(lambda: app_of(page).window.commands.enabled("runs.rename"), timeout=5000)
    qtbot.keyClick(table, Qt.Key.Key_Return)
    assert tabs(page)[1:] == [[("three", False)]]
    page.previews.setChecked(False)
    table.setFocus()
    row = titles(page).index("one")
    qtbot.mouseClick(table.viewport(), left, pos=table.visualRect(page.model.index(row, 0)).center())
    assert tabs(page)[1:] == [[("three", False)]]


def test_ages_are_told_anew_in_the_table_and_the_side_bar_at_the_same_time(
    qtbot: QtBot, page: RunsPage
) -> None:
    runs, view = app_of(page).session.runs, app_of(page).window.show_activity("runs")
    assert isinstance(view, RunsView)
    qtbot.waitUntil(lambda: all(info.figures for info in runs.infos), timeout=10_000)
    QApplication.processEvents()
    painted = Painted(view.list.viewport())
    with qtbot.waitSignal(page.model.dataChanged) as changed:
        runs.aged.emit()
    QApplication.processEvents()
    assert painted.count
    assert changed.args[0].column() == changed.args[1].column() == PLACES["began"]
    assert (changed.args[0].row(), changed.args[1].row()) == (0, 3)
    page.hide()
    with qtbot.assertNotEmitted(page.model.dataChanged):
        runs.aged.emit()


class Painted(QObject):
    """How often a widget is."""

    def __init__(self, widget: QWidget) -> None:
        super().__init__(widget)
        self.count = 0
        widget.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        self.count += event.type() == QEvent.Type.Paint
        return False


def test_the_side_bar_tells_progress_and_a_click_there_looks_too(qtbot: QtBot, page: RunsPage) -> None:
    app = app_of(page)
    view = app.window.show_activity("runs")
    assert isinstance(view, RunsView) and view.proxy.rowCount() == 4
    index = next(view.proxy.index(row, 0) for row in range(4) if "two" in view.proxy.index(row, 0).data())
    said = index.data(Qt.ItemDataRole.AccessibleTextRole)
    assert said == "two, ddp, stopped, step 103 of 150"
    qtbot.mouseClick(
        view.list.viewport(), Qt.MouseButton.LeftButton, pos=view.list.visualRect(index).center()
    )
    qtbot.waitUntil(lambda: tabs(page)[0][-1] == ("two", True), timeout=10_000)
    view.list.activated.emit(index)
    assert tabs(page)[0][-1] == ("two", False)
    view.list.setCurrentIndex(index)
    view.list.setFocus()
    qtbot.waitUntil(lambda: app.window.commands.enabled("runs.rename"), timeout=5000)
    qtbot.keyClick(view.list, Qt.Key.Key_F2)
    assert app.window.palette_box.isVisible() and app.window.palette_box.input.text() == "two"
    app.window.palette_box.dismiss()
    app.window.editor.close_page("runs:")
    view.as_table.click()
    assert app.window.context.get("activePageId") == "runs:"


def test_f2_renames_in_place_and_everything_says_the_new_name(
    qtbot: QtBot, page: RunsPage, runs: dict[str, WrittenRun]
) -> None:
    app = app_of(page)
    choose(qtbot, page, "two")
    assert app.window.commands.run("runs.rename")
    editor = page.table.viewport().findChild(QLineEdit)
    assert editor is not None
    write_labels(runs["one"].path, Labels(name="changed meanwhile"))
    app.session.runs.rescan(everything=True)
    qtbot.waitUntil(lambda: app.session.runs.title_of(runs["one"].path) == "changed meanwhile", timeout=5000)
    assert editor.isVisible(), "what else happens does not take the field away"
    qtbot.keyClicks(editor, "the second")
    qtbot.keyClick(editor, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: {"the second", "changed meanwhile"} <= set(titles(page)), timeout=5000)
    assert read_labels(runs["two"].path).name == "the second"
    assert [info.title for info in page.selected_runs()] == ["the second"]
    assert app.window.editor.active_page() is page, "Enter was the field's, and opened nothing"


def test_tags_of_several_runs_keep_those_that_are_not_common(
    qtbot: QtBot, page: RunsPage, runs: dict[str, WrittenRun]
) -> None:
    app = app_of(page)
    write_labels(runs["one"].path, Labels(tags=("own", "both")))
    write_labels(runs["two"].path, Labels(tags=("both",)))
    app.session.runs.rescan(everything=True)
    qtbot.waitUntil(lambda: all(app.session.runs.info_of(runs[n].path).labels.tags for n in NAMES[:2]))  # type: ignore[union-attr]
    choose(qtbot, page, "one", "two")
    app.window.commands.run("runs.tags")
    box = app.window.palette_box
    assert box.input.text() == "both"
    box.input.setText("#new, other ")
    qtbot.keyClick(box.input, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: read_labels(runs["two"].path).tags == ("new", "other"), timeout=5000)
    assert read_labels(runs["one"].path).tags == ("own", "new", "other")
    page.search.setText("tag:nobody")
    assert titles(page) == [] and page.empty.text() == "No run matches." and page.empty.isVisible()
    page.search.setText("tag:own")
    qtbot.waitUntil(lambda: titles(page) == ["one"], timeout=5000)


def test_a_note_is_written_on_a_sheet(qtbot: QtBot, page: RunsPage, runs: dict[str, WrittenRun]) -> None:
    app = app_of(page)
    choose(qtbot, page, "three")
    app.window.commands.run("runs.note")
    sheet = app.lists.keeping.sheet
    assert isinstance(sheet, RunNote) and sheet.field.accessibleName() == "Note of three"
    sheet.field.setPlainText("warm-up too short\nagain with 500")
    sheet.keep.click()
    qtbot.waitUntil(lambda: "again" in read_labels(runs["three"].path).note, timeout=5000)
    assert app.lists.keeping.sheet is None


def test_archived_runs_are_out_of_sight_until_they_are_asked_for(
    qtbot: QtBot, page: RunsPage, runs: dict[str, WrittenRun]
) -> None:
    app = app_of(page)
    choose(qtbot, page, "one", "four")
    app.window.commands.run("runs.archive")
    qtbot.waitUntil(lambda: titles(page) == ["two", "three"], timeout=5000)
    assert "2 archived" in page.count.text()
    page.archived.setChecked(True)
    assert len(titles(page)) == 4
    choose(qtbot, page, "one")
    assert not app.window.commands.enabled("runs.archive")
    app.window.commands.run("runs.unarchive")
    page.archived.setChecked(False)
    qtbot.waitUntil(lambda: titles(page) == ["one", "two", "three"], timeout=5000)
    (toast,) = [one for one in app.window.toasts.all_shown if "archived" in one.notice.text]
    toast.findChildren(QPushButton)[0].click()
    qtbot.waitUntil(lambda: len(titles(page)) == 4, timeout=5000)


def test_runs_are_deleted_with_their_tabs_and_come_back(
    qtbot: QtBot, page: RunsPage, runs: dict[str, WrittenRun], tmp_path: Path
) -> None:
    app = app_of(page)
    open_run(app, runs["two"].path)
    app.window.editor.open("runs:")
    choose(qtbot, page, "two", "three")
    qtbot.keyClick(page.table, Qt.Key.Key_Delete)
    qtbot.waitUntil(lambda: titles(page) == ["one", "four"], timeout=10_000)
    assert not runs["two"].path.exists() and len(list((tmp_path / "data/Trash/files").iterdir())) == 2
    assert app.window.editor.page(f"run:{runs['two'].path}") is None
    (toast,) = [one for one in app.window.toasts.all_shown if "trash" in one.notice.text]
    assert toast.notice.text == "2 runs are in the trash."
    toast.findChildren(QPushButton)[0].click()
    qtbot.waitUntil(lambda: len(titles(page)) == 4, timeout=10_000)


def test_a_race_is_one_row_that_is_opened_labelled_thrown_away_and_brought_back(
    qtbot: QtBot, make_app: Callable[[], App], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    raced = WrittenRace(Path(os.environ["RANKDECK_RUNS"]))
    raced.write(entry(1, "single", 0.3), entry(2, "ddp", 0.1), outcome="completed", ended=1.0)
    path = raced.folder.path
    page = open_page(qtbot, make_app(), 1)
    app = app_of(page)
    choose(qtbot, page, "Race · GPT · 2")
    menu = app.lists.acts.menu(page.selected_runs(), page)
    offered = {action.text().split("\t")[0] for action in menu.actions()}
    menu.deleteLater()
    assert {"Open", "Rename", "Archive", "Delete", "Rerun with Changes"} <= offered
    assert not {"Run Again", "Resume", "Stop"} & offered
    qtbot.keyClick(page.table, Qt.Key.Key_Right)
    assert titles(page) == ["Race · GPT · 2", "single", "ddp"]
    app.lists.acts.choose([page.model.rows[1], page.model.rows[2]])  # type: ignore[list-item]
    assert app.window.context.get("runsComparable") and not app.window.context.get("runsCan.trash")
    app.lists.keeping.rename(path, "Which one")
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
    app.lists.keeping.trash(infos)
    said = app.window.toasts.history
    qtbot.waitUntil(lambda: any("is running" in notice.text for notice in said), timeout=5000)
    assert path.is_dir()
    raced.lose()
    app.lists.keeping.trash(infos)
    qtbot.waitUntil(lambda: not app.session.runs.infos, timeout=10_000)
    assert not path.exists() and app.window.editor.page(f"race:{path}") is None
    (toast,) = [one for one in app.window.toasts.all_shown if "trash" in one.notice.text]
    toast.findChildren(QPushButton)[0].click()
    qtbot.waitUntil(lambda: len(app.session.runs.infos) == 1, timeout=10_000)
    assert (path / "race.json").is_file() and (path / "entries").is_dir()


def test_a_run_that_goes_on_is_not_deleted(qtbot: QtBot, make_app: Callable[[], App]) -> None:
    run = WrittenRun(Path(os.environ["RANKDECK_RUNS"]), "busy")
    run.begin()
    page = open_page(qtbot, make_app(), 1)
    choose(qtbot, page, "busy")
    app_of(page).window.commands.run("runs.trash")
    said = app_of(page).window.toasts.history
    qtbot.waitUntil(lambda: any("is running" in notice.text for notice in said), timeout=5000)
    assert run.path.is_dir()
    run.lose()


def test_menus_and_keys_offer_what_applies_and_several_are_compared(
    qtbot: QtBot, page: RunsPage, runs: dict[str, WrittenRun]
) -> None:
    app = app_of(page)

    def offered(*names: str) -> set[str]:
        choose(qtbot, page, *names)
        menu = app.lists.acts.menu(page.selected_runs(), page)
        texts = {action.text().split("\t")[0] for action in menu.actions() if action.text()}
        menu.deleteLater()
        return texts

    def compare() -> QAction:
        menu = app.lists.acts.menu(page.selected_runs(), page)
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
    app.session.runs.rescan(everything=True)
    qtbot.waitUntil(lambda: "Resume" in offered("two"), timeout=10_000)
    assert offered("one", "two") == {
        "Compare", "Open 2 Runs", "Edit Tags of 2 Runs…", "Archive 2 Runs", "Copy 2 Paths", "Delete 2 Runs",
    }  # fmt: skip
    assert "Compare" not in offered("one") and "Compare" in offered("one", "two", "three")
    assert compare().text() == "Compare", "no key is its own"
    app.window.keymap.set_keys(COMPARE, ("Ctrl+K Y",))
    assert compare().text().partition("\t")[2] == app.window.keymap.text_for(COMPARE) != ""
    compare().trigger()
    compared = app.window.editor.active_page()
    assert compared is not None and compared.kind == "compare"
    assert app.comparisons.current is not None
    assert [at.path.name[16:-5] for at in app.comparisons.current.ats] == ["one", "two", "three"]


def test_acts_are_of_the_list_that_has_the_keyboard(
    qtbot: QtBot, page: RunsPage, runs: dict[str, WrittenRun]
) -> None:
    app = app_of(page)
    enabled = app.window.commands.enabled
    choose(qtbot, page, "one")
    assert enabled("runs.trash")
    page.search.setFocus()
    qtbot.waitUntil(lambda: not enabled("runs.trash"), timeout=5000)
    qtbot.keyClick(page.search, Qt.Key.Key_Delete)
    assert runs["one"].path.exists(), "Delete in a field deletes a letter"
    qtbot.keyClick(page.search, Qt.Key.Key_Down)
    qtbot.waitUntil(lambda: enabled("runs.copy"), timeout=5000)
    app.window.palette_box.show_commands()
    QApplication.processEvents()
    listed = [row.item.label for row in app.window.palette_box.model.rows]
    assert {f"Runs: {act.text}" for act in RUN_ACTS if act.key in ("rename", "tags", "trash")} <= set(listed)
    app.window.palette_box.dismiss()
    app.window.commands.run("runs.copy")
    assert QGuiApplication.clipboard().text() == str(runs["one"].path)
    qtbot.keyClick(page.table, Qt.Key.Key_F, Qt.KeyboardModifier.ControlModifier)
    assert QApplication.focusWidget() is page.search


def test_the_table_stands_as_it_was_left(qtbot: QtBot, page: RunsPage, make_app: Callable[[], App]) -> None:
    app = app_of(page)
    page.table.sort_by("loss")
    page.groups.setCurrentIndex(page.groups.findData("state"))
    page.groups.activated.emit(page.groups.currentIndex())
    page.table.fold("stopped", False)
    page.table.header.show_column(3, False)
    page.previews.setChecked(False)
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
    parts = [*page.findChildren(QCheckBox), *page.findChildren(QComboBox), page.search, page.table]
    for part in parts:
        assert part.accessibleName() or part.text(), part  # type: ignore[attr-defined]
        corner = part.mapTo(page, part.rect().bottomRight())
        assert page.rect().contains(corner) and part.height() >= 20, part
    assert page.count.width() >= page.count.sizeHint().width()
    assert not app_of(page).window.grab().toImage().isNull()


def test_the_key_for_comparing_takes_the_runs_that_are_selected(qtbot: QtBot, page: RunsPage) -> None:
    app, box = app_of(page), app_of(page).window.palette_box
    choose(qtbot, page, "one", "three")
    app.window.commands.run("compare.runs")
    assert not box.isVisible() and app.comparisons.current is not None
    assert [at.path.name for at in app.comparisons.current.ats] == [
        info.name for info in page.selected_runs()
    ]
    app.window.commands.run("runs.table")
    choose(qtbot, page, "two")
    app.window.commands.run("compare.runs")
    ticked = [row.item.label for row in box.model.rows if row.item.icon == "check"]
    assert box.isVisible() and ticked == ["two"], "one is too few: the others are asked for"
    box.hide()
