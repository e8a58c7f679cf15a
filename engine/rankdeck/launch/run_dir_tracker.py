"""Track a run's directory during the run, because a user may remove or move it.

If the directory is moved, its original path becomes a link to the new one, through which the ranks save until
the run is over. If something else has taken the original path, the run ends, because its ranks would save
into it. A move to another disk counts as a removal, because it copies the directory and removes the original.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from rankdeck.launch.exit_record import Sentence, phrase

_DELETED_SUFFIX = " (deleted)"
_LINK_TIMEOUT_S = 2.0
"""How long the link remains after the run's end, so that watchers can read the exit record through it."""


class RunDirTracker:
    """Tracker of the run directory with the path `run`; `folder` and `lock` are descriptors of the directory
    and of the lock file in it."""

    def __init__(self, run: str, folder: int, lock: int) -> None:
        self._run, self._folder, self._lock = Path(run), folder, lock
        self._current_path = self._original_path = self._read_path()
        self._is_linked = False
        self.is_replaced = False
        """Whether the directory was moved and something else is at its original path."""

    def _read_path(self) -> str:
        """Return the directory's current path. The kernel keeps the path in memory, so no disk is read."""
        return str(Path(f"/proc/self/fd/{self._folder}").readlink())

    @property
    def is_deleted(self) -> bool:
        """Whether the directory was removed or is being removed; false if it was moved."""
        # The lock file of a moved directory still exists.
        if os.fstat(self._lock).st_nlink:
            return False
        return not os.fstat(self._folder).st_nlink or not (self._run / "config.toml").exists()

    def update(self) -> None:
        """Link the original path to the directory's current path, if the directory was moved."""
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
            "The run's folder was moved to {folder}, and another file or folder now has its "
            "original path. The run was ended before it could write to that path.",
            folder=self._current_path,
        )

    def close(self) -> None:
        """Remove the link after a wait of `_LINK_TIMEOUT_S`; called when the run has ended and its lock is
        free."""
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
