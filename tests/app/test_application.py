"""The whole app as a process: its first paint, its modules, and its end by a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.first_paint import first_paint
from tests.helpers.waiting import scale_timeout, wait_until


def test_the_first_paint_imports_no_torch_numpy_or_pyqtgraph() -> None:
    """A third of a second of imports is brought between two events (preload.py), not while views are made."""
    first, later = first_paint()
    assert first["early"] == []
    assert not {"torch", "pyqtgraph"} & set(later["composed"]) and "pydantic" in later["composed"]
    assert "torch" not in later["later"]
    assert "rankdeck_app" in later["later"]


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_closes_the_window_and_saves_the_layout(tmp_path: Path, sig: signal.Signals) -> None:
    layout = Path(os.environ["RANKDECK_HOME"]) / "state" / "app" / "window.json"
    command = [sys.executable, "-P", "-m", "rankdeck_app", "--workspace", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as app:
        try:
            wait_until(layout.exists, what="the layout that the app writes a second after startup")
            layout.unlink()
            app.send_signal(sig)
            _, stderr = app.communicate(timeout=scale_timeout(10))
        finally:
            app.kill()
    assert app.returncode == 0 and stderr == ""
    assert layout.exists()


_START_AND_STOP_SCRIPT = """
from PySide6.QtCore import QTimer
import rankdeck_app.application as running
real = running.compose_after_first_paint

def watch(window):
    real(window)
    window.first_painted.connect(lambda: QTimer.singleShot(500, window, window.close))

running.compose_after_first_paint = watch
from rankdeck_app.__main__ import main
raise SystemExit(main([]))
"""


def test_starting_and_closing_the_app_writes_only_its_own_files(tmp_path: Path) -> None:
    """Settings nobody changed are not written, no folder to work in is made, and nothing runs."""
    home = tmp_path / "home"
    home.mkdir()
    unset = ("RANKDECK_HOME", "RANKDECK_RUNS", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-P", "-c", _START_AND_STOP_SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    left = {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}
    app_files = {path for path in left if not path.startswith(".cache/fontconfig/")}  # the C library of fonts
    state = ".local/state/rankdeck/"
    assert {path for path in app_files if not path.startswith(state)} == set()
    assert app_files == {f"{state}app/{name}.json" for name in ("window", "draft")}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home"]


_IMPORT_THREADS_SCRIPT = """
import sys
from threading import current_thread, main_thread
from PySide6.QtCore import QTimer
import rankdeck_app.application as running
real, beside = running.compose_after_first_paint, set()

class Notes:
    def find_spec(self, name, path=None, target=None):
        if current_thread() is not main_thread():
            beside.add(name.partition(".")[0])

def watch(window):
    real(window)
    from rankdeck_app import preload
    preload._DELAY_MS = 0
    timer = QTimer(window, interval=20)

    def look():
        if sys.modules.keys() >= set(preload._MODULES):
            window.close()

    timer.timeout.connect(look)
    window.first_painted.connect(timer.start)

running.compose_after_first_paint = watch
sys.meta_path.insert(0, Notes())
from rankdeck_app.__main__ import main
code = main([])
print(*sorted(beside & {"PySide6", "pyqtgraph", "rankdeck_app"}))
raise SystemExit(code)
"""


def test_modules_with_qt_classes_are_imported_on_the_gui_thread(tmp_path: Path) -> None:
    """PySide6 makes none safely while Qt paints in another thread."""
    command = [sys.executable, "-P", "-c", _IMPORT_THREADS_SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=scale_timeout(60), cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")
