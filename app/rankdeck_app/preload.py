"""Imports the modules that a run's tab needs, a few at a time between window events, before the first tab is
opened."""

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
            getattr(module, name)  # PySide6 creates a class on first access; pyqtgraph accesses all of them
            yield
    for name in _MODULES:
        import_module(name)
        yield


def preload_modules(window: MainWindow) -> None:
    """Import the views' modules, especially those for plots, ahead of time, because importing them takes a
    third of a second.

    Imports stay on the window's thread: Qt paints without holding the GIL, and looks up classes in a PySide6
    table that grows with each new subclass of a Qt class. With imports on another thread, about one start in
    a hundred crashed.
    """
    pieces, timer = _preload_steps(), QTimer(window, interval=_DELAY_MS, singleShot=True)

    def import_next() -> None:
        until = monotonic() + _SLICE_S
        for _ in pieces:
            if monotonic() > until:
                timer.start(_PAUSE_MS)
                return

    timer.timeout.connect(import_next)
    window.closing.connect(timer.stop)
    timer.start()
