"""Runs work in background threads, so that a slow disk never blocks the window.

A thread runs its jobs in the order of submission; results are delivered on the window's thread. A job can
replace a waiting job with the same key: for example, a later write of the same file, or a later query that
makes the earlier one obsolete. The window uses one thread for all its files, so that a read sees all earlier
writes. Slow work, such as a report, has its own thread. The threads that read a run's events live as long as
the run is open (state/run_tail.py, state/runs.py).
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

CLOSE_TIMEOUT_S = 30.0
_ABANDON_TIMEOUT_S = 0.5


@dataclass(eq=False)
class _Job:
    function: Callable[[], Any]
    on_result: Callable[[Any], object] | None
    on_error: Callable[[Any], object] | None
    key: Hashable | None


class IoThread(QObject):
    """A job queue with a thread that exists only while there are jobs. The queue is abandoned when its parent
    is destroyed.

    Before `start` and after `close`, `submit` runs the job at once on the caller's thread.
    """

    _done = Signal()

    def __init__(self, parent: QObject | None = None, *, name: str = "disk", started: bool = False) -> None:
        super().__init__(parent)
        self._name, self._is_started = name, started
        self._pending: deque[_Job] = deque()
        self._current: _Job | None = None
        self._results: deque[Callable[[], object]] = deque()
        self._lock = threading.Lock()
        self._is_working = self._is_abandoned = False
        self._thread: threading.Thread | None = None
        self._done.connect(self._deliver, Qt.ConnectionType.QueuedConnection)
        if parent is not None:
            # A lambda, because a slot of this object might be destroyed first: Qt deletes children in any
            # order.
            parent.destroyed.connect(lambda _parent: self.abandon())

    @property
    def is_busy(self) -> bool:
        """Whether a job is waiting or running, or a result has not been delivered yet."""
        with self._lock:
            return bool(self._pending or self._current or self._results)

    def submit(
        self,
        work: Callable[[], T],
        then: Callable[[T], object] | None = None,
        on_error: Callable[[Any], object] | None = None,
        *,
        key: Hashable | None = None,
    ) -> None:
        """Run `work` on the io thread. Then, on the window's thread, call `then` with the result, or
        `on_error` with the OSError or RankdeckError that `work` raised.

        A waiting job with the same `key` is dropped.
        """
        job = _Job(work, then, on_error, key)
        if not self._is_started:
            _run_job(job)()
            return
        with self._lock:
            if key is not None:
                # Replaces waiting jobs only, never the running one: otherwise a fast typist would get no
                # answer.
                self._pending = deque(waiting for waiting in self._pending if waiting.key != key)
            self._pending.append(job)
            if not self._is_working:
                self._is_working = True
                # A thread ends with its last job, so a closed owner leaves none behind; a start costs 0.1 ms.
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def start(self) -> None:
        self._is_started = True

    def discard(self) -> None:
        """Drop all waiting jobs and all undelivered results, including the result of the running job."""
        with self._lock:
            self._pending.clear()
            self._results.clear()
            if self._current is not None:
                self._current.on_result = self._current.on_error = None

    def wait_for_done(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Wait until all jobs, and the jobs that they submit, are done and their results delivered. Return
        False on timeout."""
        until = time.monotonic() + timeout_s
        while True:
            if (thread := self._thread) is not None:
                # Wait for the thread's very end: this object must not be destroyed while the thread emits.
                thread.join(max(0.0, until - time.monotonic()))
                if thread.is_alive():
                    return False
            if not self._results:
                return True
            self._deliver()

    def close(self) -> None:
        """Finish all jobs, then stop; give up on a disk that takes longer than CLOSE_TIMEOUT_S."""
        self.wait_for_done()
        self._is_started = False

    def abandon(self) -> None:
        """Drop all jobs and wait briefly for the thread to end; give up if a slow disk blocks it."""
        self.discard()
        if (thread := self._thread) is not None:
            thread.join(timeout=_ABANDON_TIMEOUT_S)
        with self._lock:
            self._is_abandoned = True

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._pending:
                    self._is_working = False
                    return
                job = self._current = self._pending.popleft()
            outcome = _run_job(job)
            with self._lock:
                self._current = None
                self._results.append(outcome)
                del job, outcome  # or the caller's objects would live until the next job
                if self._is_abandoned:
                    return  # a slow disk delayed this job past abandon(); there is no object to emit through
                self._done.emit()

    def _deliver(self) -> None:
        while self._results:
            self._results.popleft()()


def _run_job(job: _Job) -> Callable[[], object]:
    """Run a job and return the callback that delivers its result on the window's thread. After an unexpected
    error, the callback raises that error."""
    try:
        result = job.function()
    except (OSError, RankdeckError) as error:
        refused = error
        return lambda: job.on_error(refused) if job.on_error is not None else None
    except Exception as error:
        fault = error

        def complain() -> None:
            raise fault

        return complain
    return lambda: job.on_result(result) if job.on_result is not None else None
