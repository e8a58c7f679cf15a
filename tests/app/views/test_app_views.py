"""The composed app: what the first screen offers, where commands lead, what is said of runs and problems."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFrame, QPushButton, QScrollArea, QToolButton
from pytestqt.qtbot import QtBot

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.base.phrases import Phrase
from rankdeck.run.row import RunInfo
from rankdeck_app.composition import App
from rankdeck_app.state.output import OutputLine
from rankdeck_app.state.problem_list import LAUNCH_OWNER
from rankdeck_app.views.launch.side_bar import LaunchView
from rankdeck_app.views.launch.trust_dialog import TrustDialog
from rankdeck_app.views.output import OutputTools, OutputView
from rankdeck_app.views.problems import ProblemsView
from rankdeck_app.views.runs import RunsView
from rankdeck_app.views.welcome import WelcomePage
from rankdeck_app.widgets.controls import ClampedLabel, ElidedLabel
from tests.helpers.app_window import open_run, process_events
from tests.helpers.written_run import MIB, WrittenRun, device_infos


def runs_folder() -> Path:
    return Path(os.environ["RANKDECK_RUNS"])


def find_welcome_page(app: App) -> WelcomePage:
    page = app.window.editor.page("welcome:")
    assert isinstance(page, WelcomePage)
    return page


def test_commands_are_found_by_their_english_title_in_any_language(app: App) -> None:
    assert [command.id for command in app.window.commands if not isinstance(command.title, Phrase)] == []


def test_the_welcome_page_suggests_one_run(qtbot: QtBot, app: App) -> None:
    page = find_welcome_page(app)
    assert page.suggestion is not None and page.suggestion.devices == "cpu:4"
    assert page.launch_button.text().strip() == "Launch gpt-dp" and page.launch_button.isEnabled()
    assert page.focusProxy() is page.launch_button


def test_the_welcome_page_uses_the_available_width(app: App) -> None:
    page = find_welcome_page(app)
    page.setParent(None)
    page.show()
    (area,) = page.findChildren(QScrollArea)
    inside = area.widget()
    cards = [frame for frame in page.findChildren(QFrame) if frame.property("kind")]
    for width in (380, 500, 700, 800, 1000, 1500):
        page.resize(width, 900)
        process_events()
        assert inside.width() <= area.viewport().width(), f"nothing to scroll sideways at {width}"
        tops = {card.mapTo(inside, QPoint()).y() for card in cards}
        assert len(tops) == (2 if width >= 1000 else 3), f"two cards side by side, or all in turn at {width}"
    page.resize(1200, 900)
    process_events()
    _, runs, presets = sorted(cards, key=lambda card: (card.mapTo(inside, QPoint()).y(), card.x()))
    assert runs.height() < presets.height() / 2, "runs take no more than they need"
    page.close()
    page.deleteLater()


def test_preset_lessons_are_not_cut_where_they_fit(app: App) -> None:
    page = find_welcome_page(app)
    page.setParent(None)
    page.show()
    for width in (930, 1100, 1570):
        page.resize(width, 900)
        process_events()
        lessons = page.findChildren(ClampedLabel)
        cut = [lesson.toolTip() for lesson in lessons if lesson.toolTip()]
        assert len(lessons) == len(page.preset_buttons) and len(cut) <= (4 if width == 1100 else 0), cut
        assert len({lesson.mapTo(page, QPoint()).x() for lesson in lessons}) == 1, "in one column"
    page.close()
    page.deleteLater()


def test_the_workspace_stays_empty_until_the_first_launch(app: App) -> None:
    assert not app.session.workspace.folder.exists() and not runs_folder().exists()


def test_a_preset_from_the_welcome_page_becomes_the_draft(qtbot: QtBot, app: App) -> None:
    page = find_welcome_page(app)
    button = next(button for button in page.preset_buttons if button.text() == "digits-mlp")
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    draft = app.session.draft
    assert draft.origin == "digits-mlp" and draft.config is not None
    assert draft.value(("devices", "use")) == "cpu:1"


def test_a_replaced_draft_can_be_restored(app: App) -> None:
    draft = app.session.draft
    draft.set_value(("train", "steps"), 123)
    before = draft.text
    app.actions.use_preset(next(card for card in app.session.presets if card.name == "digits-ddp"))
    (toast,) = [
        toast
        for toast in app.window.toasts.visible_toasts
        if "that you had edited" in toast.notification.text
    ]
    app.session.draft.restore_snapshot(app.session.draft.snapshot())
    toast.findChildren(QPushButton)[0].click()
    assert draft.text == before and draft.origin == "gpt-dp"


def test_an_invalid_draft_blocks_launch_and_is_listed_in_problems(qtbot: QtBot, app: App) -> None:
    assert app.launcher.blocker() is None
    app.session.draft.set_value(("train", "steps"), "soon")
    app.window.commands.run("run.launch")
    assert app.launcher.blocker() is not None and not app.launcher.num_pending
    view = app.window.show_panel("problems")
    assert isinstance(view, ProblemsView)
    (row,) = view.rows
    assert row.accessibleName() == 'Error: train.steps = "soon" is not a whole number.'
    assert app.window.status_bar.item("errors").text() == "1"
    row.buttons[0].click()
    assert app.window.context.get("activePage") == "config"
    app.session.draft.set_value(("train", "steps"), 5)
    assert not view.rows and view.empty_label.isVisible()


def test_missing_gpus_block_launch_and_offer_a_rehearsal(qtbot: QtBot, app: App) -> None:
    qtbot.waitUntil(lambda: app.session.gpus.is_known, timeout=20_000)
    app.session.gpus.set_unavailable()
    app.session.draft.set_value(("devices", "use"), "gpu:all")
    blocker = app.launcher.blocker()
    assert blocker is not None and blocker.message == "No NVIDIA driver found."
    view = app.window.show_panel("problems")
    assert isinstance(view, ProblemsView)
    (button,) = [b for row in view.rows for b in row.buttons if b.text() == "Rehearse Instead"]
    button.click()
    assert app.session.draft.value(("devices", "use")) == "cpu:4" and app.launcher.blocker() is None


def test_a_problem_of_a_launch_can_be_dismissed(app: App) -> None:
    view = app.window.show_panel("problems")
    assert isinstance(view, ProblemsView)
    app.session.problems.set(
        LAUNCH_OWNER, "x", [Problem("a", "No.", advice="Do.", last_lines=("ValueError: 3",))]
    )
    (row,) = view.rows
    row.buttons[0].click()
    assert not view.rows


# Runs


@pytest.fixture
def written(tmp_path: Path) -> WrittenRun:
    """A run's directory with real events, as the engine writes them."""
    return WrittenRun(runs_folder())


