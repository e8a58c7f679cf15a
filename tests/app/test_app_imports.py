"""What the app may bring into its process, proven in interpreters of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import rankdeck_app

APP = Path(rankdeck_app.__file__).parent


def _modules(package: str = "") -> list[str]:
    """Every module of the app, or of one of its packages, found without importing any."""
    files = [file.relative_to(APP.parent).with_suffix("") for file in (APP / package).rglob("*.py")]
    paths = [file.parts[:-1] if file.name == "__init__" else file.parts for file in files]
    return sorted(".".join(module_parts) for module_parts in paths if module_parts[-1] != "__main__")


def _loaded_modules(modules: list[str], candidates: list[str]) -> list[str]:
    script = (
        "import importlib, json, sys\n"
        "modules, asked = json.loads(sys.argv[1])\n"
        "for module in modules: importlib.import_module(module)\n"
        "print(json.dumps([name for name in asked if name in sys.modules]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps([modules, candidates])],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


def test_the_app_does_not_import_torch() -> None:
    assert len(_modules()) > 30
    assert _loaded_modules(_modules(), ["torch", "rankdeck.training.loop", "rankdeck.launch"]) == []


def test_state_imports_only_qt_core() -> None:
    state = _modules("state")
    assert state
    assert _loaded_modules(state, ["PySide6.QtWidgets", "PySide6.QtGui", "pyqtgraph", "torch"]) == []


def test_the_import_check_detects_qt_widgets() -> None:
    assert _loaded_modules(["rankdeck_app.shell.tab"], ["PySide6.QtWidgets"]) == ["PySide6.QtWidgets"]
