"""Runs the app: the QApplication, its window, and a clean exit on SIGINT and SIGTERM."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from pathlib import Path

from PySide6.QtCore import QObject, QSocketNotifier, QTimer
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication

from rankdeck_app.language import remove_translators, use_language
from rankdeck_app.shell.services import make_services, open_settings
from rankdeck_app.shell.window import APP_NAME, MainWindow
from rankdeck_app.shell.window_state import open_window
from rankdeck_app.shell.zoom import apply_zoom
from rankdeck_app.theme.theme import prefer_families


class SignalBridge(QObject):
    """Closes the window on SIGINT or SIGTERM.

    Python runs signal handlers only between bytecodes, and no Python bytecode runs while Qt's event loop is
    idle. The wake-up descriptor turns a signal into a Qt event.
    """

    def __init__(self, window: MainWindow) -> None:
        super().__init__(window)
        self._window = window
        self._read_socket, self._write_socket = socket.socketpair()
        self._read_socket.setblocking(False)
        self._write_socket.setblocking(False)
        self._notifier = QSocketNotifier(self._read_socket.fileno(), QSocketNotifier.Type.Read, self)
        self._notifier.activated.connect(self._on_signal)
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signal_number, lambda _signum, _frame: None)
        signal.set_wakeup_fd(self._write_socket.fileno())

    def _on_signal(self) -> None:
        self._read_socket.recv(64)
        self._window.close()
        QApplication.quit()

    def release(self) -> None:
        """Stop handling signals."""
        signal.set_wakeup_fd(-1)
        self._notifier.setEnabled(False)
        self._read_socket.close()
        self._write_socket.close()


def make_app(argv: list[str] | None = None, *, zoom: float = 1.0) -> QApplication:
    """Create the QApplication, scaled by `zoom`, and set the app's name. Later, the theme package replaces
    the platform's theme and sets the Fusion style."""
    QGuiApplication.setDesktopFileName("rankdeck")
    with apply_zoom(zoom):
        app = QApplication(argv or ["rankdeck-app"])
    app.setApplicationName("rankdeck")
    app.setApplicationDisplayName(APP_NAME)
    return app


def compose_after_first_paint(window: MainWindow) -> None:
    """Create the controllers and views once the window has painted its first frame."""

    def on_first_paint() -> None:
        from rankdeck_app.composition import compose

        compose(window)
        # The objects that exist now live as long as the app; scanning them in every collection would cost a
        # frame.
        gc.collect()
        gc.freeze()

    window.first_painted.connect(on_first_paint)


def run_app(runs: Path | None, workspace: Path | None, open_path: Path | None) -> int:
    """Open the window, run the event loop and return the exit code. If the window asks for a restart, replace
    this process with a new one."""
    settings = open_settings()
    app = make_app(sys.argv[:1], zoom=settings.get("window.zoom", float))
    translators = use_language(settings.get("window.language", str))
    prefer_families(settings.get("window.font", str), settings.get("editor.font", str))
    # After the language and the fonts: widgets take both when they are created.
    window = open_window(make_services(runs, workspace, open_path, settings))
    signals, garbage = SignalBridge(window), GarbageCollector(window)
    compose_after_first_paint(window)
    QTimer.singleShot(0, window, window.show)
    code = app.exec()
    signals.release()
    garbage.release()
    remove_translators(translators)
    if window.is_restart_requested:
        sys.stdout.flush()
        # exec drops what Python still buffers, so stdout is flushed first.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    return code


# Runs Python's cyclic garbage collection on the window's thread only.  Automatic collection runs on any
# thread that allocates. On the io thread it would destroy Qt objects there, and Qt then delivers their last
# signals with a dangling pointer: a segmentation fault.

GC_INTERVAL_MS = 1000


class GarbageCollector(QObject):
    """A one-second timer that runs the garbage collections that are due, on the window's thread, until
    `release` is called."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        gc.disable()
        self._timer = QTimer(self, interval=GC_INTERVAL_MS)
        self._timer.timeout.connect(collect_due_generation)
        self._timer.start()

    def release(self) -> None:
        """Re-enable Python's automatic garbage collection."""
        self._timer.stop()
        gc.enable()


def collect_due_generation() -> None:
    """Collect the oldest generation whose object count exceeds its threshold, as Python's automatic
    collection would."""
    for generation in (2, 1, 0):
        if gc.get_count()[generation] > gc.get_threshold()[generation]:
            gc.collect(generation)
            return
