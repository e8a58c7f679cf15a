"""Something that is looked up on a disk by a thread, so that a slow one never blocks a click.

One question at a time: what is asked meanwhile is asked when the answer is there, the newest question only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QObject, Qt, Signal

Work = Callable[[], Any]


class Lookup(QObject):
    """`found` brings what the work returned, on this object's thread; None where it could not be read.
    Its thread ends before its parent does.
    """

    found = Signal(object)
    _done = Signal(object)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._thread: threading.Thread | None = None
        self._next: Work | None = None
        self._done.connect(self._answered, Qt.ConnectionType.QueuedConnection)
        if parent is not None:
            # As a slot of this object it might be gone by then: a child goes in any order.
            parent.destroyed.connect(lambda _parent: self.close())

    @property
    def is_looking(self) -> bool:
        return self._thread is not None

    def ask(self, work: Work) -> None:
        self._next = work
        if self._thread is None:
            self._begin()

    def close(self) -> None:
        """Ends when the thread does, unless a disk holds it up."""
        self._next = None
        if self._thread is not None:
            self._thread.join(timeout=2)

    def _begin(self) -> None:
        work, self._next = self._next, None
        if work is not None:
            self._thread = threading.Thread(target=self._run, args=(work,), name="lookup", daemon=True)
            self._thread.start()

    def _run(self, work: Work) -> None:
        try:
            answer = work()
        except OSError:
            answer = None
        try:
            self._done.emit(answer)
        except RuntimeError:
            pass  # Whoever asked was closed meanwhile, while a disk held this up.

    def _answered(self, answer: object) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.found.emit(answer)
        if self._thread is None:
            self._begin()
