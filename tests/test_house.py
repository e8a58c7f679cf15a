"""The house rules that hold for every test and for every import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import grimp
import networkx
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


KNOWN_CIRCLES = (
    ("rankdeck.cli.display", "rankdeck.cli.lines", "rankdeck.cli.live"),
    ("rankdeck_app.shell.shell_commands", "rankdeck_app.shell.window", "rankdeck_app.shell.window_state"),
    ("rankdeck_app.theme.qss", "rankdeck_app.theme.theme"),
)
"""Those that are still there. Nothing is added."""


def _circles(package: str) -> list[tuple[str, ...]]:
    """Modules that import each other, also for types only or inside functions."""
    found = grimp.build_graph(package, exclude_type_checking_imports=False, cache_dir=None)
    imports = networkx.DiGraph(
        (module, other)
        for module in found.modules
        for other in found.find_modules_directly_imported_by(module)
    )
    parts = networkx.strongly_connected_components(imports)
    return sorted(tuple(sorted(part)) for part in parts if len(part) > 1)


@pytest.mark.parametrize("package", ["rankdeck", "rankdeck_app"])
def test_no_modules_import_each_other(package: str) -> None:
    assert [circle for circle in _circles(package) if circle not in KNOWN_CIRCLES] == []


def test_modules_that_import_each_other_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "going_round"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "one.py").write_text("import typing\nif typing.TYPE_CHECKING:\n    import going_round.two\n")
    (folder / "two.py").write_text("def later():\n    from going_round import one\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert _circles("going_round") == [("going_round.one", "going_round.two")]