def test_runs_are_listed_filtered_opened_and_reused(
    qtbot: QtBot, written: WrittenRun, make_app: Callable[[], App]
) -> None:
    app = make_app()
    view = app.window.show_activity("runs")
    assert isinstance(view, RunsView)
    qtbot.waitUntil(lambda: view.proxy.rowCount() == 1, timeout=5000)
    view.filter.setText("no such run")
    assert view.proxy.rowCount() == 0 and view.empty_label.text() == "No matching runs."
    view.filter.setText("gpt")
    view.list.setCurrentIndex(view.proxy.index(0, 0))
    info = view.current_run()
    assert info is not None and info.path == written.path
    actions = view.build_menu(info).actions()
    assert [action.text().split("\t")[0] for action in actions if action.text()] == [
        "Open",
        "Save Checkpoint Now",
        "Stop",
        "Rerun with Changes",
        "Rename",
        "Edit Tags…",
        "Edit Note…",
        "Archive",
        "Show in File Manager",
        "Copy Path",
        "Delete",
    ]
    view.list.activated.emit(view.proxy.index(0, 0))
    assert app.window.context.get("activePageId") == f"run:{written.path}"
    app.window.commands.run("run.copyPath")
    assert QGuiApplication.clipboard().text() == str(written.path)
    app.window.commands.run("run.reuse")
    app.session.io_thread.wait_for_done()
    assert app.session.draft.origin == "run gpt-dp" and app.session.draft.config is not None


