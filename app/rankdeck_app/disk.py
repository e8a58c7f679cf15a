"""One thread for what the window wants of the disk, so that a slow one never blocks a click.

Jobs are done in the order in which they were asked for; what came of one is told on the thread of the window.
A job that writes a file may take the place of one that waits to write the same file. What reads a run's
events has threads of its own (state/run_tail.py, state/runs.py).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

from PySide6.QtCore import QObject, Qt, Signal

from rankdeck.base.errors import RankdeckError

T = TypeVar("T")

CLOSING_WAIT_S = 30.0


@dataclass(frozen=True)
class _Job:
    work: Callable[[], Any]
    then: Callable[[Any], object] | None
    failed: Callable[[Any], object] | None
    key: Hashable | None


class Disk(QObject):
    """Until `start`, and after `close`, a job is done at once by who asks for it."""

    _done = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._jobs: deque[_Job] = deque()
        self._results: deque[Callable[[], object]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_busy = self._is_closing = False
        self._done.connect(self._deliver, Qt.ConnectionType.QueuedConnection)

    def do(
        self,
        work: Callable[[], T],
        then: Callable[[T], object] | None = None,
        failed: Callable[[Any], object] | None = None,
        *,
        key: Hashable | None = None,
    ) -> None:
        """Do `work` there, and then, here, `then` with what it returned, or `failed` with the OSError or the
        RankdeckError that it raised. A job with the same `key` that still waits is not done.
        """
        job = _Job(work, then, failed, key)
        if self._thread is None:
            _outcome(job)()
            return
        with self._changed:
            if key is not None:
                self._jobs = deque(one for one in self._jobs if one.key != key)
            self._jobs.append(job)
            self._changed.notify_all()

    def start(self) -> None:
        self._is_closing = False
        self._thread = threading.Thread(target=self._work, name="disk", daemon=True)
        self._thread.start()

    def settle(self, timeout_s: float = CLOSING_WAIT_S) -> bool:
        """Wait until all that was asked for is done and told, and what that asked for; whether it was."""
        until = time.monotonic() + timeout_s
        while True:
            with self._changed:
                is_done = self._changed.wait_for(
                    lambda: not self._jobs and not self._is_busy, max(0.0, until - time.monotonic())
                )
            if not is_done or not self._results:
                return is_done
            self._deliver()

    def close(self) -> None:
        """Once all is done; a disk that holds it up for longer than that is left behind."""
        thread = self._thread
        if thread is None:
            return
        self.settle()
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        thread.join(timeout=1)
        self._thread = None

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._jobs) or self._is_closing)
                if not self._jobs:
                    return
                job, self._is_busy = self._jobs.popleft(), True
            outcome = _outcome(job)
            with self._changed:
                self._results.append(outcome)
                del job, outcome  # or whoever asked would live until the next job
                self._is_busy = False
                self._changed.notify_all()
            try:
                self._done.emit()
            except RuntimeError:
                return  # the window was closed while a disk held this up

    def _deliver(self) -> None:
        while self._results:
            self._results.popleft()()


def _outcome(job: _Job) -> Callable[[], object]:
    """Does the job; what is to be done about it here. Any other error is a fault of ours, raised here."""
    try:
        result = job.work()
    except (OSError, RankdeckError) as error:
        refused = error
        return lambda: job.failed(refused) if job.failed is not None else None
    except Exception as error:
        fault = error

        def complain() -> None:
            raise fault

        return complain
    return lambda: job.then(result) if job.then is not None else None
