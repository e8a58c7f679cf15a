"""The whole app in one window of this process, and what tests ask of it; offscreen, without any mock.

Run as a program it is the app of somebody who presses Launch and whose app is then killed: it opens the
window, launches the draft file that it is given, prints the run's path, and stays.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from PySide6.QtCore import QCoreApplication, QEvent
from PySide6.QtWidgets import QApplication
from shiboken6 import isValid

from rankdeck.cli.race import stop_race
from rankdeck.launch.control import request_stop, wait_for_end
from rankdeck.run_dir import RunDir, list_races, list_runs
from rankdeck_app.application import make_app
from rankdeck_app.composition import App
from rankdeck_app.shell.services import make_services
from rankdeck_app.shell.window_state import open_window
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.views.output import OutputView
from tests.helpers.waiting import scale_timeout


def open_app(workspace: Path, *, plans: bool = False, samples: bool = False) -> App:
    """A window with everything in it, shown. With `plans` it predicts by itself, with `samples` it reads the
    GPUs: seconds of a core.
    """
    services = make_services(workspace=workspace)
    services.settings.set("plan.automatic", plans)
    window = open_window(services)
    window.resize(1440, 900)
    window.show()
    app = App(window)
    if not samples:
        disable_sampler(app)
    app.start()
    return app


def disable_sampler(app: App) -> None:
    """What reads the GPUs of this machine is a process of its own; here the app hears at once that there is
    no driver, as it does of that process where there is none.
    """
    app.session.gpus.start = app.session.gpus.set_unavailable


def close_app(app: App) -> None:
    """As closing the window does; runs go on. May be called twice."""
    if not isValid(app.window):
        return
    app.window.close()
    app.window.editor.close_all()
    app.window.deleteLater()
    process_events()


def process_events() -> None:
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
    QApplication.processEvents()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)


def wait_for(condition: Callable[[], object], deadline_s: float, what: str) -> None:
    """Run the event loop until the condition holds."""
    deadline_s = scale_timeout(deadline_s)
    end_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end_s, f"{what} did not happen within {deadline_s:g} s"
        QApplication.processEvents()
        time.sleep(0.005)


def open_run(app: App, path: Path) -> None:
    """As choosing it in Runs does, once the disk has said what it is."""
    app.tabs.open(path)
    app.session.io_thread.wait_for_done()


def wait_for_launch(app: App, deadline_s: float = 60) -> LiveRun:
    """The run that the launch under way becomes, once its tab is there."""
    before = app.tabs.active()
    wait_for(
        lambda: not app.launcher.num_pending and app.tabs.active() not in (None, before),
        deadline_s,
        "a run's tab",
    )
    run = app.tabs.active()
    assert run is not None
    return run


def output_text(app: App) -> str:
    """What the Output panel shows."""
    view = app.window.show_panel("output")
    assert isinstance(view, OutputView)
    view.poll()
    return "\n".join(line.to_text() for line in view.model.visible_lines)


@contextlib.contextmanager
def app_that_trains(workspace: Path, **options: bool) -> Iterator[App]:
    """`open_app`; runs that are under way at the end are stopped."""
    app = open_app(workspace, **options)
    try:
        yield app
    finally:
        close_app(app)
        stop_all_runs(Path(os.environ["RANKDECK_RUNS"]))
        gc.collect()
        process_events()


def stop_all_runs(runs: Path) -> None:
    """Stop what a test left running; races first, which would start more."""
    for race in list_races(runs):
        assert stop_race(race, timeout_s=scale_timeout(20))
    for run in list_runs(runs):
        if run.is_alive():
            request_stop(run, now=True)
    for run in list_runs(runs):
        assert wait_for_end(run, timeout_s=scale_timeout(20))


def num_event_lines(run: RunDir) -> int:
    """Lines of all event files."""
    return sum(path.read_bytes().count(b"\n") for path in run.events_folder.glob("*.jsonl"))


def main() -> None:
    workspace, draft = Path(sys.argv[1]), Path(sys.argv[2])
    qt = make_app()
    app = open_app(workspace)
    app.actions.open_config(draft)
    app.session.io_thread.wait_for_done()
    app.launcher.launch_draft()
    run = wait_for_launch(app)
    wait_for(lambda: (run.step or 0) > 0, 60, "the first step")
    print(run.run_dir.path, flush=True)
    qt.exec()


if __name__ == "__main__":
    main()
