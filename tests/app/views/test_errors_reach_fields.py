"""Every mistake of a configuration is at its field or its line: marked, told whole, and mended where that is
known.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QObject, Qt
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from rankdeck_app.composition import App
from rankdeck_app.state.draft import Draft
from rankdeck_app.state.engine_process import Engine
from rankdeck_app.state.gpus import Gpus
from rankdeck_app.theme import Theme
from rankdeck_app.views.config_page import ConfigPage
from rankdeck_app.views.launch.side_bar import LaunchView
from rankdeck_app.widgets.form import Field
from tests.helpers.own_scripts import launch_view
from tests.helpers.wrong_configs import WRONG, WrongConfig

ASYNC = '[strategy]\nuse = "pipeline-async"\n[train]\nclip_norm = 1.0\n[devices]\nuse = "cpu:4"\n'
# Only the text has a place for these: names that there are not, whole tables, and what is in no form.
WITHOUT_FIELD = {
    "train", "folder", "trian", "train.stpes", "train.qqq", "strategy.bucket", "train.optimizer.eps",
    "train.compile", "rehearsal.device_gflops", "rehearsal.pace",
}  # fmt: skip


@pytest.fixture
def draft(qtbot: QtBot, tmp_path: Path) -> Iterator[Draft]:
    draft = Draft(tmp_path / "draft.json", tmp_path)
    yield draft
    draft.close()


@pytest.fixture
def view(qtbot: QtBot, draft: Draft, tmp_path: Path) -> Iterator[LaunchView]:
    parent = QObject()
    gpus = Gpus(Engine(tmp_path / "launch", parent), parent)
    view = launch_view(Theme(), draft, gpus, [], str)
    qtbot.addWidget(view)
    view.resize(300, 700)
    with qtbot.waitActive(view):
        view.show()
    yield view
    gpus.close()


def is_widget_visible(view: LaunchView, widget: QWidget) -> bool:
    return widget.isVisible() and not widget.visibleRegion().isEmpty()


def test_every_mistake_leads_to_its_field_or_line_and_fix(draft: Draft, view: LaunchView) -> None:
    """In one window: each of them is a case of `check_mistake`, which names it where it fails."""
    for wrong in WRONG:
        check_mistake(draft, view, wrong)


def check_mistake(draft: Draft, view: LaunchView, wrong: WrongConfig) -> None:
    name = f"{wrong.code} at {wrong.path}"
    draft.replace(wrong.text, folder=draft.folder, stem="run")
    (problem,) = draft.problems
    view.show_state(problem, 0, None)
    banner = view.footer.blocker_banner
    assert banner.message.text() == problem.sentence and banner.fix_button.isVisible() == wrong.has_fix, name
    has_field = view.reveal(problem)
    assert has_field or problem.line is not None, name
    assert has_field == (wrong.path not in WITHOUT_FIELD), name
    assert banner.location_button.text() == (
        "Show the Field" if has_field else f"Go to Line {problem.line}"
    ), name
    if has_field:
        focused = view.focusWidget()
        assert focused is not None and is_widget_visible(view, focused), name
        assert focused.accessibleDescription() == problem.sentence, name
        field = focused.parentWidget()
        if isinstance(field, Field):
            assert field.is_marked and focused.property("invalid") == "true", name
            assert problem.message in focused.toolTip(), name
    if wrong.has_fix:
        draft.apply_fix(problem.cure)
        assert (wrong.code, wrong.path) not in [(left.code, left.path) for left in draft.problems], name
        assert draft.is_toml, name


@pytest.fixture
def opened(app: App, tmp_path: Path) -> App:
    app.session.draft.replace(ASYNC, folder=tmp_path, stem="run")
    app.window.show_activity("launch")
    return app


def find_launch_view(app: App) -> LaunchView:
    view = app.window.side_bar.get_view("launch")
    assert isinstance(view, LaunchView)
    return view


def test_launching_an_invalid_draft_reveals_a_field_under_more(qtbot: QtBot, opened: App) -> None:
    view = find_launch_view(opened)
    view.sections[3].set_open(False)
    view.model.more_button.setChecked(False)
    opened.window.commands.run("run.launch")
    field = view.model.more_form.fields[("train", "clip_norm")]
    assert (
        opened.window.focusWidget() is field.editor
        and field.is_marked
        and is_widget_visible(view, field.editor)
    )
    assert view.sections[3].is_open and view.model.more_button.isChecked()
    assert not opened.launcher.num_pending
    assert "never has them all" in view.footer.blocker_banner.message.text()
    qtbot.mouseClick(view.footer.blocker_banner.fix_button, Qt.MouseButton.LeftButton)
    assert opened.session.draft.value(("train", "clip_norm")) == 0 and opened.session.draft.config is not None
    assert not field.is_marked and not view.footer.blocker_banner.isVisible()


def test_the_launch_button_and_key_reveal_the_same_field(qtbot: QtBot, opened: App) -> None:
    view = find_launch_view(opened)
    qtbot.mouseClick(view.footer.launch_button, Qt.MouseButton.LeftButton)
    assert opened.window.focusWidget() is view.model.more_form.fields[("train", "clip_norm")].editor
    opened.window.show_activity("runs")
    opened.window.commands.run("run.launch")
    assert opened.window.side_bar.current_id == "launch"


def test_a_mistake_without_a_field_opens_its_line(opened: App) -> None:
    opened.session.draft.set_text(ASYNC.replace("clip_norm = 1.0", "stpes = 5"))
    opened.window.commands.run("run.launch")
    page = opened.window.editor.active_page()
    assert isinstance(page, ConfigPage) and page.editor.textCursor().blockNumber() + 1 == 4


def test_a_new_mistake_expands_its_section_and_keeps_the_focus(qtbot: QtBot, opened: App) -> None:
    view = find_launch_view(opened)
    view.model.more_button.setChecked(False)
    opened.session.draft.set_text(ASYNC.replace("1.0", "0"))
    view.strategy.list.setFocus()
    view.scroll_area.scroll_to(view.strategy.list)
    port = view.scroll_area.viewport()
    before = view.strategy.list.mapTo(port, view.strategy.list.rect().topLeft()).y()
    opened.session.draft.set_text(ASYNC)
    assert view.model.more_button.isChecked()
    assert view.strategy.list.mapTo(port, view.strategy.list.rect().topLeft()).y() == before


def test_a_partial_number_only_marks_its_field(qtbot: QtBot, opened: App) -> None:
    opened.session.draft.set_text(ASYNC.replace("1.0", "0"))
    view, error_counts = find_launch_view(opened), []
    opened.session.problems.changed.connect(lambda: error_counts.append(opened.session.problems.num_errors))
    field = view.model.main_form.fields[("train", "optimizer", "lr")]
    field.editor.setFocus()
    qtbot.keyClicks(field.editor, "1e-")
    assert field.is_marked and opened.launcher.blocker() is not None
    assert (
        view.footer.estimate.isVisible() and not view.footer.blocker_banner.isVisible() and not error_counts
    )
    qtbot.keyClicks(field.editor, "3")
    assert not field.is_marked and not opened.session.draft.is_typing and not error_counts
    qtbot.keyClicks(field.editor, "x")
    qtbot.waitUntil(lambda: bool(view.footer.blocker_banner.isVisible() and error_counts), timeout=5000)
    assert error_counts == [1] and field.editor.text() == "1e-3x"  # type: ignore[attr-defined]


def test_the_problems_panel_offers_the_fix(qtbot: QtBot, opened: App) -> None:
    (entry,) = opened.session.problems.entries
    (label, fix), *_ = opened.fixes.actions_of(entry)
    assert label == "Set train.clip_norm = 0"
    fix()
    assert not opened.session.problems.entries
