"""The app as `rankdeck-app` starts it, on a virtual X server with a window manager, and a person at it.

Mouse and keys go through xdotool and the X server. Where a tab is and what a page shows is asked of the app's
own process: run as a program this module is the app, which also evaluates lines of its standard input.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from rankdeck.base.home import config_dir, state_dir
from tests.helpers.checkout import CHECKOUT
from tests.helpers.waiting import scale_timeout, wait_until

ANSWER_TIMEOUT_S = 30.0
_ANSWER_PREFIX = "rankdeck-answer "
_DRAFT = """\
model = { use = "mlp" }
data = { use = "digits" }
train = { steps = 1000000, evaluate_every = 0, verify = "off" }
strategy = { use = "single" }
devices = { use = "cpu:1" }
rehearsal = { pace = "simulated" }
"""


class RealApp:
    """A running app. `display` is its DISPLAY, `home` its home folder."""

    def __init__(self, display: str, home: Path, *arguments: str) -> None:
        self._env = os.environ | {"DISPLAY": display, "QT_QPA_PLATFORM": "xcb", "HOME": str(home)}
        command = [sys.executable, "-m", "tests.helpers.real_window", *arguments]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self.process = subprocess.Popen(
            command,
            cwd=CHECKOUT,
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        assert self.process.stdout is not None
        self._answers: queue.Queue[Any] = queue.Queue()
        self._reader = threading.Thread(target=self._read, args=(self.process.stdout,))
        self._reader.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            if line.startswith(_ANSWER_PREFIX):
                self._answers.put(json.loads(line.removeprefix(_ANSWER_PREFIX)))

    def evaluate(self, expression: str) -> Any:
        """What an expression over `window` is in the app, as JSON has it."""
        assert self.process.stdin is not None
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        answer = self._answers.get(timeout=scale_timeout(ANSWER_TIMEOUT_S))
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def wait(self, expression: str, deadline_s: float = ANSWER_TIMEOUT_S) -> None:
        wait_until(lambda: self.evaluate(expression), deadline_s=deadline_s, interval_s=0.1, what=expression)

    def xdotool(self, *arguments: object) -> None:
        """Mouse and keys, in xdotool's words."""
        subprocess.run(
            ["xdotool", *map(str, arguments)], env=self._env, check=True, timeout=scale_timeout(20)
        )

    def press(self, keys: str) -> None:
        self.xdotool("key", "--clearmodifiers", keys)

    def click(self, at: list[int]) -> None:
        self.xdotool("mousemove", *at, "click", 1)

    def drag(self, start: list[int], end: list[int], is_drop_target: str, num_moves: int = 8) -> None:
        """`is_drop_target` holds once the app shows where it would be dropped: a person lets go no sooner."""
        self.xdotool("mousemove", *start, "mousedown", 1)
        for move in range(1, num_moves + 1):
            at = [a + (b - a) * move // num_moves for a, b in zip(start, end, strict=True)]
            self.xdotool("mousemove", *at, "sleep", 0.05)

        def is_shown() -> bool:
            self.xdotool("mousemove_relative", "--", -1, 0)  # what was moved before the drag began is lost
            return bool(self.evaluate(is_drop_target))

        wait_until(is_shown, deadline_s=ANSWER_TIMEOUT_S, interval_s=0.1, what=is_drop_target)
        self.xdotool("mouseup", 1)

    def kill(self) -> None:
        """As the system kills it."""
        self.process.kill()
        self._end()

    def close(self) -> int:
        """As closing its window does; its exit status."""
        assert self.process.stdin is not None
        if self.process.poll() is None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.write("window.close()\n")
                self.process.stdin.flush()
        return self._end()

    def _end(self) -> int:
        status = self.process.wait(scale_timeout(30))
        self._reader.join(10)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        with self._errors:
            self._errors.seek(0)
            stderr = self._errors.read().decode("utf-8", "replace")
        assert "Traceback" not in stderr, stderr
        return status


def write_small_draft(folder: Path) -> None:
    """The app begins with a configuration that would train for hours and sleeps most of them, and predicts
    nothing by itself.
    """
    state = state_dir() / "app"
    state.mkdir(parents=True)
    draft = {"text": _DRAFT, "folder": str(folder), "stem": "run", "source": None, "origin": ""}
    (state / "draft.json").write_text(json.dumps(draft))
    config_dir().mkdir(parents=True, exist_ok=True)
    (config_dir() / "settings.toml").write_text("plan.automatic = false\n")


@contextlib.contextmanager
def real_app(display: str, home: Path, *arguments: str) -> Iterator[RealApp]:
    """An app that is up: its window is active and its views are there."""
    app = RealApp(display, home, *arguments)
    try:
        app.wait("bool(window) and window.isActiveWindow() and bool(window.editor.pages())")
        yield app
    finally:
        if app.process.poll() is None:
            app.close()


@contextlib.contextmanager
def window_manager(display: str, home: Path) -> Iterator[None]:
    """Openbox, which gives windows a frame and focus.

    Raises: FileNotFoundError without it.
    """
    env = os.environ | {"DISPLAY": display, "HOME": str(home)}
    process = subprocess.Popen(
        ["openbox", "--sm-disable"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(10)


def main() -> int:
    from PySide6.QtCore import QPoint, QSocketNotifier
    from PySide6.QtWidgets import QWidget

    from rankdeck_app import application
    from rankdeck_app.__main__ import main as run
    from rankdeck_app.shell.window import MainWindow

    def on_screen(widget: QWidget, at: QPoint) -> list[int]:
        point = widget.mapToGlobal(at)
        return [point.x(), point.y()]

    def tab(page_id: str) -> list[int]:
        """The middle of a tab."""
        for group in namespace["window"].editor.groups():
            for index, tab_item in enumerate(group.tabs):
                if tab_item.page_id == page_id:
                    return on_screen(group.bar, group.bar.tabRect(index).center())
        raise LookupError(page_id)

    namespace: dict[str, Any] = {"window": None, "on_screen": on_screen, "tab": tab, "QPoint": QPoint}
    waiting = bytearray()

    def answer() -> None:
        waiting.extend(os.read(sys.stdin.fileno(), 65536))
        while b"\n" in waiting:
            line, _, remaining = bytes(waiting).partition(b"\n")
            waiting[:] = remaining
            try:
                answer_data = {"value": eval(line, namespace)}
                text = json.dumps(answer_data)
            except Exception as error:
                text = json.dumps({"error": f"{line.decode()}: {type(error).__name__}: {error}"})
            print(_ANSWER_PREFIX + text, flush=True)

    compose_later = application.compose_after_first_paint

    def compose_and_listen(window: MainWindow) -> None:
        compose_later(window)
        namespace["window"] = window
        listener = QSocketNotifier(sys.stdin.fileno(), QSocketNotifier.Type.Read, window)
        listener.activated.connect(answer)

    application.compose_after_first_paint = compose_and_listen
    return run(sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
