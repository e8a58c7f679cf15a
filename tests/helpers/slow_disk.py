"""The app on a disk that takes its time (slowdisk.c), and somebody who clicks.

As a program, preloaded with that library, it opens the app in $SLOWDISK_FOLDER, makes the disk slow, does
what a person does, and prints a line of JSON for each act: what the window's thread asked of the disk until
then, and how long it was not to be spoken to.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tests.helpers.c_library import build_library
from tests.helpers.checkout import CHECKOUT
from tests.helpers.waiting import scale_timeout

if TYPE_CHECKING:
    from rankdeck_app.composition import App

FOLDER = "SLOWDISK_FOLDER"
CONTROL_ACTION = "ask the disk in vain"
"""The first act, which is none of the app's: it shows what would be seen if it were."""
_SETTLE_S = 0.05
# They ask with a dialog of the system's, or end the app.
_SKIPPED_COMMANDS = {
    *("app.quit", "config.open", "config.save", "config.saveAs", "run.open", "workspace.open", "run.reveal"),
    *(
        "compare.save",
        "run.report",
        "run.weights",
        "view.fullScreen",
        "view.zoomIn",
        "view.zoomOut",
        "view.zoomReset",
    ),
}


def actions_on_slow_disk(
    folder: Path, delay_ms: int, only: str = "", *, is_busy: bool = False
) -> list[dict[str, Any]]:
    """What `main` found: {act, asked: [calls of the window's thread], longest_ms}, of all acts or one;
    ASKS_IN_VAIN is among them where nothing is busy.

    `is_busy`: the planner predicts whatever the draft becomes, and every other process that the app starts is
    stopped as soon as it is there, so that nothing answers.
    """
    library = build_library(Path(__file__).with_name("slowdisk.c"), folder / "slowdisk.so")
    disk = folder / "disk"
    disk.mkdir()
    env = os.environ | {
        "LD_PRELOAD": str(library),
        FOLDER: str(disk),
        "RANKDECK_HOME": str(disk / "home"),
        "QT_QPA_PLATFORM": "offscreen",
    }
    env.pop("RANKDECK_RUNS", None)
    command = [
        sys.executable,
        "-m",
        "tests.helpers.slow_disk",
        str(delay_ms),
        only,
        "busy" if is_busy else "",
    ]
    done = subprocess.run(
        command, cwd=CHECKOUT, env=env, capture_output=True, text=True, timeout=scale_timeout(300)
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


class _SlowDisk:
    def __init__(self, delay_ms: int) -> None:
        self._library = ctypes.CDLL(None)
        self._delay_ms = delay_ms
        self._text = ctypes.create_string_buffer(65536)

    def set(self, is_slow: bool) -> None:
        self._library.slowdisk_set(self._delay_ms if is_slow else 0)

    def blocking_calls(self) -> list[str]:
        """What the first thread had to wait for since the last call."""
        self._library.slowdisk_take(self._text, ctypes.c_size_t(len(self._text)))
        return self._text.value.decode("utf-8", "replace").splitlines()


class _ProcessStopper(threading.Thread):
    """Stops each process that this one starts, all planners apart, until `end` ends them."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._is_over = threading.Event()
        self.stopped: set[psutil.Process] = set()

    def run(self) -> None:
        while not self._is_over.wait(0.01):
            for child in set(psutil.Process().children(recursive=True)) - self.stopped:
                with contextlib.suppress(psutil.Error):
                    if "plan" not in child.cmdline():
                        child.suspend()
                        self.stopped.add(child)

    def end(self) -> None:
        self._is_over.set()
        self.join()
        for child in self.stopped:
            with contextlib.suppress(psutil.Error):
                child.kill()


def _actions(app: App, workspace: Path, runs: list[Path]) -> Iterator[tuple[str, Callable[[], object]]]:
    """What a person does, one thing after the other."""
    window, session = app.window, app.session
    finished, other, alive, starved = runs

    def run(command: str) -> None:
        window.commands.run(command)

    yield CONTROL_ACTION, finished.stat
    yield "change a setting", lambda: window.settings.set("window.frame_rate", 25)
    yield "choose a theme", lambda: window.settings.set("theme.name", "Light Modern")
    yield "change a key", lambda: window.keymap.set_keys("run.launch", ("F7",))
    for name, path in (("finished", finished), ("living", alive)):
        yield f"open a {name} run", lambda path=path: app.tabs.open(path)
    yield "open a folder that is no run", lambda: app.tabs.open(workspace)
    yield "compare", lambda: app.comparisons.open_comparison([finished, other])
    yield "quick open", lambda: window.command_palette.show_quick_open("a")
    yield "leave it", window.command_palette.dismiss
    yield "open a configuration", lambda: app.actions.open_config(workspace / "a.toml")
    yield "write in it", lambda: session.draft.set_value(("train", "steps"), 12)
    yield "save it", lambda: app.actions.save_config(workspace / "b.toml")
    yield "use a run's", lambda: app.actions.use_configuration(finished)
    yield "choose a script", lambda: app.scripts.show(workspace / "a.py")
    yield "type its name", lambda: session.script.set_fields(run="b.py")
    yield "name its interpreter", lambda: session.script.set_fields(python=sys.executable)
    yield "launch it", app.actions.launch
    yield "enter an interpreter", lambda: app.interpreter_picker._choose_path(str(workspace / "no-python"))
    yield "keep it as an entry", lambda: app.scripts.save_entry("mine")
    yield "forget the entry", lambda: app.scripts.remove_entry("mine")
    yield "look why memory ran out", lambda: app.fixes.explain(starved)
    yield "save that", lambda: app.comparisons.save_report(starved, workspace / "why.html")
    yield "open code", lambda: app.problem_navigator.open_location(workspace / "a.toml", 2)
    yield "rename", lambda: app.run_lists.organizer.rename(other, "another name")
    yield "resume", lambda: app.launcher.resume(finished)
    yield "run again", lambda: app.scripts.run_again(other)
    yield "stop", lambda: app.tabs.stop(alive)
    yield "open another folder", lambda: app.actions.open_workspace(workspace.parent / "other")
    yield "and the first again", lambda: app.actions.open_workspace(workspace)
    for command in [item.id for item in window.commands if item.id not in _SKIPPED_COMMANDS]:
        if window.commands.is_enabled(command):
            yield command, lambda command=command: run(command)


def main() -> int:
    from PySide6.QtCore import QTimer
    from PySide6.QtWidgets import QApplication

    from rankdeck.base.errors import Problem
    from rankdeck.events import ProblemRaised
    from rankdeck_app.application import make_app
    from tests.helpers.app_window import close_app, open_app, stop_all_runs, wait_for
    from tests.helpers.written_run import WrittenRun, device_infos

    disk, folder = _SlowDisk(int(sys.argv[1])), Path(os.environ[FOLDER])
    workspace = folder / "workspace"
    written = [WrittenRun(workspace / "runs", name) for name in ("finished", "other", "alive")]
    written.append(WrittenRun(workspace / "runs", "starved", {"model": {"use": "a:Model"}}))
    for run in written:
        run.start(2, device_infos(2))
    for run in written[:2]:
        run.end()
    ran_out = Problem("out-of-memory", "CUDA out of memory.", rank=0)
    written[3].writer("supervisor").write(ProblemRaised(problem=ran_out))
    written[3].end("failed", 1)
    (workspace / "a.toml").write_text('[model]\nuse = "mlp"\n[data]\nuse = "digits"\n')
    (workspace / "a.py").write_text("import torch\n")
    qt = make_app()
    only, is_busy = sys.argv[2], sys.argv[3] == "busy"
    app = open_app(workspace, plans=is_busy, samples=True)
    wait_for(lambda: len(app.session.runs.infos) == len(written), 30, "the list of runs")
    longest_s, beat = 0.0, time.perf_counter()

    def tick() -> None:
        nonlocal longest_s, beat
        now = time.perf_counter()
        longest_s, beat = max(longest_s, now - beat), now

    pulse = QTimer(interval=5)
    pulse.timeout.connect(tick)
    pulse.start()

    def process_events(seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            qt.processEvents()
            time.sleep(0.002)

    process_events(1.0)
    stuck = _ProcessStopper()
    if is_busy:
        stuck.start()
    disk.set(is_slow=True)
    for name, act in _actions(app, workspace, [run.path for run in written]):
        if only not in ("", name) or (is_busy and name == CONTROL_ACTION):
            continue
        longest_s, beat = 0.0, time.perf_counter()
        act()
        process_events(_SETTLE_S)
        print(
            json.dumps({"act": name, "asked": disk.blocking_calls(), "longest_ms": longest_s * 1e3}),
            flush=True,
        )
        for left in (QApplication.activePopupWidget(), QApplication.activeModalWidget()):
            if left is not None:
                left.close()
    process_events(1.0)
    print(json.dumps({"act": "wait", "asked": disk.blocking_calls(), "longest_ms": 0}), flush=True)
    disk.set(is_slow=False)
    pulse.stop()
    if is_busy:
        stuck.end()
    written[2].lose()
    close_app(app)
    stop_all_runs(workspace / "runs")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
