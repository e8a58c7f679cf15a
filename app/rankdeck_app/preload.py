"""What the first run's tab needs, brought before somebody asks for it: between two events of the window."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from time import monotonic

from PySide6 import QtCore, QtGui, QtWidgets
from PySide6.QtCore import QTimer

from rankdeck_app.shell.window import MainWindow

_DELAY_MS, _SLICE_S, _PAUSE_MS = 400, 0.004, 10
_PAGES = ("dashboard", "plan", "devices", "compare", "strategy", "race")
_MODULES = (
    *("numpy.ma", "rankdeck.run.export", "pyqtgraph"),
    *(f"rankdeck_app.views.{name}.page" for name in _PAGES),
)


def _preload_steps() -> Iterator[None]:
    for module in (QtCore, QtGui, QtWidgets):
        for name in dir(module):
            getattr(module, name)  # made when first asked for; pyqtgraph asks for all of them
            yield
    for name in _MODULES:
        import_module(name)
        yield


def preload_modules(window: MainWindow) -> None:
    """What views bring, plots above all, takes a third of a second: not when the first run is awaited.

    By no thread: Qt paints without Python's lock and looks classes up in a table of PySide6's, which grows
    with each class that is made from Qt's. One start in some hundred died of that.
    """
    pieces, timer = _preload_steps(), QTimer(window, interval=_DELAY_MS, singleShot=True)

    def bring() -> None:
        until = monotonic() + _SLICE_S
        for _ in pieces:
            if monotonic() > until:
                timer.start(_PAUSE_MS)
                return

    timer.timeout.connect(bring)
    window.closing.connect(timer.stop)
    timer.start()
