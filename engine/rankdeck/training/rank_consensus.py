"""Let all ranks agree on the step at which they save a checkpoint, or stop, on request.

All ranks must act at the same step, so that no rank waits for a rank that has already stopped. This needs no
collective: rank 0 writes the step, slightly in advance, into a small file in the run directory, and every
rank reads the file between two steps. No rank can be more than `lead_steps` ahead of rank 0, because each
step waits for all ranks. The file is read, not mapped: on some file systems a mapping does not show what was
written. A single rank keeps the step in memory.
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
"""Format of the file: the step at which each of `_ACTIONS` is due, or 0 if the action is not due."""
_POLL_INTERVAL_S = 0.05
"""Seconds between two checks for a request."""
_SYNC_INTERVAL_S, _MAX_SYNC_GAP = 0.5, 10_000
"""Seconds between two syncs of ranks on several hosts, and the maximum number of steps between them."""


class RankConsensus:
    """One rank's view of the agreed steps.

    All ranks of an attempt share `folder`, which is empty when the attempt starts. `lead_steps` is 0 for a
    single rank.

    Raises: OSError if the file that holds the steps cannot be created.
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
            # Allocates the bytes, so that later writes succeed on a full disk.
            self._write_steps({})

    def _read_steps(self) -> dict[str, int]:
        """Return the step of each action; empty if no step is agreed on."""
        if self._file is None:
            return self._local_steps
        # Read in each step: ranks that disagree about a step would wait for each other for ever.
        data = os.pread(self._file, _STEPS_FORMAT.size, 0)
        return dict(zip(_ACTIONS, _STEPS_FORMAT.unpack(data), strict=True)) if any(data) else {}

    def _write_steps(self, steps: dict[str, int]) -> None:
        """Overwrite the steps in the file with a single write: a reader never sees a partial update, and a
        full disk does no harm."""
        if self._file is None:
            self._local_steps = steps
            return
        os.pwrite(self._file, _STEPS_FORMAT.pack(*(steps.get(what, 0) for what in _ACTIONS)), 0)

    def propose(self, what: str, step: int) -> None:
        """Schedule action `what` for step `step + lead_steps`, unless the action is already scheduled.

        Called on rank 0 once `step` has ended."""
        assert self._rank == 0
        steps = self._read_steps()
        if not steps.get(what):
            self._write_steps(steps | {what: step + self._lead_steps})

    def due_actions(self, step: int) -> set[str]:
        """Return the actions that are due after `step`, which has just ended; all ranks get the same
        result."""
        return {what for what, at in self._read_steps().items() if 0 < at <= step}

    @contextlib.contextmanager
    def saving_marker(self) -> Iterator[None]:
        """Mark, for the duration of the `with` block, that rank 0 is writing a checkpoint; the supervisor
        waits for the end of the write before it ends the run (../launch/save_watch.py)."""
        sign = self._folder / SAVING_FILE
        with contextlib.suppress(OSError):
            sign.touch()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                sign.unlink()

    def request(self, what: str) -> None:
        """Ask rank 0 for an action; called on any rank except rank 0."""
        with contextlib.suppress(OSError):
            (self._folder / f"{what}.request").touch()

    def pending_requests(self) -> list[str]:
        """Return the actions that the user (through the guard) or another rank has asked for; called on rank
        0."""
        now = time.monotonic()
        if now - self._last_poll_s < _POLL_INTERVAL_S:
            return []
        self._last_poll_s = now
        return [what for what in _ACTIONS if (self._folder / f"{what}.request").exists()]

    def clear_request(self, what: str) -> None:
        """Clear a request; called on rank 0 after all ranks have acted, so that a later request counts as
        new."""
        with contextlib.suppress(OSError):
            (self._folder / f"{what}.request").unlink()
        self._write_steps(self._read_steps() | {what: 0})


class MultiHostConsensus(RankConsensus):
    """Consensus of ranks on several hosts, which share no folder.

    About every half second the ranks sync with an all-reduce: an action that any rank requests is due on all
    ranks after the same step. `meet` returns the element-wise maximum of its argument across ranks. Each sync
    also sets the step of the next sync.
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
        # Rank 0 alone proposes the gap: the maximum over ranks then is its value on all of them.
        gap = min(max(1, round(gap)), 2 * self._sync_gap, _MAX_SYNC_GAP) if self._rank == 0 else 0
        maxima = self._all_reduce_max([*(int(what in self._requested_actions) for what in _ACTIONS), gap])
        self._sync_gap, self._last_sync_s = max(1, maxima[-1]), time.monotonic()
        self._next_sync_step = step + self._sync_gap
        return {what for what, is_requested in zip(_ACTIONS, maxima, strict=False) if is_requested}

    def clear_request(self, what: str) -> None:
        self._requested_actions.discard(what)
        with contextlib.suppress(OSError):
            (self._folder / f"{what}.request").unlink()
