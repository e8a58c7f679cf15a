"""Save a run at regular step intervals, on request, before a stop and at the end of the run; resume a run.

The store (checkpoint/store.py) writes; the rank consensus decides at which step all ranks save; this file
reports the outcome as events. A full disk causes a problem to be reported, but never ends the run. After
the first step, a dry run of a save detects state that can never be saved. If a later save fails for a reason
other than the disk, the run continues to its end and then fails. Read loop.py next.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from torch import Tensor

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.checkpoint.replication import HostLeaders
from rankdeck.checkpoint.store import read_weights
from rankdeck.checkpoint.training_state import TrainingState
from rankdeck.checkpoint.weights import check_weights_file, encode_weights, gather_extra_state
from rankdeck.checkpoint_files import (
    UNSAVABLE_STATE,
    Checkpoint,
    CheckpointError,
    list_checkpoints,
    newest_intact,
)
from rankdeck.config import load
from rankdeck.parallel.collectives.broadcast import run_on_rank_0
from rankdeck.parallel.pytree import fp64_dtype
from rankdeck.run.export import write_export
from rankdeck.run.run_state import read_run_state
from rankdeck.run_dir import EventWriter, RunDir
from rankdeck.torch_compat.modules import apply_to_tensors, split_state_dict
from rankdeck.training import workload as workloads
from rankdeck.training.rank_consensus import SAVE, STOP, RankConsensus
from rankdeck.training.step import TrainComponents

if TYPE_CHECKING:
    from rankdeck.checkpoint.store import CheckpointStore, RestoreResult


class StopRequested(Exception):  # noqa: N818 - being asked to stop is no error
    """Raised between two steps when the user has asked the run to stop."""


@dataclass
class Saver:
    """One rank's part in saving and restoring a run.

    `save_interval` is 0 if there are no regular checkpoints; `resume_from` is the checkpoint from which the
    run resumes.
    """

    store: CheckpointStore
    consensus: RankConsensus
    writer: EventWriter
    rank: int
    save_interval: int
    stop_requested: Callable[[], bool]
    resume_from: Checkpoint | None = None
    _components: TrainComponents = field(init=False)
    _state: TrainingState = field(init=False)
    _saved_step: int = field(default=-1, init=False)
    _is_requested: bool = field(default=False, init=False)
    _last_error: CheckpointError | None = field(default=None, init=False)

    def attach(self, trained: TrainComponents) -> None:
        """Set the state to save. Call it before the first step."""
        self._components = trained
        strategy = trained.strategy
        self._state = TrainingState(strategy.module, trained.optimizer, strategy.stage_modules)

    def restore(self, start: Checkpoint) -> RestoreResult:
        """Load a checkpoint into a built strategy, and warn about state that the checkpoint lacks.

        Raises:
            ConfigError: the checkpoint belongs to another model or optimizer.
        """
        restored = self.store.restore(start, self._state)
        # Saving this step again would first remove what may be the only checkpoint, and a kill in between
        # would lose it. The step number is enough to recognize it.
        self._saved_step = restored.step
        extra, missing = dict(restored.extra), restored.missing
        self._components.scaling.pop_state(extra)
        if restored.same_layout:
            self._components.strategy.load_extra_state(extra)
        # Random states of another layout are never continued, so they need no warning.
        elif any(not name.startswith("random.") for name in extra):
            missing = [*missing, "the accumulated error of gradient compression"]
        self._report_unsaved(
            missing,
            tr_noop(
                "The checkpoint of step {step} does not restore {names}. Training resumes with "
                "initial values instead, so it differs from an uninterrupted run."
            ),
            restored.step,
        )
        return restored

    def dry_run(self, step: int) -> None:
        """Write a trial checkpoint of the state after `step`, with one number per tensor, and delete it.

        Raises:
            CheckpointError: the weights, or the state of a run with regular checkpoints, can never be saved.
        """
        check_weights_file(self._state.module)
        try:
            # Without finalize(): a dry run must not change the training, and draining an asynchronous
            # pipeline would.
            lost = self.store.dry_run(step, self._state, self._extra_state())
        except CheckpointError as error:
            if error.code == UNSAVABLE_STATE and self.save_interval:
                raise
            self._warn(error.problem)
            return
        self._report_unsaved(
            lost,
            tr_noop(
                "This run's checkpoints do not include {names}: a resumed run starts with "
                "initial values instead."
            ),
            step,
        )

    def _extra_state(self) -> dict[str, Tensor]:
        return self._components.strategy.extra_state() | self._components.scaling.state()

    def _report_unsaved(self, names: list[str], template: str, step: int) -> None:
        if names:
            advice = phrase(
                "Store this state in a buffer, in get_extra_state, or in the optimizer's per-parameter state."
            )
            message = phrase(template, names=", ".join(names), step=step)
            self._warn(Problem("not-restored", message, advice=advice))

    def _warn(self, problem: Problem) -> None:
        if self.rank == 0:
            warning = msgspec.structs.replace(problem, severity="warning")
            self.writer.write(events.ProblemRaised(problem=warning), sync=True)

    def reason_to_save(self, step: int) -> str | None:
        """Return the reason why all ranks save after `step`: "stop", "request" or "schedule"; None if they do
        not save."""
        if self.rank == 0:
            stop_actions = [STOP] if self.stop_requested() else []
            for what in (*stop_actions, *self.consensus.pending_requests()):
                self.consensus.propose(what, step)
        elif self.stop_requested():
            self.consensus.request(STOP)  # a signal may have reached this rank alone
        agreed = self.consensus.due_actions(step)
        self._is_requested = SAVE in agreed
        if STOP in agreed:
            return "stop"
        if self._is_requested:
            return "request"
        return "schedule" if self.save_interval and step % self.save_interval == 0 else None

    def save(self, step: int, *, reason: str) -> None:
        """Write the state after `step`; report a failure as a problem.

        Raises:
            StopRequested: the state was saved because the run is to stop.
            CheckpointError: the run is to stop, and its state cannot be saved on any disk.
        """
        if step != self._saved_step:
            self._save(step, reason)
        if self._is_requested and self.rank == 0:
            self.consensus.clear_request(SAVE)
        if reason == "stop":
            self.raise_save_error()
            raise StopRequested

    def raise_save_error(self) -> None:
        """Raise the error of the last save if that save failed for a reason other than the disk. Raises:
        CheckpointError."""
        if self._last_error is not None:
            raise self._last_error

    def _save(self, step: int, reason: str) -> None:
        started = time.monotonic()
        try:
            self._components.strategy.finalize()
            with self.consensus.saving_marker() if self.rank == 0 else contextlib.nullcontext():
                num_bytes = self.store.save(step, self._state, self._extra_state())
        except CheckpointError as error:
            self._warn(error.problem)
            self._last_error = error if error.code == UNSAVABLE_STATE and self.save_interval else None
            return
        self._saved_step, self._last_error = step, None
        if self.rank == 0:
            self.writer.write(
                events.CheckpointSaved(
                    step=step, num_bytes=num_bytes, seconds=time.monotonic() - started, reason=reason
                ),
                sync=True,
            )


# Resume an attempt from the newest intact checkpoint, the same one on all ranks.


def newest_checkpoint(
    folder: Path, rank: int, world_size: int, hosts: HostLeaders | None, writer: EventWriter
) -> Checkpoint | None:
    """Return the newest intact checkpoint that rank 0 finds; if `hosts` is not None, the newest checkpoint
    whose files are each intact on at least one host.

    Newer checkpoints that are damaged are reported.
    """
    newest: Checkpoint | None = None
    complaints: list[str] = []
    if hosts is not None:
        newest, complaints = hosts.newest_intact(folder)
    elif rank == 0:
        newest, complaints = newest_intact(folder)
    for complaint in complaints if rank == 0 else ():
        advice = (
            phrase("The run uses an older checkpoint. Check the disk.")
            if newest
            else phrase("The run restarts from the first step.")
        )
        problem = Problem("checkpoint-damaged", complaint, advice=advice, severity="warning")
        writer.write(events.ProblemRaised(problem=problem), sync=True)
    if world_size == 1:
        return newest
    step = run_on_rank_0(lambda: None if newest is None else newest.step)
    return None if step is None else Checkpoint(folder / str(step))


# Export the weights of a run's checkpoint.
#
# Checkpoints hold shards and optimizer state, and no tensor without dims: the model is built to recover names
# and shapes.


def export_checkpoint_weights(run: RunDir, file: Path, attempt: int | None = None) -> int | None:
    """Write the newest intact checkpoint's weights as safetensors, under the model's original names.

    If attempts after `attempt` resumed from a checkpoint, use the checkpoint from which the first of them
    resumed. Return the checkpoint's step; None if the checkpoint is damaged or missing.

    Raises:
        RankdeckError: the run's model can no longer be built or has changed, or the file cannot be written.
    """
    checkpoint, _ = newest_intact(run.checkpoints_folder)
    if attempt is not None:
        later = [item.restored for number, item in read_run_state(run).attempts.items() if number > attempt]
        if (resumed_step := next((step for step in later if step is not None), None)) is not None:
            matching = [
                item for item in list_checkpoints(run.checkpoints_folder) if item.step == resumed_step
            ]
            checkpoint = matching[0] if matching and matching[0].find_damage() is None else None
    if checkpoint is None:
        return None
    config = load(run.config_to_resume)
    model = workloads.load(config).build_model()
    if config.train.precision == "fp64":
        apply_to_tensors(model, lambda tensor: tensor.to(fp64_dtype(tensor.dtype)))
    read_weights(checkpoint, model)
    metadata = {"run": run.name, "step": str(checkpoint.step)}
    data = encode_weights(split_state_dict(model)[0], metadata, gather_extra_state(model))
    write_export(file, lambda target: target.write_bytes(data))
    return checkpoint.step
