"""A tab dragged with a real mouse in a real window: what synthetic drop events cannot show."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from typing import IO, Any

import pytest

from tests.helpers.tree import CHECKOUT
from tests.helpers.waiting import wait_until


def _read(stream: IO[str], lines: queue.Queue[dict[str, Any]]) -> None:
    for line in stream:
        lines.put(json.loads(line))


def _mouse(display: str, *words: object) -> None:
    subprocess.run(
        ["xdotool", *map(str, words)], env=os.environ | {"DISPLAY": display}, check=True, timeout=20
    )


@pytest.mark.xvfb
@pytest.mark.skipif(shutil.which("xdotool") is None, reason="xdotool is not installed")
def test_a_tab_dragged_to_the_right_edge_splits_the_editor(x_display: str) -> None:
    env = os.environ | {"DISPLAY": x_display, "QT_QPA_PLATFORM": "xcb"}
    command = [sys.executable, "-m", "tests.app.shell.real_window"]
    lines: queue.Queue[dict[str, Any]] = queue.Queue()
    app = subprocess.Popen(
        command, cwd=CHECKOUT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert app.stdin is not None and app.stdout is not None
    reader = threading.Thread(target=_read, args=(app.stdout, lines))
    reader.start()
    try:
        places = lines.get(timeout=20)
        (x, y), (to_x, to_y) = places["tab"], places["right"]
        _mouse(x_display, "mousemove", x, y, "mousedown", 1)
        for step in range(1, 9):
            _mouse(
                x_display, "mousemove", x + (to_x - x) * step // 8, y + (to_y - y) * step // 8, "sleep", 0.05
            )
        _mouse(x_display, "mouseup", 1)
        seen: list[object] = []

        def split() -> bool:
            while not lines.empty():
                seen.append(lines.get()["groups"])
            return [["note:a"], ["note:b"]] in seen

        wait_until(split, what="the split")
    finally:
        app.stdin.close()
        app.wait(10)
        reader.join(10)
        app.stdout.close()
    assert app.returncode == 0
