"""Qt tests run offscreen, each in a window and a home of its own, and leave no widget, timer or thread
behind.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, QTimer
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot
from shiboken6 import isValid

from rankdeck_app.language import PSEUDO, remove_translators, use_language
from rankdeck_app.shell.services import Services, make_services
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.shell.window_state import open_window
from rankdeck_app.widgets.painting import watch_overflows
from tests.helpers.fake_plan import PlanWorld
from tests.helpers.patient_qtbot import PatientQtBot
from tests.helpers.waiting import scale_timeout


def process_events() -> None:
    """Run what is due in the event loop, deferred deletions included."""
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
    QApplication.processEvents()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)


def _active_timers() -> list[str]:
    """Timers that still run.

    By type, not isinstance: asking other objects for their class may run their code.
    """
    timers = [thing for thing in gc.get_objects() if type(thing) is QTimer and isValid(thing)]
    return [f"{timer.interval()} ms of {timer.parent()!r}" for timer in timers if timer.isActive()]


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test that uses Qt: no widget, running timer or thread that was not there before. A thread that
    was told to end may take its moment.
    """
    if "qapp" not in request.fixturenames:
        yield
        return
    widgets_before = set(map(id, QApplication.topLevelWidgets())) if QApplication.instance() else set()
    timers_before = _active_timers()
    threads_before = set(threading.enumerate())
    gc.disable()  # as the app does (garbage.py): no other thread destroys what is Qt's
    yield
    process_events()
    gc.collect()
    gc.enable()
    process_events()
    widgets = [w for w in QApplication.topLevelWidgets() if id(w) not in widgets_before and isValid(w)]
    timers = [timer for timer in _active_timers() if timer not in timers_before]
    fresh = [thread for thread in threading.enumerate() if thread not in threads_before]
    for thread in fresh:
        thread.join(scale_timeout(5))
    threads = [thread.name for thread in fresh if thread.is_alive()]
    gc.freeze()  # what stands now, such as all of torch, is not gone over after every test to come
    assert not widgets, f"widgets left: {widgets}"
    assert not timers, f"timers left running: {timers}"
    assert not threads, f"threads left running: {threads}"


@pytest.fixture(autouse=True)
def _no_text_is_cut() -> Iterator[None]:
    """A test whose widgets paint a text that does not fit its place fails."""
    overflows: dict[str, None] = {}
    with watch_overflows(lambda overflow: overflows.setdefault(str(overflow))):
        yield
    assert not overflows, "painted text that does not fit:\n" + "\n".join(overflows)


@pytest.fixture
def qtbot(qapp: QApplication, request: pytest.FixtureRequest) -> QtBot:
    """pytest-qt's own, whose waits the machine's load stretches."""
    return PatientQtBot(request)


@pytest.fixture
def services(qapp: QApplication, tmp_path: Path) -> Services:
    """Fresh services with the defaults; the workspace is tmp_path/workspace."""
    services = make_services(workspace=tmp_path / "workspace")
    services.settings.set("plan.automatic", False)  # seconds of a core that only tests of plans need
    return services


@pytest.fixture
def make_window(qtbot: QtBot) -> Iterator[Callable[[Services], MainWindow]]:
    """Opens windows that are closed and deleted after the test. Shown and active, so that shortcuts work."""
    opened: list[MainWindow] = []

    def make(services: Services, compose: Callable[[MainWindow], object] | None = None) -> MainWindow:
        window = open_window(services)
        opened.append(window)
        with qtbot.waitSignal(window.first_painted, timeout=5000), qtbot.waitActive(window):
            window.show()
        if compose is not None:
            compose(window)
        return window

    yield make
    for window in opened:
        if isValid(window):
            window.close()
            window.deleteLater()
    process_events()


@pytest.fixture
def window(services: Services, make_window: Callable[[Services], MainWindow]) -> MainWindow:
    """An empty main window: no view is registered yet."""
    return make_window(services)


@pytest.fixture
def made_up(qapp: QApplication) -> Iterator[None]:
    """All is said in the made-up language."""
    spoken = use_language(PSEUDO)
    yield
    remove_translators(spoken)


@pytest.fixture
def world(qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlanWorld]:
    """A draft, its plan, and a planner that says what the test tells it."""
    plan_world = PlanWorld(tmp_path, monkeypatch)
    yield plan_world
    plan_world.close()
