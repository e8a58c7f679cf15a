"""What is Qt's and lies in a cycle is destroyed on the window's thread."""

from __future__ import annotations

import gc
import threading

from PySide6.QtCore import QObject
from pytestqt.qtbot import QtBot

from rankdeck_app.application import WindowGarbage

CONTAINERS = 300_000  # above Python's thresholds of all three generations


class Cycle(QObject):
    ended_on: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.itself = self

    def __del__(self) -> None:
        Cycle.ended_on.append(threading.current_thread().name)


def _allocate_elsewhere() -> list[list[int]]:
    """Drop a cycle and have another thread allocate until Python would collect it; what it allocated."""
    Cycle.ended_on, allocated = [], list[list[int]]()
    Cycle()
    allocates = threading.Thread(target=lambda: allocated.extend([n] for n in range(CONTAINERS)), name="disk")
    allocates.start()
    allocates.join()
    return allocated


def test_garbage_is_collected_by_the_window_though_another_thread_allocates(qtbot: QtBot) -> None:
    garbage = WindowGarbage()
    allocated = _allocate_elsewhere()
    assert allocated and Cycle.ended_on == []
    qtbot.waitUntil(lambda: Cycle.ended_on == ["MainThread"], timeout=10_000)
    garbage.release()


def test_python_alone_collects_where_something_is_allocated(qtbot: QtBot) -> None:
    gc.enable()
    _allocate_elsewhere()
    assert Cycle.ended_on == ["disk"]
