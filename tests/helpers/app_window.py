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
from rankdeck.launch.control import request_stop, wait_ended
from rankdeck.rundir import RunDir, list_races, list_runs
from rankdeck_app.application import make_app
from rankdeck_app.composition import App
from rankdeck_app.shell.frame import open_window
from rankdeck_app.shell.services import make_services
from rankdeck_app.state.live_run import LiveRun
from rankdeck_app.views.output import OutputView
from tests.helpers.waiting import with_load


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
        leave_sampler_out(app)
    app.start()
    return app


def leave_sampler_out(app: App) -> None:
    """What reads the GPUs of this machine is a process of its own; here the app hears at once that there is
    no driver, as it does of that process where there is none.
    """
    app.session.gpus.ask = app.session.gpus.give_up


def close_app(app: App) -> None:
    """As closing the window does; runs go on. May be called twice."""
    if not isValid(app.window):
        return
    app.window.close()
    app.window.editor.close_all()
    app.window.deleteLater()
    settle()


def settle() -> None:
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
    QApplication.processEvents()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)


def wait_for(condition: Callable[[], object], deadline_s: float, what: str) -> None:
    """Run the event loop until the condition holds."""
    deadline_s = with_load(deadline_s)
    end_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end_s, f"{what} did not happen within {deadline_s:g} s"
        QApplication.processEvents()
        time.sleep(0.005)


def open_run(app: App, path: Path) -> None:
    """As choosing it in Runs does, once the disk has said what it is."""
    app.tabs.open(path)
    app.session.disk.settle()


def launched(app: App, deadline_s: float = 60) -> LiveRun:
    """The run that the launch under way becomes, once its tab is there."""
    before = app.tabs.active()
    wait_for(
        lambda: not app.launching.num_pending and app.tabs.active() not in (None, before),
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
    view.take()
    return "\n".join(line.plain() for line in view.model.lines)


@contextlib.contextmanager
def app_that_trains(workspace: Path, **options: bool) -> Iterator[App]:
    """`open_app`; runs that are under way at the end are stopped."""
    app = open_app(workspace, **options)
    try:
        yield app
    finally:
        close_app(app)
        end_all_runs(Path(os.environ["RANKDECK_RUNS"]))
        gc.collect()
        settle()


def end_all_runs(runs: Path) -> None:
    """Stop what a test left running; races first, which would start more."""
    for race in list_races(runs):
        assert stop_race(race, within_s=with_load(20))
    for run in list_runs(runs):
        if run.is_alive():
            request_stop(run, now=True)
    for run in list_runs(runs):
        assert wait_ended(run, timeout_s=with_load(20))


def num_written(run: RunDir) -> int:
    """Lines of all event files."""
    return sum(path.read_bytes().count(b"\n") for path in run.events_folder.glob("*.jsonl"))


def main() -> None:
    workspace, draft = Path(sys.argv[1]), Path(sys.argv[2])
    qt = make_app()
    app = open_app(workspace)
    app.actions.open_config(draft)
    app.session.disk.settle()
    app.launching.launch_draft()
    run = launched(app)
    wait_for(lambda: (run.step or 0) > 0, 60, "the first step")
    print(run.run.path, flush=True)
    qt.exec()


if __name__ == "__main__":
    main()
