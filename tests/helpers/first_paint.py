"""The app as a process that says what it cost to paint its window for the first time, and closes it.

As a program it prints two lines of JSON: {early: modules that are there before they may be, cpu_s: processor
time until then} and, a moment later, {composed: those of them that are there once the views are plugged in,
later: all that are there}.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

from tests.helpers.checkout import CHECKOUT

_HEAVY = ("torch", "numpy", "pyqtgraph", "pydantic", "tomlkit")
_LATER_MS = 300


def first_paint() -> tuple[dict[str, Any], dict[str, Any]]:
    """The two lines of an app of its own, which must say nothing else."""
    command = [sys.executable, "-m", "tests.helpers.first_paint"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    first, later = map(json.loads, done.stdout.splitlines())
    return first, later


def main() -> int:
    from PySide6.QtCore import QTimer

    from rankdeck_app import application
    from rankdeck_app.__main__ import main as run
    from rankdeck_app.shell.window import MainWindow

    compose_later = application.compose_after_first_paint

    def watch(window: MainWindow) -> None:
        composed = list[str]()

        def heavy() -> list[str]:
            return [name for name in _HEAVY if name in sys.modules]

        def note() -> None:
            print(json.dumps({"early": heavy(), "cpu_s": time.process_time()}), flush=True)
            QTimer.singleShot(_LATER_MS, window, finish)

        def finish() -> None:
            later = sorted({name.split(".")[0] for name in sys.modules})
            print(json.dumps({"composed": composed, "later": later}), flush=True)
            window.close()

        window.first_painted.connect(note)
        compose_later(window)
        window.first_painted.connect(lambda: composed.extend(heavy()))

    application.compose_after_first_paint = watch
    return run([])


if __name__ == "__main__":
    raise SystemExit(main())
