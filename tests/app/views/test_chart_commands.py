"""Everything that can be done with a card is a command with keys, and acts on the card in hand."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from threading import Event

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFileDialog
from pytest import MonkeyPatch, fixture
from pytestqt.qtbot import QtBot

from rankdeck_app.composition import App
from rankdeck_app.controllers.chart_commands import file_name
from rankdeck_app.shell.toasts import Notification
from rankdeck_app.views.dashboard.page import RunPage
from rankdeck_app.widgets.card import ChartCard
from tests.helpers.app_window import open_run
from tests.helpers.written_run import WrittenRun, device_infos

NAMES = [
    "maximise", "moveBack", "moveOn", "hide", "showAll", "resetLayout", "log", "smoother", "rougher", "xAxis",
    "copy", "png", "svg", "csv",
]  # fmt: skip


def test_keys_and_commands_act_on_cards(
    qtbot: QtBot, app: App, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    commands, keymap = app.window.commands, app.window.keymap
    assert all(keymap.text_for(f"chart.{name}") for name in NAMES)
    assert not any(commands.is_enabled(f"chart.{name}") for name in NAMES), "no cards, no commands"
    run = WrittenRun(tmp_path / "runs")
    run.start(devices=device_infos(2))
    run.write_steps(0, 1, [4.0, 3.9, 3.8])
    open_run(app, run.path)
    page = app.window.editor.active_page()
    assert isinstance(page, RunPage)
    qtbot.waitUntil(lambda: page.run.step == 3 and page._layout_kind == "dp")
    assert all(commands.is_enabled(f"chart.{name}") for name in NAMES)
    page.cards["loss"].body.setFocus()
    assert page.grid.active_name == "loss"
    with qtbot.waitActive(app.window):
        app.window.activateWindow()
    for key in (Qt.Key.Key_K, Qt.Key.Key_M):
        qtbot.keyClick(page.cards["loss"].body, key, Qt.KeyboardModifier.ControlModifier)
    assert page.grid.visible_names == ["loss"]
    qtbot.keyClick(page.cards["loss"], Qt.Key.Key_Escape)
    assert len(page.grid.visible_names) == 6
    for name in ("log", "smoother", "xAxis"):
        commands.run(f"chart.{name}")
    assert page.cards["loss"].body.style.texts()[0] == "log · smoothed 0.98 · by time"
    commands.run("chart.moveBack")
    assert page.grid.visible_names.index("loss") == 3
    commands.run("chart.copy")
    assert not QGuiApplication.clipboard().pixmap().isNull()
    for suffix in ("png", "svg", "csv"):
        file = tmp_path / f"loss.{suffix}"
        monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_args, file=file: (str(file), ""))
        commands.run(f"chart.{suffix}")
        app.session.io_thread.wait_for_done()
        assert file.stat().st_size > 30
    commands.run("chart.hide")
    assert "loss" not in page.grid.visible_names and "loss" in page.grid.hidden
    commands.run("chart.resetLayout")
    assert page.grid.layout_state() == {} and not page.cards["loss"].body.style.texts()
    run.lose()


def test_the_menu_of_a_card_shows_the_keys_of_its_commands(qtbot: QtBot, app: App, tmp_path: Path) -> None:
    page, keymap = open_run_page(qtbot, app, tmp_path), app.window.keymap
    keymap.set_keys("chart.hide", ("Ctrl+Alt+H",))
    menu = page.cards["loss"].build_menu()
    keys = dict(text.split("\t") for action in menu.actions() if "\t" in (text := action.text()))
    named = {
        "Maximise": "maximise", "Move Back": "moveBack", "Move Forward": "moveOn", "Hide": "hide",
        "Reset Layout": "resetLayout", "Logarithmic Scale": "log", "Copy as Image": "copy",
        "Export PNG…": "png", "Export SVG…": "svg", "Export CSV…": "csv",
    }  # fmt: skip
    assert keys == {text: keymap.text_for(f"chart.{name}") for text, name in named.items()}
    assert keys["Hide"] == "Ctrl+Alt+H"
    menu.deleteLater()
    plan = app.window.editor.open("plan:")
    menu = plan.findChildren(ChartCard)[0].build_menu()
    assert not any("\t" in action.text() for action in menu.actions()), "where keys do nothing none are shown"
    menu.deleteLater()
    assert app.session.io_thread.wait_for_done()


def open_run_page(qtbot: QtBot, app: App, tmp_path: Path) -> RunPage:
    """The tab of a run of two steps."""
    run = WrittenRun(tmp_path / "runs", "first")
    run.start(devices=device_infos(2))
    run.write_steps(0, 1, [4.0, 3.9])
    run.end()
    open_run(app, run.path)
    page = app.window.editor.active_page()
    assert isinstance(page, RunPage)
    qtbot.waitUntil(lambda: page.run.step == 2 and page.run.is_over)
    return page


@fixture
def suggested_paths(monkeypatch: MonkeyPatch, tmp_path: Path) -> list[str]:
    """What each dialog suggested; it gives "out" and the suffix, in the folder of the test."""
    suggested_paths = list[str]()

    def save_file_name(_window: object, _title: str, suggested: str, _kind: str) -> tuple[str, str]:
        suggested_paths.append(suggested)
        return str(tmp_path / f"out{Path(suggested).suffix}"), ""

    monkeypatch.setattr(QFileDialog, "getSaveFileName", save_file_name)
    return suggested_paths


def _last_toast(app: App) -> Notification:
    """Once the disk has done all that it was asked for."""
    assert app.session.io_thread.wait_for_done()
    return app.window.toasts.history[-1]


def test_an_export_is_named_after_run_and_card(
    qtbot: QtBot, app: App, suggested_paths: list[str], tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    revealed = list[Path]()
    monkeypatch.setattr(app.exports, "_reveal", revealed.append)
    page, last_folder = open_run_page(qtbot, app, tmp_path), Path.cwd()
    for kind in ("png", "svg", "csv"):
        menu = page.cards["loss"].build_menu()
        next(
            action for action in menu.actions() if action.text().startswith(f"Export {kind.upper()}…")
        ).trigger()
        menu.deleteLater()
        assert (
            suggested_paths.pop() == str(last_folder / f"first - Training loss.{kind}")
            and not suggested_paths
        )
        last_folder = tmp_path
        notice = _last_toast(app)
        assert notice.text == f"Exported Training loss to {tmp_path}/out.{kind}." and notice.tone == "info"
        assert (tmp_path / f"out.{kind}").is_file()
        ((label, open_folder),) = notice.actions
        open_folder()
        assert label == "Show in File Manager" and revealed.pop() == tmp_path and not revealed


def test_an_export_writes_the_data_shown_at_the_click(
    qtbot: QtBot, app: App, suggested_paths: list[str], tmp_path: Path
) -> None:
    page, gate = open_run_page(qtbot, app, tmp_path), Event()
    app.session.io_thread.submit(gate.wait)
    page.cards["loss"].request_export("csv")
    assert suggested_paths and not (tmp_path / "out.csv").exists(), (
        "the click is over, and nothing is written"
    )
    page.run.state.losses._get_series()[0].append_many([3.0], [[1.0]] * 4)
    gate.set()
    assert "Exported Training loss to " in _last_toast(app).text
    rows = (tmp_path / "out.csv").read_text().splitlines()
    assert rows[:2] == ["step,loss,ema,held_out", "1,4,4,"] and [row[:6] for row in rows[2:]] == ["2,3.9,"]


def test_a_failed_export_shows_an_error_and_keeps_the_old_file(
    qtbot: QtBot, app: App, suggested_paths: list[str], tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    file = tmp_path / "out.csv"
    file.write_text("before")

    def run_full(path: Path) -> None:
        path.write_text("half of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    app.exports.write(file, run_full, "never said")
    notice = _last_toast(app)
    assert (
        notice.tone == "error"
        and "No space left on device" in notice.text
        and "Free some space" in notice.text
    )
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: (str(tmp_path / "gone" / "out.csv"), ""))
    open_run_page(qtbot, app, tmp_path).cards["loss"].request_export("csv")
    notice = _last_toast(app)
    assert notice.tone == "error" and "cannot be written: No such file" in notice.text
    assert file.read_text() == "before" and not list(tmp_path.glob(".*.new"))


def test_titles_become_portable_file_names() -> None:
    assert file_name("GPT · DP · 4", "VRAM over time") == "GPT · DP · 4 - VRAM over time"
    assert file_name('lr 1/2: "why"?\n', "train\\loss") == "lr 1-2- -why--- - train-loss"
    assert file_name("../..", "a.") == "-.. - a"
    assert 190 < len(file_name("손실" * 200, "loss").encode()) <= 200


def test_exports_are_named_after_their_page(app: App, suggested_paths: list[str]) -> None:
    for page_id in ("plan:", "strategy:ddp"):
        suggested_paths.clear()
        page = app.window.editor.open(page_id)
        cards = page.findChildren(ChartCard)
        for card in cards:
            card.request_export("csv")
        expected = [file_name(page.title, card.title) for card in cards if "csv" in card.file_kinds]
        assert [Path(path).stem for path in suggested_paths] == expected != []
        assert app.session.io_thread.wait_for_done()
