"""Python's cyclic garbage collection, done by the window's thread alone.

Left to itself it runs on whichever thread allocates next. Where that is the disk's, it destroys Qt objects
there, and Qt then delivers their last signals with a pointer to what is gone: a segmentation fault.
"""

from __future__ import annotations

import gc

from PySide6.QtCore import QObject, QTimer

INTERVAL_MS = 1000


class WindowGarbage(QObject):
    """Collects each second what Python's own thresholds ask for, until `release`."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        gc.disable()
        self._timer = QTimer(self, interval=INTERVAL_MS)
        self._timer.timeout.connect(collect_what_is_due)
        self._timer.start()

    def release(self) -> None:
        """Python collects again when it likes."""
        self._timer.stop()
        gc.enable()


def collect_what_is_due() -> None:
    """Collect the oldest generation whose count is above its threshold, as Python would."""
    for generation in (2, 1, 0):
        if gc.get_count()[generation] > gc.get_threshold()[generation]:
            gc.collect(generation)
            return
