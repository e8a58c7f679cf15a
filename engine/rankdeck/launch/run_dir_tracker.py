"""Where a run's directory is while the run lasts: somebody may remove it, or move it.

One that was moved is found under its first name by a link, through which its ranks save, until the run is
over. Where something else has that name by then, the run ends: its ranks would save into that. To another
disk nothing can be moved: what was there is copied and removed.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from rankdeck.launch.exit_record import Sentence, phrase

_DELETED_SUFFIX = " (deleted)"
_LINK_TIMEOUT_S = 2.0
"""How long the link stays once the run is over: who watches reads its last word there."""


class RunDirTracker:
    """Of the directory that is open as `folder`, with its lock open as `lock`, and is called `run` now."""

    def __init__(self, run: str, folder: int, lock: int) -> None:
        self._run, self._folder, self._lock = Path(run), folder, lock
        self._current_path = self._original_path = self._read_path()
        self._is_linked = False
        self.is_replaced = False
        """Whether something else has the first name, and the directory is elsewhere."""

    def _read_path(self) -> str:
        """Known to the kernel: this waits for no disk."""
        return str(Path(f"/proc/self/fd/{self._folder}").readlink())

    @property
    def is_deleted(self) -> bool:
        """Whether somebody has removed the directory, or is about to. One that was moved is there."""
        if os.fstat(self._lock).st_nlink:
            return False
        return not os.fstat(self._folder).st_nlink or not (self._run / "config.toml").exists()

    def update(self) -> None:
        """Lead its first name to where it is now."""
        now = self._read_path()
        if now == self._current_path or now.endswith(_DELETED_SUFFIX):
            return
        self._current_path = now
        self._unlink()
        if now != self._original_path:
            try:
                self._run.symlink_to(now)
                self._is_linked = True
            except OSError:
                self.is_replaced = True

    def replaced_message(self) -> Sentence:
        return phrase(
            "The run's folder was moved to {folder}, and something else has its name: the run ended before "
            "it could write there.",
            folder=self._current_path,
        )

    def close(self) -> None:
        """The run is over, and nobody holds its lock."""
        if self._is_linked:
            time.sleep(_LINK_TIMEOUT_S)
            self._unlink()

    def _unlink(self) -> None:
        try:
            if self._is_linked and self._run.is_symlink():
                self._run.unlink()
        except OSError:
            pass
        self._is_linked = False
