"""Everything that can be done with a card is a command with keys, and acts on the card in hand."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFileDialog
from pytest import MonkeyPatch
from pytestqt.qtbot import QtBot

from rankdeck_app.composition import App
from rankdeck_app.views.dashboard.page import RunPage
from tests.helpers.app_window import open_run
from tests.helpers.written_run import WrittenRun, device_infos

NAMES = [
    "maximise", "moveBack", "moveOn", "hide", "showAll", "resetLayout", "log", "smoother", "rougher", "xAxis",
    "copy", "png", "svg", "csv",
]  # fmt: skip


def test_cards_are_reached_by_keys_and_commands(
    qtbot: QtBot, app: App, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    commands, keymap = app.window.commands, app.window.keymap
    assert all(keymap.text_for(f"chart.{name}") for name in NAMES)
    assert not any(commands.enabled(f"chart.{name}") for name in NAMES), "no cards, no commands"
    run = WrittenRun(tmp_path / "runs")
    run.begin(devices=device_infos(2))
    run.steps(0, 1, [4.0, 3.9, 3.8])
    open_run(app, run.path)
    page = app.window.editor.active_page()
    assert isinstance(page, RunPage)
    qtbot.waitUntil(lambda: page.run.step == 3 and page._layout_kind == "dp")
    assert all(commands.enabled(f"chart.{name}") for name in NAMES)
    page.cards["loss"].body.setFocus()
    assert page.grid.in_hand == "loss"
    with qtbot.waitActive(app.window):
        app.window.activateWindow()
    for key in (Qt.Key.Key_K, Qt.Key.Key_M):
        qtbot.keyClick(page.cards["loss"].body, key, Qt.KeyboardModifier.ControlModifier)
    assert page.grid.shown == ["loss"]
    qtbot.keyClick(page.cards["loss"], Qt.Key.Key_Escape)
    assert len(page.grid.shown) == 6
    for name in ("log", "smoother", "xAxis"):
        commands.run(f"chart.{name}")
    assert page.cards["loss"].body.style.words() == ["log", "smoothed 0.98", "by time"]
    commands.run("chart.moveBack")
    assert page.grid.shown.index("loss") == 3
    commands.run("chart.copy")
    assert not QGuiApplication.clipboard().pixmap().isNull()
    for suffix in ("png", "svg", "csv"):
        file = tmp_path / f"loss.{suffix}"
        monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_args, file=file: (str(file), ""))
        commands.run(f"chart.{suffix}")
        assert file.stat().st_size > 30
    commands.run("chart.hide")
    assert "loss" not in page.grid.shown and "loss" in page.grid.hidden
    commands.run("chart.resetLayout")
    assert page.grid.layout_state() == {} and not page.cards["loss"].body.style.words()
    run.lose()
