"""The whole app in one window, its views plugged in, ended with the test; and a run that is being written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication

from rankdeck_app.composition import App
from rankdeck_app.shell.services import Services, make_services
from rankdeck_app.shell.window import MainWindow
from tests.helpers.app_window import disable_sampler
from tests.helpers.every_view import EveryView
from tests.helpers.written_run import WrittenRun


@pytest.fixture
def make_app(
    qapp: QApplication, tmp_path: Path, make_window: Callable[[Services], MainWindow]
) -> Iterator[Callable[[], App]]:
    """Opens a window and plugs everything in; a second one is the next start of the app."""

    apps: list[App] = []

    def make() -> App:
        services = make_services(workspace=tmp_path / "workspace")
        services.settings.set("plan.automatic", False)  # seconds of a core that only tests of plans need
        app = App(make_window(services))
        disable_sampler(app)
        apps.append(app)
        app.start()
        return app

    yield make
    for app in apps:
        app.window.close()
        app.window.editor.close_all()  # plots own menus that only their page's end frees


@pytest.fixture
def app(make_app: Callable[[], App]) -> App:
    return make_app()


@pytest.fixture
def written(tmp_path: Path) -> Iterator[WrittenRun]:
    run = WrittenRun(tmp_path / "runs")
    yield run
    run.lose()


@pytest.fixture
def every(tmp_path: Path) -> Iterator[EveryView]:
    """One of every view, on runs that were written."""
    Path(os.environ["RANKDECK_RUNS"]).mkdir(parents=True, exist_ok=True)
    every_view = EveryView()
    yield every_view
    every_view.end()
