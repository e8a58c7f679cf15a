"""Check whether a save is making progress; if so, a process that ends a run waits for the save.

Rank 0 leaves a marker file in place while it saves (training/rank_consensus.py). Standard library only, like
the whole guard.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

SAVE_TIMEOUT_S = 30.0
"""Seconds without a change on disk after which processes stop waiting for a save."""

_POLL_INTERVAL_S = 0.5
"""Seconds between two scans of a save's files, of which there may be hundreds."""


def save_marker(run: str | Path) -> Path:
    """Return the path of the marker file, which exists while rank 0 saves."""
    return Path(run, "requests", "saving")


def was_save_interrupted(run: str | Path) -> bool:
    """Remove the save marker of an ended run and return whether there was one.

    If the marker remained, the next attempt would appear to be saving as soon as it starts.
    """
    try:
        save_marker(run).unlink()
    except OSError:
        return False
    return True


class SaveWatch:
    """Monitor of one run's saves. A save counts as making progress when it is first observed."""

    def __init__(self, run: str | Path) -> None:
        self._run = Path(run)
        self._snapshot: list[tuple[str, int, int]] | None = None
        self._progress_s = self._checked_s = 0.0

    def is_progressing(self) -> bool:
        """Check whether a save has changed its files within the last `SAVE_TIMEOUT_S`.

        Can be called as often as needed, and never raises.
        """
        now_s, snapshot = time.monotonic(), list[tuple[str, int, int]]()
        try:
            if not save_marker(self._run).exists():
                self._snapshot = None
                return False
            if self._snapshot is not None and now_s - self._checked_s < _POLL_INTERVAL_S:
                return now_s - self._progress_s < SAVE_TIMEOUT_S
            snapshot = sorted(self._written_files())
        except OSError:
            pass  # an old checkpoint was removed meanwhile, which is progress too
        self._checked_s = now_s
        if snapshot != self._snapshot:
            self._snapshot, self._progress_s = snapshot, now_s
        return now_s - self._progress_s < SAVE_TIMEOUT_S

    def _written_files(self) -> Iterator[tuple[str, int, int]]:
        """Yield path, size and modification time of the files that a save may write."""
        for pattern in ("*weights*", "checkpoints/*", "checkpoints/*/*"):
            for path in self._run.glob(pattern):
                try:
                    status = path.stat(follow_symlinks=False)
                except OSError:
                    continue  # renamed to its final name meanwhile
                yield str(path), status.st_size, status.st_mtime_ns
