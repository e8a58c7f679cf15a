"""Work that the window does not wait for: one class of threads, so that a slow disk never blocks a click.

Jobs of a thread are done in the order in which they were asked for; what came of one is told on the thread of
the window. A job may take the place of one that waits under the same key: writes of one file, or questions of
which only the newest counts. The window has one thread for all its files, as what was written a moment ago is
read then; what takes long, such as a report, has a thread of its own. What reads a run's events goes on as
long as the run does (state/run_tail.py, state/runs.py).
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
    """Until `start`, and after `close`, a job is done at once by who asks for it. There is a thread as long
    as there are jobs; it ends before its parent does.
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
            # As a slot of this object it might be gone by then: a child goes in any order.
            parent.destroyed.connect(lambda _parent: self.abandon())

    @property
    def is_busy(self) -> bool:
        """Whether something is asked for that was not told yet."""
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
        """Do `work` there, and then, here, `then` with what it returned, or `on_error` with the OSError or
        the RankdeckError that it raised. A job with the same `key` that still waits is not done.
        """
        job = _Job(work, then, on_error, key)
        if not self._is_started:
            _run_job(job)()
            return
        with self._lock:
            if key is not None:
                self._pending = deque(one for one in self._pending if one.key != key)
            self._pending.append(job)
            if not self._is_working:
                self._is_working = True
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def start(self) -> None:
        self._is_started = True

    def discard(self) -> None:
        """Nothing of what was asked for counts any more: what waits is not done, what is done is not told."""
        with self._lock:
            self._pending.clear()
            self._results.clear()
            if self._current is not None:
                self._current.on_result = self._current.on_error = None

    def wait_for_done(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Wait until all that was asked for is done and told, and what that asked for; whether it was."""
        until = time.monotonic() + timeout_s
        while True:
            if (thread := self._thread) is not None:
                # To its very end: while it emits, this object must not be destroyed.
                thread.join(max(0.0, until - time.monotonic()))
                if thread.is_alive():
                    return False
            if not self._results:
                return True
            self._deliver()

    def close(self) -> None:
        """Once all is done; a disk that holds it up for longer than that is left behind."""
        self.wait_for_done()
        self._is_started = False

    def abandon(self) -> None:
        """What was asked for counts no more; the thread ends, unless a disk holds it up."""
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
                del job, outcome  # or whoever asked would live until the next job
                if self._is_abandoned:
                    return  # a disk held this up, and there is no object to emit through
                self._done.emit()

    def _deliver(self) -> None:
        while self._results:
            self._results.popleft()()


def _run_job(job: _Job) -> Callable[[], object]:
    """Does the job; what is to be done about it here. Any other error is a fault of ours, raised here."""
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
