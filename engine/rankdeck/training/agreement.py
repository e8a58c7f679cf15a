"""At which step all ranks do what a person asked for in between: save a checkpoint, or stop.

Ranks must act at the same step, or those that go on wait for those that left. No collective is spent on it:
rank 0 writes the step into a small file of the run's directory, a few steps ahead, and every rank reads that
file between two steps. Ranks cannot be further ahead of rank 0 than `lead` steps, because each step waits for
all. The file is read, not mapped: not every file system shows a mapping what was written. A rank alone keeps
the step to itself.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SAVE = "save"
STOP = "stop"
SAVING = "saving"
_KINDS = (SAVE, STOP)
_STEPS = struct.Struct("<qq")
"""The step for each of `_KINDS`; 0 is none."""
_LOOK_S = 0.05
"""Seconds between two looks for a person's request."""
_MEET_S, _LONGEST_GAP = 0.5, 10_000
"""Between two meetings of ranks of several hosts: seconds, and steps at most."""


class Agreement:
    """One rank's view. `folder` is shared by all ranks of an attempt and empty at its start; with a `lead` of
    0 there are no others.

    Raises: OSError where the file of the steps cannot be made.
    """

    def __init__(self, folder: Path, rank: int, lead: int = 1) -> None:
        self._folder = folder
        self._rank = rank
        self._lead = lead
        self._looked_s = 0.0
        folder.mkdir(exist_ok=True)
        self._own: dict[str, int] = {}
        self._file: int | None = None
        if lead:
            self._file = os.open(folder / "steps", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if rank == 0:
            self._put({})

    def _steps(self) -> dict[str, int]:
        """By kind; empty where nothing is agreed on."""
        if self._file is None:
            return self._own
        data = os.pread(self._file, _STEPS.size, 0)
        return dict(zip(_KINDS, _STEPS.unpack(data), strict=True)) if any(data) else {}

    def _put(self, steps: dict[str, int]) -> None:
        """One write over bytes that are there: a reader never sees half of it, and a full disk is no harm."""
        if self._file is None:
            self._own = steps
            return
        os.pwrite(self._file, _STEPS.pack(*(steps.get(what, 0) for what in _KINDS)), 0)

    def propose(self, what: str, step: int) -> None:
        """Rank 0, between `step` and the next, fixes when. The first proposal stands."""
        assert self._rank == 0
        steps = self._steps()
        if not steps.get(what):
            self._put(steps | {what: step + self._lead})

    def reached(self, step: int) -> set[str]:
        """What is to be done after `step`, which has just ended. The answer is the same on every rank."""
        return {what for what, at in self._steps().items() if 0 < at <= step}

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Rank 0 writes: whoever is about to end the run waits for it (../launch/saves.py)."""
        sign = self._folder / SAVING
        with contextlib.suppress(OSError):
            sign.touch()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                sign.unlink()

    def request(self, what: str) -> None:
        """Another rank than 0 asks for it."""
        with contextlib.suppress(OSError):
            (self._folder / f"{what}.request").touch()

    def requested(self) -> list[str]:
        """What a person asked for, by the guard, or another rank; rank 0 looks, now and then."""
        now = time.monotonic()
        if now - self._looked_s < _LOOK_S:
            return []
        self._looked_s = now
        return [what for what in _KINDS if (self._folder / f"{what}.request").exists()]

    def done(self, what: str) -> None:
        """Rank 0, after all ranks have acted: the next request is a new one."""
        with contextlib.suppress(OSError):
            (self._folder / f"{what}.request").unlink()
        self._put(self._steps() | {what: 0})


class AgreementOfHosts(Agreement):
    """Ranks of several hosts have no folder in common: now and then they meet, and what any of them wants is
    done by all right then. `meet` gives the largest of what all ranks give; each meeting says at which step
    the next one is, about half a second later.
    """

    def __init__(self, folder: Path, rank: int, meet: Callable[[list[int]], list[int]]) -> None:
        super().__init__(folder, rank, lead=0)
        self._meet = meet
        self._wanted: set[str] = set()
        self._next, self._gap, self._met_s = 1, 1, time.monotonic()

    def propose(self, what: str, step: int) -> None:
        self._wanted.add(what)

    def request(self, what: str) -> None:
        self._wanted.add(what)

    def reached(self, step: int) -> set[str]:
        if step < self._next:
            return set()
        now_s = time.monotonic()
        gap = self._gap * _MEET_S / max(now_s - self._met_s, 1e-6)
        gap = min(max(1, round(gap)), 2 * self._gap, _LONGEST_GAP) if self._rank == 0 else 0
        told = self._meet([*(int(what in self._wanted) for what in _KINDS), gap])
        self._gap, self._met_s = max(1, told[-1]), time.monotonic()
        self._next = step + self._gap
        return {what for what, wanted in zip(_KINDS, told, strict=False) if wanted}

    def done(self, what: str) -> None:
        self._wanted.discard(what)
        with contextlib.suppress(OSError):
            (self._folder / f"{what}.request").unlink()
