"""The whole app as a process: its first paint, its modules, and its end by a signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.waiting import wait_until

FIRST_PAINT = """
import json, sys, time
from PySide6.QtCore import QTimer
import rankdeck_app.application as running
real = running.compose_later

def watch(window):
    def note():
        heavy = ("torch", "numpy", "pyqtgraph", "pydantic", "tomlkit")
        early = [name for name in heavy if name in sys.modules]
        print(json.dumps({"early": early, "cpu_s": time.process_time()}), flush=True)
    window.first_painted.connect(note)
    real(window)
    def finish():
        print(json.dumps({"later": sorted({name.split(".")[0] for name in sys.modules})}), flush=True)
        window.close()
    window.first_painted.connect(lambda: QTimer.singleShot(300, window, finish))

running.compose_later = watch
from rankdeck_app.__main__ import main
raise SystemExit(main([]))
"""


def test_the_first_paint_is_without_torch_numpy_and_pyqtgraph() -> None:
    command = [sys.executable, "-P", "-c", FIRST_PAINT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    first, later = map(json.loads, done.stdout.splitlines())
    assert first["early"] == []
    assert "torch" not in later["later"]
    assert "rankdeck_app" in later["later"]
    assert done.stderr == ""


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_closes_the_window_and_saves_the_layout(tmp_path: Path, sig: signal.Signals) -> None:
    layout = Path(os.environ["RANKDECK_HOME"]) / "state" / "app" / "window.json"
    command = [sys.executable, "-P", "-m", "rankdeck_app", "--workspace", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as app:
        try:
            wait_until(layout.exists, what="the layout that the app writes a second after its start")
            layout.unlink()
            app.send_signal(sig)
            _, said = app.communicate(timeout=10)
        finally:
            app.kill()
    assert app.returncode == 0 and said == ""
    assert layout.exists()
