"""The house rules that hold for every test and for every import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]


def _pytest_with_our_conftest(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    """The shared conftest, used by another pytest on a test of this body."""
    folder.mkdir()
    (folder / "test_inner.py").write_text(body)
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.conftest",
            "-p",
            "no:cacheprovider",
            "-q",
            "test_inner.py",
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_every_test_has_a_home_of_its_own(tmp_path: Path) -> None:
    assert Path(os.environ["RANKDECK_HOME"]).is_relative_to(tmp_path)
    assert Path(os.environ["RANKDECK_RUNS"]).is_relative_to(tmp_path)
    assert os.environ["OMP_NUM_THREADS"] == "1"


@pytest.mark.skipif(sys.platform != "linux", reason="leftovers are found through /proc")
def test_a_process_left_behind_in_its_own_session_fails_its_test_and_is_ended(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    body = f"""
import subprocess, sys

def test_leaves_an_orphan():
    # A shell that starts it in a new session and ends: the tree of children no longer leads to it.
    subprocess.run(["sh", "-c", "setsid sleep 60 >/dev/null 2>&1 & echo $! > {pid_file}"], check=True)

def test_waits_for_its_child():
    subprocess.run([sys.executable, "-c", "pass"], check=True)
"""
    done = _pytest_with_our_conftest(tmp_path / "inner", body)
    assert "test_leaves_an_orphan left processes behind" in done.stdout, done.stdout + done.stderr
    assert "2 passed, 1 error" in done.stdout, done.stdout
    assert not Path(f"/proc/{pid_file.read_text().strip()}").exists()


@pytest.mark.xvfb
def test_a_virtual_display_takes_a_real_window(x_display: str) -> None:
    script = (
        "from PySide6.QtWidgets import QApplication, QWidget\n"
        "app = QApplication([]); w = QWidget(); w.show(); app.processEvents()\n"
        "print(app.platformName(), w.isVisible())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "DISPLAY": x_display, "QT_QPA_PLATFORM": "xcb"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "xcb True", done.stderr
