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
    last_answer = 0

    def store_answer(self, answer: int) -> None:
        Page.last_answer = answer


def test_a_finished_job_keeps_no_reference_to_its_callback(qapp: QApplication) -> None:
    disk, page = IoThread(), Page()
    disk.start()
    disk.submit(lambda: 3, page.store_answer, key=page)
    assert disk.wait_for_done() and Page.last_answer == 3
    page_ref = weakref.ref(page)
    del page
    gc.collect()
    assert page_ref() is None
    disk.close()


class BlockingWork:
    """Work that goes on until it is let go."""

    def __init__(self) -> None:
        self.started, self.may_finish = threading.Event(), threading.Event()

    def __call__(self) -> int:
        self.started.set()
        self.may_finish.wait(5)
        return 0


def test_only_the_newest_pending_job_of_a_key_runs(qapp: QApplication) -> None:
    thread, answers, blocking = IoThread(started=True), list[object](), BlockingWork()
    thread.submit(blocking, answers.append, key="look")
    assert blocking.started.wait(5)
    for number in range(1, 5):
        thread.submit(partial(int, number), answers.append, key="look")
    blocking.may_finish.set()
    assert thread.wait_for_done() and answers == [0, 4] and not thread.is_busy


def test_a_discarded_job_delivers_no_result(qapp: QApplication) -> None:
    thread, answers, blocking = IoThread(started=True), list[object](), BlockingWork()
    thread.submit(blocking, answers.append)
    thread.submit(lambda: 1, answers.append)
    assert blocking.started.wait(5)
    thread.discard()
    thread.submit(lambda: 2, answers.append)
    blocking.may_finish.set()
    assert thread.wait_for_done() and answers == [2]


def test_the_thread_ends_with_its_parent(qtbot: QtBot) -> None:
    parent, started = QObject(), threading.Event()

    def slow() -> None:
        started.set()
        time.sleep(0.3)

    IoThread(parent, name="slow", started=True).submit(slow)
    assert started.wait(5) and _has_slow_thread()
    delete(parent)
    assert not _has_slow_thread()


def _has_slow_thread() -> bool:
    return any(thread.name == "slow" for thread in threading.enumerate())
