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
SAVING_FILE = "saving"
_ACTIONS = (SAVE, STOP)
_STEPS_FORMAT = struct.Struct("<qq")
"""The step for each of `_KINDS`; 0 is none."""
_POLL_INTERVAL_S = 0.05
"""Seconds between two looks for a person's request."""
_SYNC_INTERVAL_S, _MAX_SYNC_GAP = 0.5, 10_000
"""Between two meetings of ranks of several hosts: seconds, and steps at most."""


class RankConsensus:
    """One rank's view. `folder` is shared by all ranks of an attempt and empty at its start; with a `lead` of
    0 there are no others.

    Raises: OSError where the file of the steps cannot be made.
    """

    def __init__(self, folder: Path, rank: int, lead_steps: int = 1) -> None:
        self._folder = folder
        self._rank = rank
        self._lead_steps = lead_steps
        self._last_poll_s = 0.0
        folder.mkdir(exist_ok=True)
        self._local_steps: dict[str, int] = {}
        self._file: int | None = None
        if lead_steps:
            self._file = os.open(folder / "steps", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if rank == 0:
            self._write_steps({})

    def _read_steps(self) -> dict[str, int]:
        """By kind; empty where nothing is agreed on."""
        if self._file is None:
            return self._local_steps
        data = os.pread(self._file, _STEPS_FORMAT.size, 0)
        return dict(zip(_ACTIONS, _STEPS_FORMAT.unpack(data), strict=True)) if any(data) else {}

    def _write_steps(self, steps: dict[str, int]) -> None:
        """One write over bytes that are there: a reader never sees half of it, and a full disk is no harm."""
        if self._file is None:
            self._local_steps = steps
            return
        os.pwrite(self._file, _STEPS_FORMAT.pack(*(steps.get(what, 0) for what in _ACTIONS)), 0)

    def propose(self, what: str, step: int) -> None:
        """Rank 0, between `step` and the next, fixes when. The first proposal stands."""
        assert self._rank == 0
        steps = self._read_steps()
        if not steps.get(what):
            self._write_steps(steps | {what: step + self._lead_steps})

    def due_actions(self, step: int) -> set[str]:
        """What is to be done after `step`, which has just ended. The answer is the same on every rank."""
        return {what for what, at in self._read_steps().items() if 0 < at <= step}

    @contextlib.contextmanager
    def saving_marker(self) -> Iterator[None]:
        """Rank 0 writes: whoever is about to end the run waits for it (../launch/save_watch.py)."""
        sign = self._folder / SAVING_FILE
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

    def pending_requests(self) -> list[str]:
        """What a person asked for, by the guard, or another rank; rank 0 looks, now and then."""
        now = time.monotonic()
        if now - self._last_poll_s < _POLL_INTERVAL_S:
            return []
        self._last_poll_s = now
        return [what for what in _ACTIONS if (self._folder / f"{what}.request").exists()]

    def clear_request(self, what: str) -> None:
        """Rank 0, after all ranks have acted: the next request is a new one."""
        with contextlib.suppress(OSError):
            (self._folder / f"{what}.request").unlink()
        self._write_steps(self._read_steps() | {what: 0})


class MultiHostConsensus(RankConsensus):
    """Ranks of several hosts have no folder in common: now and then they meet, and what any of them wants is
    done by all right then. `meet` gives the largest of what all ranks give; each meeting says at which step
    the next one is, about half a second later.
    """

    def __init__(self, folder: Path, rank: int, meet: Callable[[list[int]], list[int]]) -> None:
        super().__init__(folder, rank, lead_steps=0)
        self._all_reduce_max = meet
        self._requested_actions: set[str] = set()
        self._next_sync_step, self._sync_gap, self._last_sync_s = 1, 1, time.monotonic()

    def propose(self, what: str, step: int) -> None:
        self._requested_actions.add(what)

    def request(self, what: str) -> None:
        self._requested_actions.add(what)

    def due_actions(self, step: int) -> set[str]:
        if step < self._next_sync_step:
            return set()
        now_s = time.monotonic()
        gap = self._sync_gap * _SYNC_INTERVAL_S / max(now_s - self._last_sync_s, 1e-6)
        gap = min(max(1, round(gap)), 2 * self._sync_gap, _MAX_SYNC_GAP) if self._rank == 0 else 0
        told = self._all_reduce_max([*(int(what in self._requested_actions) for what in _ACTIONS), gap])
        self._sync_gap, self._last_sync_s = max(1, told[-1]), time.monotonic()
        self._next_sync_step = step + self._sync_gap
        return {what for what, wanted in zip(_ACTIONS, told, strict=False) if wanted}

    def clear_request(self, what: str) -> None:
        self._requested_actions.discard(what)
        with contextlib.suppress(OSError):
            (self._folder / f"{what}.request").unlink()
