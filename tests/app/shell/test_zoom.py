"""Zoom is kept and holds at once for the whole window; where Qt cannot, a restart is one button."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QSize, Qt
from pytestqt.qtbot import QtBot

from rankdeck_app.shell.services import Services, open_settings
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.shell.zoom import SCALE_FACTOR_ENV, ZOOM_LEVELS, apply_zoom

CTRL = Qt.KeyboardModifier.ControlModifier


@pytest.fixture
def zoomed(window: MainWindow) -> Iterator[MainWindow]:
    """The scale is the process's: back to 100 % for the next test."""
    yield window
    window.commands.run("view.zoomReset")


def test_zoom_keys_apply_the_levels_at_once(qtbot: QtBot, zoomed: MainWindow) -> None:
    native = zoomed.size()
    for key, level in (
        (Qt.Key.Key_Equal, 1.1),
        (Qt.Key.Key_Equal, 1.25),
        (Qt.Key.Key_Minus, 1.1),
    ):
        qtbot.keyClick(zoomed, key, CTRL)
        assert zoomed.settings.get("window.zoom", float) == level
        assert zoomed.devicePixelRatio() == pytest.approx(level)
        assert (zoomed.size() * level - native).width() in (-1, 0, 1), "the window keeps its room"
        assert zoomed.status_bar.item("zoom").text() == f"{level * 100:.0f} %"
    assert not zoomed.toasts.visible_toasts
    assert open_settings().get("window.zoom", float) == 1.1
    qtbot.keyClick(zoomed, Qt.Key.Key_0, CTRL)
    assert zoomed.settings.get("window.zoom", float) == zoomed.devicePixelRatio() == 1.0
    assert zoomed.size() == native and not zoomed.status_bar.item("zoom").isVisible()


def test_resetting_the_zoom_restores_the_window_size(zoomed: MainWindow) -> None:
    native = zoomed.size()
    for command, end in (("view.zoomOut", 0.75), ("view.zoomIn", 2.0)):
        for _ in range(2 * len(ZOOM_LEVELS)):
            zoomed.commands.run(command)
        assert zoomed.settings.get("window.zoom", float) == zoomed.devicePixelRatio() == end
    zoomed.commands.run("view.zoomReset")
    assert zoomed.size() == native, "rounding does not add up"


def test_a_resized_window_keeps_its_size_when_zoomed(zoomed: MainWindow) -> None:
    zoomed.commands.run("view.zoomIn")
    zoomed.resize(700, 500)
    zoomed.commands.run("view.zoomReset")
    assert zoomed.size() == QSize(770, 550)


def test_a_restart_is_offered_where_live_zoom_is_unsupported(
    qtbot: QtBot,
    services: Services,
    make_window: Callable[[Services], MainWindow],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rankdeck_app.shell.zoom.find_screen_scale", lambda: None)
    window = make_window(services)
    for key, level in ((Qt.Key.Key_Equal, 1.1), (Qt.Key.Key_Equal, 1.25)):
        qtbot.keyClick(window, key, CTRL)
        assert window.settings.get("window.zoom", float) == level and window.devicePixelRatio() == 1.0
        (toast,) = window.toasts.visible_toasts
        assert (
            toast.notification.text
            == f"A zoom of {level * 100:.0f} % takes effect after a restart, which does not stop runs."
        )
        assert [label for label, _ in toast.notification.actions] == ["Restart Now"]
    qtbot.keyClick(window, Qt.Key.Key_0, CTRL)
    assert not window.toasts.visible_toasts


def test_the_minimum_size_fits_the_screen(zoomed: MainWindow) -> None:
    for _ in ZOOM_LEVELS:
        zoomed.commands.run("view.zoomIn")
    room = zoomed.screen().availableSize()
    assert zoomed.minimumWidth() <= room.width() and zoomed.minimumHeight() <= room.height()


@pytest.mark.parametrize(("before", "inside"), [(None, "1.5"), ("2", "3"), ("nonsense", "1.5")])
def test_child_processes_are_not_scaled(
    monkeypatch: pytest.MonkeyPatch, before: str | None, inside: str
) -> None:
    monkeypatch.delenv(SCALE_FACTOR_ENV, raising=False)
    if before is not None:
        monkeypatch.setenv(SCALE_FACTOR_ENV, before)
    with apply_zoom(1.5):
        assert os.environ[SCALE_FACTOR_ENV] == inside
    assert os.environ.get(SCALE_FACTOR_ENV) == before


_RESTART_SCRIPT = """
import json, os
from PySide6.QtCore import QTimer
import rankdeck_app.application as running
real = running.compose_after_first_paint

def watch(window):
    real(window)
    def once():
        told = os.getpid(), window.devicePixelRatioF(), os.environ.get("QT_SCALE_FACTOR")
        print(json.dumps(told), flush=True)
        if window.devicePixelRatioF() == 1:
            window.commands.run("view.zoomIn")
            window.restart()
        else:
            window.close()
    window.first_painted.connect(lambda: QTimer.singleShot(0, window, once))

running.compose_after_first_paint = watch
from rankdeck_app.__main__ import main
raise SystemExit(main([]))
"""


def test_a_restart_applies_the_zoom_in_the_same_process(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", _RESTART_SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    assert first[0] == second[0]
    assert (first[1:], second[1:]) == ([1.0, None], [pytest.approx(1.1), None])
