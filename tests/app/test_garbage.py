"""What is Qt's and lies in a cycle is destroyed on the window's thread."""

from __future__ import annotations

import gc
import threading

from PySide6.QtCore import QObject
from pytestqt.qtbot import QtBot

from rankdeck_app.application import GarbageCollector

CONTAINERS = 300_000  # above Python's thresholds of all three generations


class Cycle(QObject):
    finalizer_threads: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.self_reference = self

    def __del__(self) -> None:
        Cycle.finalizer_threads.append(threading.current_thread().name)


def _allocate_in_thread() -> list[list[int]]:
    """Drop a cycle and have another thread allocate until Python would collect it; what it allocated."""
    Cycle.finalizer_threads, allocated = [], list[list[int]]()
    Cycle()
    allocates = threading.Thread(target=lambda: allocated.extend([n] for n in range(CONTAINERS)), name="disk")
    allocates.start()
    allocates.join()
    return allocated


def test_garbage_is_collected_on_the_gui_thread(qtbot: QtBot) -> None:
    garbage = GarbageCollector()
    allocated = _allocate_in_thread()
    assert allocated and Cycle.finalizer_threads == []
    qtbot.waitUntil(lambda: Cycle.finalizer_threads == ["MainThread"], timeout=10_000)
    garbage.release()


def test_python_collects_on_the_allocating_thread_by_default(qtbot: QtBot) -> None:
    gc.enable()
    _allocate_in_thread()
    assert Cycle.finalizer_threads == ["disk"]
