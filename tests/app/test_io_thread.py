"""A thread of the window keeps nothing of what was done, and tells nothing that nobody waits for."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from functools import partial

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot
from shiboken6 import delete

from rankdeck_app.io_thread import IoThread


class Page:
    told = 0

    def tell(self, answer: int) -> None:
        Page.told = answer


def test_whoever_asked_is_let_go_of_once_it_is_told(qapp: QApplication) -> None:
    disk, page = IoThread(), Page()
    disk.start()
    disk.do(lambda: 3, page.tell, key=page)
    assert disk.settle() and Page.told == 3
    asked = weakref.ref(page)
    del page
    gc.collect()
    assert asked() is None
    disk.close()


class Held:
    """Work that goes on until it is let go."""

    def __init__(self) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()

    def __call__(self) -> int:
        self.began.set()
        self.may_end.wait(5)
        return 0


def test_of_what_is_asked_while_it_works_only_the_newest_is_answered(qapp: QApplication) -> None:
    thread, answers, held = IoThread(started=True), list[object](), Held()
    thread.do(held, answers.append, key="look")
    assert held.began.wait(5)
    for number in range(1, 5):
        thread.do(partial(int, number), answers.append, key="look")
    held.may_end.set()
    assert thread.settle() and answers == [0, 4] and not thread.is_busy


def test_what_was_dropped_is_not_told(qapp: QApplication) -> None:
    thread, answers, held = IoThread(started=True), list[object](), Held()
    thread.do(held, answers.append)
    thread.do(lambda: 1, answers.append)
    assert held.began.wait(5)
    thread.drop()
    thread.do(lambda: 2, answers.append)
    held.may_end.set()
    assert thread.settle() and answers == [2]


def test_no_thread_outlives_whoever_asked(qtbot: QtBot) -> None:
    asks, began = QObject(), threading.Event()

    def slow() -> None:
        began.set()
        time.sleep(0.3)

    IoThread(asks, name="slow", started=True).do(slow)
    assert began.wait(5) and _is_at_work()
    delete(asks)
    assert not _is_at_work()


def _is_at_work() -> bool:
    return any(thread.name == "slow" for thread in threading.enumerate())