def test_device_cards_show_memory_only_of_a_live_run(qtbot: QtBot, app: App, written: WrittenRun) -> None:
    written.start(devices=device_infos(4))
    written.write_memory(0, 1, {device: {"parameters": 3 << 20} for device in range(4)})
    written.write_steps(0, 1, [4.0])
    open_run(app, written.path)
    view = app.window.show_activity("launch")
    assert isinstance(view, LaunchView)
    cards = view.devices.local_devices.grid.cards
    qtbot.waitUntil(lambda: "in use" in cards[0].accessibleDescription(), timeout=5000)
    written.end("failed", 1)
    qtbot.waitUntil(lambda: not cards[0].accessibleDescription(), timeout=5000)
    assert app.tabs.usages() == ("", {})


def test_the_tab_buttons_save_and_stop_a_live_run(qtbot: QtBot, written: WrittenRun, app: App) -> None:
    written.start()
    open_run(app, written.path)

    def names() -> list[str]:
        buttons = app.window.editor.active_group.findChildren(QToolButton)
        return [button.accessibleName() for button in buttons if button.isVisible()]

    expected = {"Save a checkpoint now", "Stop this run"}
    qtbot.waitUntil(lambda: expected <= {name.split(" (")[0] for name in names()})


def test_the_status_bar_and_output_name_their_run_on_other_pages(
    qtbot: QtBot, written: WrittenRun, app: App
) -> None:
    written.start()
    open_run(app, written.path)
    qtbot.waitUntil(lambda: app.tabs.current is not None and app.tabs.current.is_live)
    assert app.tabs.current is not None
    name, item = app.tabs.current.title, app.window.status_bar.item("run")
    assert name not in item.text()
    app.window.editor.open("welcome:")
    assert item.text().startswith(f"{name} · ")
    output = app.window.show_panel("output")
    assert isinstance(output, OutputView) and output.name == name


def test_the_welcome_page_names_outcomes_other_than_completed(
    qtbot: QtBot, make_app: Callable[[], App]
) -> None:
    for outcome, code in (("failed", 1), ("stopped", 130), ("completed", 0)):
        run = WrittenRun(runs_folder(), f"run {code}")
        run.start()
        run.end(outcome, code)
    page = find_welcome_page(make_app())
    qtbot.waitUntil(lambda: len(page.run_buttons) == 3)
    rows = (button.parentWidget().findChildren(ElidedLabel) for button in page.run_buttons)
    texts = {button.text(): label.text() for button, (label,) in zip(page.run_buttons, rows, strict=True)}
    assert "failed" in texts["run 1"] and "stopped" in texts["run 130"] and "completed" not in texts["run 0"]


def test_a_toast_names_live_runs_at_start(
    qtbot: QtBot, written: WrittenRun, make_app: Callable[[], App]
) -> None:
    app = make_app()
    qtbot.waitUntil(
        lambda: any("still running" in notice.text for notice in app.window.toasts.history), timeout=5000
    )
    assert "running" in find_welcome_page(app).run_buttons[0].accessibleName()
    (toast,) = app.window.toasts.visible_toasts
    toast.findChildren(QPushButton)[0].click()
    assert app.window.context.get("activePageId") == f"run:{written.path}"
    qtbot.waitUntil(lambda: app.window.context.get("activeRunAlive") is True, timeout=5000)
    written.lose()
    qtbot.waitUntil(lambda: app.window.context.get("activeRunAlive") is False, timeout=5000)
    lost = [entry for entry in app.session.problems.entries if entry.run == written.path]
    assert lost and lost[0].run == written.path


def test_ended_runs_share_one_toast(app: App, tmp_path: Path) -> None:
    infos = [RunInfo(tmp_path / str(number), f"run {number}", "completed") for number in range(30)]
    toasts = app.window.toasts
    for info in infos:
        app.session.runs.run_ended.emit(info)
    assert toasts.history == [], "a terminal started them"
    app.tabs.launched.update((info.path, info.title) for info in infos)
    app.session.runs.run_ended.emit(infos[0])
    assert [notice.text for notice in toasts.history] == ["run 0: completed"]
    app.session.runs.run_ended.emit(replace(infos[1], outcome="failed"))
    for info in infos[2:]:
        app.session.runs.run_ended.emit(info)
    (notice,) = toasts.history
    assert (notice.text, notice.tone) == ("30 runs ended: 29 completed, 1 failed", "error")
    toasts.dismiss_all()
    app.session.runs.run_ended.emit(infos[5])
    assert [notice.text for notice in toasts.history][1:] == ["run 5: completed"], "that toast was read"


