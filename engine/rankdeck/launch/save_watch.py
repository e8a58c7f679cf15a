"""Whether a save that is under way makes progress: whoever ends a run waits for one that does.

Rank 0 leaves a sign while it writes (training/rank_consensus.py). Standard library only, as all of the guard.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

SAVE_TIMEOUT_S = 30.0
"""Seconds without a byte more after which nobody waits any longer."""

_POLL_INTERVAL_S = 0.5
"""Seconds between two looks at what may be hundreds of files."""


def save_marker(run: str | Path) -> Path:
    """The file that is there while rank 0 writes."""
    return Path(run, "requests", "saving")


def was_save_interrupted(run: str | Path) -> bool:
    """Whether a save of a run that has ended left its sign, which is gone after that: the next attempt saves
    nothing yet."""
    try:
        save_marker(run).unlink()
    except OSError:
        return False
    return True


class SaveWatch:
    """Looks at one run, now and then. A save that is seen for the first time has just made progress."""

    def __init__(self, run: str | Path) -> None:
        self._run = Path(run)
        self._snapshot: list[tuple[str, int, int]] | None = None
        self._progress_s = self._checked_s = 0.0

    def is_progressing(self) -> bool:
        """Whether something is being written, and has grown or changed within the last PATIENCE_S. It may be
        asked as often as one likes, and never raises."""
        now_s, seen = time.monotonic(), list[tuple[str, int, int]]()
        try:
            if not save_marker(self._run).exists():
                self._snapshot = None
                return False
            if self._snapshot is not None and now_s - self._checked_s < _POLL_INTERVAL_S:
                return now_s - self._progress_s < SAVE_TIMEOUT_S
            seen = sorted(self._written_files())
        except OSError:
            pass  # an old checkpoint was removed meanwhile, which is progress too
        self._checked_s = now_s
        if seen != self._snapshot:
            self._snapshot, self._progress_s = seen, now_s
        return now_s - self._progress_s < SAVE_TIMEOUT_S

    def _written_files(self) -> Iterator[tuple[str, int, int]]:
        """Names, sizes and times of what a save may be writing."""
        for pattern in ("*weights*", "checkpoints/*", "checkpoints/*/*"):
            for path in self._run.glob(pattern):
                try:
                    told = path.stat(follow_symlinks=False)
                except OSError:
                    continue  # it has its final name by now
                yield str(path), told.st_size, told.st_mtime_ns
