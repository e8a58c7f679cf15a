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
from dataclasses import dataclass

import msgspec
from torch import Tensor
from torch.optim import Optimizer

from rankdeck import events
from rankdeck.checkpoint.store import CheckpointStore, Restored
from rankdeck.checkpoint_files import Checkpoint, CheckpointError
from rankdeck.rundir import EventWriter
from rankdeck.strategies.base import Strategy
from rankdeck.training.agreement import SAVE, STOP, Agreement
from rankdeck.training.loss_scaling import LossScaling


class StopRequested(Exception):  # noqa: N818 - being asked to stop is no error
    """The person asked the run to stop; raised between two steps."""


@dataclass
class Saver:
    """One rank's part in saving.

    `every` is 0 for no regular checkpoints; `start` is where the run goes on from.
    """

    keeper: CheckpointStore
    agreement: Agreement
    writer: EventWriter
    rank: int
    every: int
    stop_requested: Callable[[], bool]
    start: Checkpoint | None = None
    scaling: LossScaling | None = None
    tell_steps: Callable[[], object] = lambda: None
    """Writes the events of all steps so far: a run that goes on from a checkpoint never does them again."""
    _saved_step: int = -1

    def restore(self, strategy: Strategy, optimizer: Optimizer) -> Restored | None:
        """The state of `start` into a strategy that is built; None where the run begins at its beginning.

        Raises:
            ConfigError: the checkpoint is of another model or optimizer.
        """
        if self.start is None:
            return None
        restored = self.keeper.restore(self.start, strategy.module, optimizer)
        # To write it anew would remove it first, and a kill in between would cost what may be the only one.
        self._saved_step = restored.step
        if restored.same_layout:
            extra = restored.extra()
            if self.scaling is not None:
                self.scaling.take_state(extra)
            strategy.put_extra_state(extra)
        return restored

    def _extra(self, strategy: Strategy) -> dict[str, Tensor]:
        """What is kept beside weights and optimizer."""
        return strategy.extra_state() | (self.scaling.state() if self.scaling is not None else {})

    def after_step(self, step: int, strategy: Strategy, optimizer: Optimizer) -> bool:
        """Save or stop if `step` is agreed on or due; whether something was saved.

        Raises:
            StopRequested: after the state was saved.
        """
        if self.rank == 0:
            if self.stop_requested():
                self.agreement.propose(STOP, step)
            if self.agreement.requested(SAVE):
                self.agreement.propose(SAVE, step)
        stopping = self.agreement.reached(STOP, step)
        asked = self.agreement.reached(SAVE, step)
        due = bool(self.every) and step % self.every == 0
        if not (stopping or asked or due):
            return False
        self.save(
            step, strategy, optimizer, reason="stop" if stopping else "request" if asked else "schedule"
        )
        if asked and self.rank == 0:
            self.agreement.done(SAVE)
        if stopping:
            raise StopRequested
        return True

    def at_end(self, step: int, strategy: Strategy, optimizer: Optimizer) -> None:
        """The last state, where checkpoints are kept at all."""
        if self.every:
            self.save(step, strategy, optimizer, reason="end")

    def save(self, step: int, strategy: Strategy, optimizer: Optimizer, *, reason: str) -> None:
        """Write the state after `step`; a failure becomes a problem."""
        if step == self._saved_step:
            return
        self.tell_steps()
        started = time.monotonic()
        try:
            strategy.settle()
            with self.agreement.saving() if self.rank == 0 else contextlib.nullcontext():
                num_bytes = self.keeper.save(step, strategy.module, optimizer, self._extra(strategy))
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