def test_opening_a_folder_without_a_run_shows_an_error(app: App, tmp_path: Path) -> None:
    open_run(app, tmp_path)
    assert app.window.toasts.history[-1].text == f"{tmp_path} is not a run folder."
    assert app.window.context.get("activePage") == "welcome"


def test_quick_open_finds_runs_presets_and_files(
    qtbot: QtBot, written: WrittenRun, make_app: Callable[[], App]
) -> None:
    app = make_app()
    folder = app.session.workspace.folder
    folder.mkdir()
    (folder / "mine.toml").write_text("")
    qtbot.waitUntil(lambda: bool(app.session.runs.infos), timeout=5000)
    app.window.command_palette.show_quick_open()
    app.session.io_thread.wait_for_done()
    labels = [row.item.label for row in app.window.command_palette.model.rows]
    assert {app.session.runs.infos[0].title, "gpt-ddp", "mine.toml"} <= set(labels)
    app.window.command_palette.input.setText("mine.toml")
    qtbot.keyClick(app.window.command_palette.input, Qt.Key.Key_Return)
    app.session.io_thread.wait_for_done()
    assert app.session.draft.source == folder / "mine.toml"


# Output


def test_output_filters_by_rank_and_follows_the_end(qtbot: QtBot, app: App) -> None:
    view = app.window.show_panel("output")
    assert isinstance(view, OutputView)
    tools = app.window.panel.findChild(OutputTools)
    assert isinstance(tools, OutputTools)
    view.model.append(OutputLine(None, index % 2, f"line {index}") for index in range(500))
    view.set_follow_end(True)
    bar = view.list.verticalScrollBar()
    assert bar.value() == bar.maximum() > 0
    bar.setValue(0)
    assert not view.follows_end and not tools.follow_button.isChecked()
    bar.setValue(bar.maximum())
    assert view.follows_end and tools.follow_button.isChecked()
    tools.rank_box.setCurrentIndex(tools.rank_box.findText("Rank 1"))
    tools.rank_box.activated.emit(tools.rank_box.currentIndex())
    assert {line.rank for line in view.model.visible_lines} == {1}
    tools.filter.setText("line 499")
    assert [line.text for line in view.model.visible_lines] == ["line 499"]
    view.list.selectAll()
    qtbot.keyClick(view.list, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert QGuiApplication.clipboard().text() == "[rank 1] line 499"


# Pages


def test_the_trust_dialog_names_the_folder_and_defaults_to_no(qtbot: QtBot, tmp_path: Path) -> None:
    question = TrustDialog([tmp_path])
    qtbot.addWidget(question)
    question.open()
    assert str(tmp_path) in question.accessibleDescription() and question.reject_button.isDefault()
    qtbot.keyClick(question, Qt.Key.Key_Escape)
    assert question.result() == 0


def test_every_command_has_a_title_with_its_category_and_unique_keys(app: App) -> None:
    titles: dict[str, str] = {}
    for command in app.window.commands:
        assert ": " in command.title
        for keys in command.keys:
            rivals = [
                other for other in app.window.commands if keys in other.keys and other.when == command.when
            ]
            assert rivals == [command], f"{keys}: {[rival.id for rival in rivals]}"
        titles[command.id] = command.title
    assert {"run.launch", "run.stop", "run.open", "config.save", "strategy.choose"} <= set(titles)


def test_the_draft_and_tabs_are_restored_at_the_next_start(
    qtbot: QtBot, written: WrittenRun, make_app: Callable[[], App]
) -> None:
    first = make_app()
    first.session.draft.set_value(("train", "steps"), 77)
    open_run(first, written.path)
    first.window.close()
    second = make_app()
    assert second.session.draft.value(("train", "steps")) == 77
    assert second.window.context.get("activePageId") == f"run:{written.path}"
    assert second.tabs.current is not None and second.tabs.current.run_dir.path == written.path


def test_one_click_syncs_the_batch_norms_of_a_run(qtbot: QtBot, app: App) -> None:
    """The button stands where the engine names the option, and nowhere else."""
    written = WrittenRun(app.session.workspace.runs_folder, config={"strategy": {"use": "ddp"}})
    written.start()
    for path in ("strategy.use", "strategy.sync_batchnorm"):
        note = Problem("batch-norm-differs", "Other weights.", path=path, severity="info")
        written.writer("rank-0").write(events.ProblemRaised(problem=note))
    open_run(app, written.path)
    view = app.window.show_panel("problems")
    assert isinstance(view, ProblemsView)
    qtbot.waitUntil(lambda: len(view.rows) == 2, timeout=10_000)
    buttons = [[button for button in row.buttons if button.text() == "Sync Batch Norms"] for row in view.rows]
    assert [len(row_buttons) for row_buttons in buttons] == [0, 1]
    buttons[1][0].click()
    app.session.io_thread.wait_for_done()
    draft = app.session.draft
    assert draft.value(("strategy", "use")) == "ddp" and draft.value(("strategy", "sync_batchnorm")) is True
    assert not draft.problems
    written.lose()


@pytest.mark.parametrize("panel", ["output", "problems"])
def test_an_imbalance_toast_names_its_run_unless_problems_is_open(
    qtbot: QtBot, app: App, written: WrittenRun, panel: str
) -> None:
    app.window.show_panel(panel)
    written.start(1, device_infos(2), strategy="dp")
    written.write_steps(0, 1, [2.0])
    written.write_memory(0, 1, {0: {"activations": 300 * 2**20}, 1: {"activations": 60 * 2**20}})
    open_run(app, written.path)
    qtbot.waitUntil(lambda: any(entry.run == written.path for entry in app.session.problems.entries))

    def toast_titles() -> list[str]:
        texts = [notice.text for notice in app.window.toasts.history]
        return [text.partition(": ")[0] for text in texts if "more than the median" in text]

    run = app.tabs.current
    assert run is not None
    if panel == "output":
        qtbot.waitUntil(lambda: toast_titles() == [run.title])
    qtbot.waitUntil(lambda: run.is_live and run.step == 1)
    assert toast_titles() == ([run.title] if panel == "output" else [])


def test_the_status_bar_shows_the_last_metrics_of_a_run(qtbot: QtBot, written: WrittenRun, app: App) -> None:
    written.start(1, device_infos(1))
    open_run(app, written.path)
    run, devices = app.tabs.current, app.window.status_bar.item("devices")
    assert run is not None
    qtbot.waitUntil(lambda: run.is_live)
    for peak in range(1, 6):
        with qtbot.waitSignal(app.tabs.metrics_changed):
            written.write_memory(0, peak, {0: {"parameters": peak * MIB}})
        # As soon as one is told the next one comes, and nothing after the last.
    written.write_memory(0, 6, {0: {"parameters": 60 * MIB}})
    qtbot.waitUntil(lambda: "60.0 MiB" in devices.text())


def test_the_status_bar_shows_the_peak_of_an_ended_run(qtbot: QtBot, written: WrittenRun, app: App) -> None:
    written.start(1, device_infos(2))
    written.write_steps(0, 1, [3.0, 2.0, 1.0])
    written.write_memory(0, 3, {0: {"parameters": 30 * MIB}, 1: {"parameters": 10 * MIB}})
    open_run(app, written.path)
    rate, devices = (app.window.status_bar.item(name) for name in ("rate", "devices"))
    qtbot.waitUntil(lambda: rate.text().endswith("samples/s") and "40.0 MiB" in devices.text())
    assert "peak" not in devices.text()
    written.end("completed")
    qtbot.waitUntil(lambda: devices.text() == "2 virtual · peak 40.0 MiB")
    assert rate.text() == ""
