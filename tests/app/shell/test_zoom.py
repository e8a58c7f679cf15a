"""Zoom is kept, holds for the whole window from the next start, and a restart is one button."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from rankdeck_app.shell.services import open_settings
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.shell.zoom import SCALE, scaled

CTRL = Qt.KeyboardModifier.ControlModifier


def test_keys_go_through_the_levels_and_say_what_comes(qtbot: QtBot, window: MainWindow) -> None:
    for key, wanted in (
        (Qt.Key.Key_Equal, 1.1),
        (Qt.Key.Key_Equal, 1.25),
        (Qt.Key.Key_Minus, 1.1),
    ):
        qtbot.keyClick(window, key, CTRL)
        assert window.settings.get("window.zoom", float) == wanted
        (toast,) = window.toasts.all_shown
        assert toast.notice.text == f"Zoom {wanted * 100:.0f} % holds from the next start. Runs go on."
        assert [label for label, _ in toast.notice.actions] == ["Restart Now"]
    assert open_settings().get("window.zoom", float) == 1.1
    qtbot.keyClick(window, Qt.Key.Key_0, CTRL)
    assert window.settings.get("window.zoom", float) == 1.0 and not window.toasts.all_shown
    for _ in range(20):
        window.commands.run("view.zoomOut")
    assert window.settings.get("window.zoom", float) == 0.75
    window.toasts.clear()


@pytest.mark.parametrize(("before", "inside"), [(None, "1.5"), ("2", "3"), ("nonsense", "1.5")])
def test_what_the_app_starts_later_is_not_scaled(
    monkeypatch: pytest.MonkeyPatch, before: str | None, inside: str
) -> None:
    monkeypatch.delenv(SCALE, raising=False)
    if before is not None:
        monkeypatch.setenv(SCALE, before)
    with scaled(1.5):
        assert os.environ[SCALE] == inside
    assert os.environ.get(SCALE) == before


_RESTARTS = """
import json, os
from PySide6.QtCore import QTimer
import rankdeck_app.application as running
real = running.compose_later

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

running.compose_later = watch
from rankdeck_app.__main__ import main
raise SystemExit(main([]))
"""


def test_a_restart_is_the_same_process_with_everything_larger(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", _RESTARTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    assert first[0] == second[0]
    assert (first[1:], second[1:]) == ([1.0, None], [pytest.approx(1.1), None])
