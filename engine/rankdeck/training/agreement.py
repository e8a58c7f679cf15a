"""At which step all ranks do what a person asked for in between: save a checkpoint, or stop.

Ranks must act at the same step, or those that go on wait for those that left. No collective is spent on it:
rank 0 writes the step into a file of the run's directory, a few steps ahead, and every rank looks for that
file between two steps (2 us). Ranks cannot be further ahead of rank 0 than `lead` steps, because each step
waits for all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from rankdeck.base import files

SAVE = "save"
STOP = "stop"
SAVING = "saving"


class Agreement:
    """One rank's view. `folder` is shared by all ranks of an attempt and empty at its start."""

    def __init__(self, folder: Path, rank: int, lead: int = 1) -> None:
        self._folder = folder
        self._rank = rank
        self._lead = lead

    def propose(self, what: str, step: int) -> None:
        """Rank 0, between `step` and the next, fixes when. The first proposal stands."""
        assert self._rank == 0
        target = self._folder / f"{what}.at"
        if not target.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            part = target.with_suffix(".part")
            part.write_text(str(step + self._lead))
            part.replace(target)

    def reached(self, what: str, step: int) -> bool:
        """Whether `step`, which has just ended, is the one. The answer is the same on every rank."""
        try:
            text = files.read_text(self._folder / f"{what}.at")
        except OSError:
            return False
        return step >= int(text)

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Rank 0 writes: whoever is about to end the run waits for it (../launch/guard.py and
        rank_processes.py)."""
        sign = self._folder / SAVING
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            sign.touch()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                sign.unlink()

    def requested(self, what: str) -> bool:
        """Whether a person left a request, by the guard; rank 0 looks."""
        return (self._folder / f"{what}.request").exists()

    def done(self, what: str) -> None:
        """Rank 0, after all ranks have acted: the next request is a new one."""
        for suffix in ("request", "at"):
            with contextlib.suppress(OSError):
                (self._folder / f"{what}.{suffix}").unlink()
