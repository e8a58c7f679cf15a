"""Where a run's directory is while the run lasts: somebody may remove it, or move it.

One that was moved is found under its first name by a link, through which its ranks save, until the run is
over. Where something else has that name by then, the run ends: its ranks would save into that. To another
disk nothing can be moved: what was there is copied and removed.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from rankdeck.launch.last_word import Sentence, phrase

_REMOVED = " (deleted)"
_HEARD_S = 2.0
"""How long the link stays once the run is over: who watches reads its last word there."""


class Whereabouts:
    """Of the directory that is open as `folder`, with its lock open as `lock`, and is called `run` now."""

    def __init__(self, run: str, folder: int, lock: int) -> None:
        self._run, self._folder, self._lock = Path(run), folder, lock
        self._at = self._first = self._now()
        self._is_linked = False
        self.is_replaced = False
        """Whether something else has the first name, and the directory is elsewhere."""

    def _now(self) -> str:
        """Known to the kernel: this waits for no disk."""
        return str(Path(f"/proc/self/fd/{self._folder}").readlink())

    @property
    def is_deleted(self) -> bool:
        """Whether somebody has removed the directory, or is about to. One that was moved is there."""
        if os.fstat(self._lock).st_nlink:
            return False
        return not os.fstat(self._folder).st_nlink or not (self._run / "config.toml").exists()

    def follow(self) -> None:
        """Lead its first name to where it is now."""
        now = self._now()
        if now == self._at or now.endswith(_REMOVED):
            return
        self._at = now
        self._unlink()
        if now != self._first:
            try:
                self._run.symlink_to(now)
                self._is_linked = True
            except OSError:
                self.is_replaced = True

    def how_it_was_replaced(self) -> Sentence:
        return phrase(
            "The run's folder was moved to {folder}, and something else has its name: the run ended before "
            "it could write there.",
            folder=self._at,
        )

    def leave(self) -> None:
        """The run is over, and nobody holds its lock."""
        if self._is_linked:
            time.sleep(_HEARD_S)
            self._unlink()

    def _unlink(self) -> None:
        try:
            if self._is_linked and self._run.is_symlink():
                self._run.unlink()
        except OSError:
            pass
        self._is_linked = False
