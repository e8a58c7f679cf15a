"""One run of the app: the QApplication, its window, and a clean end on SIGINT and SIGTERM."""

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

    Python runs its signal handlers only between bytecodes, and Qt's loop runs none while idle: the wake-up
    descriptor turns a signal into an event.
    """

    def __init__(self, window: MainWindow) -> None:
        super().__init__(window)
        self._window = window
        self._read_socket, self._write_socket = socket.socketpair()
        self._read_socket.setblocking(False)
        self._write_socket.setblocking(False)
        self._notifier = QSocketNotifier(self._read_socket.fileno(), QSocketNotifier.Type.Read, self)
        self._notifier.activated.connect(self._on_signal)
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, lambda _signum, _frame: None)
        signal.set_wakeup_fd(self._write_socket.fileno())

    def _on_signal(self) -> None:
        self._read_socket.recv(64)
        self._window.close()
        QApplication.quit()

    def release(self) -> None:
        """Signals wake nobody any more."""
        signal.set_wakeup_fd(-1)
        self._notifier.setEnabled(False)
        self._read_socket.close()
        self._write_socket.close()


def make_app(argv: list[str] | None = None, *, zoom: float = 1.0) -> QApplication:
    """The QApplication with our name; the platform's own theme is left out, Fusion and theme/ draw
    everything.
    """
    QGuiApplication.setDesktopFileName("rankdeck")
    with apply_zoom(zoom):
        app = QApplication(argv or ["rankdeck-app"])
    app.setApplicationName("rankdeck")
    app.setApplicationDisplayName(APP_NAME)
    return app


def compose_after_first_paint(window: MainWindow) -> None:
    """Plug the views in once the frame is on screen."""

    def on_first_paint() -> None:
        from rankdeck_app.composition import compose

        compose(window)
        # What is there now lives as long as the app: going through all of it would cost a frame each time.
        gc.collect()
        gc.freeze()

    window.first_painted.connect(on_first_paint)


def run_app(runs: Path | None, workspace: Path | None, open_path: Path | None) -> int:
    """Open the window and run the event loop; the exit code. A window that restarts does it here."""
    settings = open_settings()
    app = make_app(sys.argv[:1], zoom=settings.get("window.zoom", float))
    spoken = use_language(settings.get("window.language", str))
    prefer_families(settings.get("window.font", str), settings.get("editor.font", str))
    window = open_window(make_services(runs, workspace, open_path, settings))
    signals, garbage = SignalBridge(window), GarbageCollector(window)
    compose_after_first_paint(window)
    QTimer.singleShot(0, window, window.show)
    code = app.exec()
    signals.release()
    garbage.release()
    remove_translators(spoken)
    if window.is_restart_requested:
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    return code


# Python's cyclic garbage collection, done by the window's thread alone.
#
# Left to itself it runs on whichever thread allocates next. Where that is the disk's, it destroys Qt
# objects there, and Qt then delivers their last signals with a pointer to what is gone: a segmentation
# fault.

GC_INTERVAL_MS = 1000


class GarbageCollector(QObject):
    """Collects each second what Python's own thresholds ask for, until `release`."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        gc.disable()
        self._timer = QTimer(self, interval=GC_INTERVAL_MS)
        self._timer.timeout.connect(collect_due_generation)
        self._timer.start()

    def release(self) -> None:
        """Python collects again when it likes."""
        self._timer.stop()
        gc.enable()


def collect_due_generation() -> None:
    """Collect the oldest generation whose count is above its threshold, as Python would."""
    for generation in (2, 1, 0):
        if gc.get_count()[generation] > gc.get_threshold()[generation]:
            gc.collect(generation)
            return
