"""When a run is saved, and from where it goes on: every so many steps, when a person asks, when it is
stopped, at its end.

The store (checkpoint/store.py) writes; the agreement says at which step all ranks do it; this file tells
what happened as events. A checkpoint that cannot be written costs a problem, never the run. Read loop.py
next.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from rankdeck import events
from rankdeck.checkpoint.store import CheckpointStore, Restored
from rankdeck.checkpoint_files import Checkpoint, CheckpointError
from rankdeck.rundir import EventWriter
from rankdeck.training.agreement import SAVE, STOP, Agreement
from rankdeck.training.step import Trained


class StopRequested(Exception):  # noqa: N818 - being asked to stop is no error
    """The person asked the run to stop; raised between two steps."""


@dataclass
class Saver:
    """One rank's part in saving.

    `every` is 0 for no regular checkpoints; `start` is where the run goes on from.
    """

    store: CheckpointStore
    agreement: Agreement
    writer: EventWriter
    rank: int
    every: int
    stop_requested: Callable[[], bool]
    start: Checkpoint | None = None
    _saved_step: int = field(default=-1, init=False)
    _was_requested: bool = field(default=False, init=False)

    def restore(self, start: Checkpoint, trained: Trained) -> Restored:
        """The state of a checkpoint into a strategy that is built.

        Raises:
            ConfigError: the checkpoint is of another model or optimizer.
        """
        restored = self.store.restore(start, trained.strategy.module, trained.optimizer)
        # To write it anew would remove it first, and a kill in between would cost what may be the only one.
        self._saved_step = restored.step
        if restored.same_layout:
            extra = restored.extra()
            trained.scaling.take_state(extra)
            trained.strategy.put_extra_state(extra)
        return restored

    def reason_to_save(self, step: int) -> str | None:
        """Why all ranks save after `step`: "stop", "request" or "schedule"; None where they do not."""
        if self.rank == 0:
            if self.stop_requested():
                self.agreement.propose(STOP, step)
            if self.agreement.requested(SAVE):
                self.agreement.propose(SAVE, step)
        agreed = self.agreement.reached(step)
        self._was_requested = SAVE in agreed
        if STOP in agreed:
            return "stop"
        if self._was_requested:
            return "request"
        return "schedule" if self.every and step % self.every == 0 else None

    def save(self, step: int, trained: Trained, *, reason: str) -> None:
        """Write the state after `step`; a failure becomes a problem.

        Raises:
            StopRequested: after the state was saved, where that is the reason.
        """
        if step != self._saved_step:
            self._save(step, trained, reason)
        if self._was_requested and self.rank == 0:
            self.agreement.done(SAVE)
        if reason == "stop":
            raise StopRequested

    def _save(self, step: int, trained: Trained, reason: str) -> None:
        strategy = trained.strategy
        started = time.monotonic()
        try:
            strategy.settle()
            extra = strategy.extra_state() | trained.scaling.state()
            with self.agreement.saving() if self.rank == 0 else contextlib.nullcontext():
                num_bytes = self.store.save(step, strategy.module, trained.optimizer, extra)
        except CheckpointError as error:
            if self.rank == 0:
                problem = msgspec.structs.replace(error.problem, severity="warning")
                self.writer.write(events.ProblemRaised(problem=problem), sync=True)
            return
        self._saved_step = step
        if self.rank == 0:
            self.writer.write(
                events.CheckpointSaved(
                    step=step, num_bytes=num_bytes, seconds=time.monotonic() - started, reason=reason
                ),
                sync=True,
            )
