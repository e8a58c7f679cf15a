"""A JSON file that keeps what a person was at, for the next start.

Written half a second after the last change and when the app closes, by the disk's thread; a disk that refuses
costs only that.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, QTimer

from rankdeck.base.files import write_private
from rankdeck_app.disk import Disk

SAVE_DELAY_MS = 500


class KeptFile(QObject):
    """`content` says what is to be kept, at the moment of writing."""

    def __init__(
        self,
        path: Path,
        content: Callable[[], dict[str, Any]],
        parent: QObject,
        *,
        disk: Disk | None = None,
        refused: Callable[[OSError], object] | None = None,
    ) -> None:
        super().__init__(parent)
        self._path, self._content, self._refused = path, content, refused
        self._disk = disk or Disk(self)
        self._timer = QTimer(self, interval=SAVE_DELAY_MS, singleShot=True)
        self._timer.timeout.connect(self.save_now)

    def read(self) -> Any:
        """Raises OSError or ValueError: there is none, or it is no JSON."""
        return json.loads(self._path.read_text("utf-8"))

    def save_soon(self) -> None:
        self._timer.start()

    def save_now(self) -> None:
        self._timer.stop()
        text = json.dumps(self._content(), indent=1) + "\n"
        self._disk.do(partial(write_private, self._path, text), failed=self._refused, key=self._path)

    def close(self) -> None:
        """Write what has not been written yet."""
        if self._timer.isActive():
            self.save_now()
