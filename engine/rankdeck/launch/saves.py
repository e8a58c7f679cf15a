"""Whether a save that is under way makes progress: whoever ends a run waits for one that does.

Rank 0 leaves a sign while it writes (training/agreement.py). Standard library only, as all of the guard.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

PATIENCE_S = 30.0
"""Seconds without a byte more after which nobody waits any longer."""


def sign_of(run: str | Path) -> Path:
    """The file that is there while rank 0 writes."""
    return Path(run, "requests", "saving")


class SaveWatch:
    """Looks at one run, now and then. A save that is seen for the first time has just made progress."""

    def __init__(self, run: str | Path) -> None:
        self._run = Path(run)
        self._seen: list[tuple[str, int, int]] | None = None
        self._grew_s = 0.0

    def goes_on(self) -> bool:
        """Whether something is being written, and has grown or changed within the last PATIENCE_S."""
        if not sign_of(self._run).exists():
            self._seen = None
            return False
        now_s, seen = time.monotonic(), sorted(self._written())
        if seen != self._seen:
            self._seen, self._grew_s = seen, now_s
        return now_s - self._grew_s < PATIENCE_S

    def _written(self) -> Iterator[tuple[str, int, int]]:
        """Names, sizes and times of what a save may be writing."""
        for pattern in ("*weights*", "checkpoints/*", "checkpoints/*/*"):
            for path in self._run.glob(pattern):
                try:
                    told = path.stat(follow_symlinks=False)
                except OSError:
                    continue  # it has its final name by now
                yield str(path), told.st_size, told.st_mtime_ns
