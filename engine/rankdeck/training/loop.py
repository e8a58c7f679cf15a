"""The training loop, the same for every strategy: batches, optimizer steps, reports, checkpoints,
evaluations.

The loop never waits for its own reporting. step.py computes a step, monitor.py selects the steps that are
tracked in detail, reporting.py writes each step's facts. Read worker.py next.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from rankdeck import events
from rankdeck.base.allocations import Allocation
from rankdeck.base.errors import ConfigError, Problem, TrainingError
from rankdeck.base.heartbeat import FIRST_STEP, SAVING, STEP
from rankdeck.base.phrases import phrase, plural_phrase, tr_noop
from rankdeck.data.base import SampleSet
from rankdeck.data.loader import Loader, build_loader
from rankdeck.data.samplers import HeldoutBatchSampler
from rankdeck.diagnose.fixes import with_fix
from rankdeck.memory.ledger import AnyLedger
from rankdeck.run_dir import EventWriter
from rankdeck.strategies.base import Batch, Strategy
from rankdeck.training.batches import training_loader
from rankdeck.training.monitor import StepMonitor
from rankdeck.training.nan_check import find_non_finite
from rankdeck.training.parity_notes import loss_note
from rankdeck.training.reporting import StepFacts, StepLog, StepReporter
from rankdeck.training.sampling_budget import SamplingBudget
from rankdeck.training.saving import Saver
from rankdeck.training.step import LossScaling, OptimizerStep, TrainComponents, set_optimizer_mode
from rankdeck.training.workload import Workload

if TYPE_CHECKING:
    from rankdeck.checkpoint.store import RestoreResult


class Trainer:
    """One rank's training loop, which uses a strategy that has already been built.

    `device_indices` are the indices of the rank's devices in the run. The trainer calls `beat(step, phase)`
    as a sign of life. Without a `saver` nothing is saved. `notes` are reported first; if `is_verified` is
    True, no further differences from a run on one device are reported. If `sync_each_step` is True, a step
    ends only when its GPUs have finished, so that the step's time includes their work.
    """

    def __init__(
        self,
        workload: Workload,
        strategy: Strategy,
        optimizer: Optimizer,
        writer: EventWriter,
        *,
        rank: int,
        device_indices: list[int],
        notes: Sequence[Problem] = (),
        is_verified: bool = False,
        sampling: SamplingBudget | None = None,
        beat: Callable[[int, str], None] = lambda step, phase: None,
        saver: Saver | None = None,
        sync_each_step: bool = False,
    ) -> None:
        self.strategy = strategy
        self.optimizer = optimizer
        self.notes = notes
        self._is_loss_note_reported = is_verified or not workload.loss.is_in_model
        self._workload = workload
        self._train = workload.config.train
        self._writer = writer
        self._rank = rank
        self._beat = beat
        self._saver = saver
        self._sync_each_step = sync_each_step
        scaling = LossScaling(strategy.device, is_on=self._train.precision == "fp16")
        self._components = TrainComponents(strategy, optimizer, scaling)
        if saver is not None:
            saver.attach(self._components)
        set_optimizer_mode(self.optimizer, "train")
        self._reporter = StepReporter(writer, rank, strategy.device)
        self._log = StepLog(writer, rank)
        self._monitor = StepMonitor(
            strategy,
            optimizer,
            writer,
            rank=rank,
            device_indices=device_indices,
            sampling=sampling or SamplingBudget(),
            config=workload.config,
        )
        self._optimizer_step = OptimizerStep(
            workload, self._components, check_loss=self._check_loss, on_batch=self._monitor.on_batch
        )

    def report_out_of_memory(self, error: BaseException, allocation: Allocation, step: int) -> None:
        """Report how the memory of this rank's devices was used when an allocation failed."""
        self._monitor.report_out_of_memory(error, allocation, step)

    @property
    def ledger(self) -> AnyLedger:
        return self.strategy.ledger

    def run(self) -> events.Evaluation | None:
        """Run all steps and evaluations; return the last evaluation (None without held-out data).

        Raises:
            TrainingError: the loss is not finite.
            StopRequested: the user asked the run to stop.
        """
        for note in self.notes if self._rank == 0 else ():
            self._report_problem(note)
        restored = self._restore()
        first = 0 if restored is None else restored.step
        self._optimizer_step.resume_after(first)
        self._writer.write(events.Restored(rank=self._rank, step=first))
        loader = self.loader(first, report=self._report_problem if self._rank == 0 else None)
        evaluator = self._make_evaluator()
        steps = self._workload.steps
        try:
            # Before random states are restored: creating the iterator draws a number.
            batches = iter(loader)
            if restored is not None:
                restored.put_random_states()
            self._run_steps(first, batches, evaluator)
            evaluation = self._evaluate(evaluator, steps, final=True)
            if self._saver is not None and self._saver.save_interval:
                self._save(steps, reason="end")
            set_optimizer_mode(self.optimizer, "eval")
            return evaluation
        finally:
            self._reporter.flush()
            self._log.flush(is_final=True)
            loader.close()
            if evaluator is not None:
                evaluator.close()

    def _restore(self) -> RestoreResult | None:
        """Load the checkpoint that the run resumes from; return None for a new run."""
        saver = self._saver
        if saver is None or saver.resume_from is None:
            return None
        # If no step is left, no other forward pass shows how the model's own loss is averaged.
        is_over = saver.resume_from.step >= self._workload.steps and not self.strategy.owns_optimizer_step
        if self.strategy.needs_warm_up or (is_over and self._workload.loss.is_in_model):
            self.warm_up()
        restored = saver.restore(saver.resume_from)
        if restored.step > self._workload.steps:
            raise ConfigError(
                plural_phrase(
                    tr_noop("The checkpoint is from step {step}, but the run has only 1 step."),
                    tr_noop("The checkpoint is from step {step}, but the run has only {n} steps."),
                    self._workload.steps,
                    step=restored.step,
                ),
                path="train.steps",
                advice=phrase("Resume with --set train.steps={steps}", steps=2 * restored.step),
            )
        if not restored.same_layout:
            # Random streams of another layout cannot continue: start new ones that do not repeat those from
            # step 1.
            torch.manual_seed(torch.initial_seed() + restored.step * 7919)
        return restored

    def warm_up(self) -> None:
        """Run one step's forward and backward passes without updating weights.

        The restore that follows resets everything that the step changes (buffers, random states).
        """
        loader = self.loader()
        try:
            for microstep, batch in zip(range(self._train.accumulate), loader, strict=False):
                last = microstep == self._train.accumulate - 1
                self.strategy.forward_backward(batch, 1.0 / self._train.global_batch, last=last)
            self.strategy.sync_gradients()
        finally:
            loader.close()
        self.optimizer.zero_grad(set_to_none=True)

    def _run_steps(self, first: int, batches: Iterator[Batch], evaluator: Evaluator | None) -> None:
        steps, every, monitor = self._workload.steps, self._train.evaluate_every, self._monitor
        # A pipeline that owns its optimizer step takes its first update once it is full.
        until_full = 2 * self.strategy.setup.world_size * self.strategy.owns_optimizer_step
        tried_out = min(1 + until_full, steps - first)
        step_ended = time.perf_counter()
        for step in range(first + 1, steps + 1):
            nth, is_last = step - first, step == steps
            self._beat(step, STEP if nth > 1 else FIRST_STEP)
            followed = monitor.start_step(step, nth, is_last=is_last)
            with self._log.logging_step(step):
                facts = self.step(step, batches, is_tracked=followed)
            monitor.end_step()
            if not self._is_loss_note_reported:
                self._report_loss_note()
            now = time.perf_counter()
            # From the end of the last step, so that loading counts; evaluations and saves in between do not.
            facts.step_s, step_ended = now - step_ended, now
            self._check_reported(self._reporter.add(facts))
            monitor.report(facts, nth, is_last=is_last)
            # After the first update, when the optimizer's state exists.
            if nth == tried_out and self._saver is not None:
                self._beat(step, SAVING)
                self._saver.dry_run(step)
                step_ended = time.perf_counter()
            if every and step % every == 0 and not is_last:
                self._evaluate(evaluator, step, final=False)
                step_ended = time.perf_counter()
            if self._save_if_due(step):
                step_ended = time.perf_counter()
        self.strategy.finalize()
        self._report_steps()
        monitor.write_spans(wait=True)

    def step(self, step: int, batches: Iterator[Batch], *, is_tracked: bool) -> StepFacts:
        """Take one optimizer step over the next global batch.

        The ledger tracks the whole step if `is_tracked`, otherwise from the first batch whose shapes have not
        been tracked yet.
        """
        self._monitor.enter_step(is_tracked=is_tracked)
        try:
            facts = self._optimizer_step.run(step, batches)
        finally:
            self._monitor.exit_step()
        self._monitor.report_memory(step)
        for device in self.strategy.setup.devices if self._sync_each_step else ():
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        return facts

    def _save_if_due(self, step: int) -> bool:
        """Save a checkpoint if one is due after `step`; return whether one was due.

        Raises: StopRequested, once the state is saved.
        """
        reason = None if self._saver is None else self._saver.reason_to_save(step)
        if reason is None:
            return False
        self._save(step, reason=reason)
        return True

    def _save(self, step: int, *, reason: str) -> None:
        """Report all steps so far, because a run resumed from the new checkpoint does not repeat them; then
        save the checkpoint."""
        assert self._saver is not None
        self._report_steps()
        self._beat(step, SAVING)
        self._saver.save(step, reason=reason)

    def _report_steps(self) -> None:
        """Write all steps that have not been written yet.

        Raises: TrainingError if a loss is not finite.
        """
        self._check_reported(self._reporter.flush(wait=True))

    def _check_reported(self, unknown: tuple[int, float] | None) -> None:
        if unknown is not None:
            self._check_loss(*unknown)

    def _check_loss(self, step: int, total: float) -> None:
        if math.isfinite(total):
            return
        self._reporter.flush()
        origin = find_non_finite(
            self.strategy.module,
            self._optimizer_step.last_inputs,
            forward_is_local=self.strategy.forward_is_local,
        )
        advice = phrase(
            "Lower train.optimizer.lr, set train.clip_norm = 1.0, or add warm-up to train.schedule."
        )
        if step == 1:
            advice = phrase("Check the batch, the model's outputs and the loss before the first update.")
        message = origin.text(total, step, self._rank)
        raise TrainingError(message, code="loss-not-finite", advice=advice, rank=self._rank)

    def loader(self, after_step: int = 0, report: Callable[[Problem], None] | None = None) -> Loader:
        """Return a loader of this rank's training batches after `after_step`; the caller closes it."""
        return training_loader(self._workload, self.strategy.data_shard(), after_step, report)

    def _report_problem(self, problem: Problem) -> None:
        problem = with_fix(problem, self._workload.config)
        self._writer.write(events.ProblemRaised(problem=problem))

    def _report_loss_note(self) -> None:
        """Report once, on one of the ranks that compute the loss, that it does not add up over microsteps."""
        strategy = self.strategy
        if strategy.data_shard()[0] or not strategy.reports_loss():
            return
        problem = loss_note(self._workload, strategy)
        if problem is not None:
            self._is_loss_note_reported = True
            self._report_problem(problem)

    def _make_evaluator(self) -> Evaluator | None:
        workload = self._workload
        if workload.heldout is None or len(workload.heldout) == 0:
            return None
        return Evaluator(
            self.strategy,
            workload.heldout,
            batch_size=self._train.global_batch // self._train.accumulate,
            workers=workload.config.data.workers,
            pin_memory=workload.config.data.pin_memory,
            has_classes=workload.has_classes,
        )

    def _evaluate(self, evaluator: Evaluator | None, step: int, *, final: bool) -> events.Evaluation | None:
        if evaluator is None:
            return None
        self._report_steps()
        self.strategy.finalize()
        set_optimizer_mode(self.optimizer, "eval")
        evaluation = evaluator.run(step, final=final, beat=lambda: self._beat(step, "evaluation"))
        set_optimizer_mode(self.optimizer, "train")
        if self._rank == 0:
            self._writer.write(evaluation)
        return evaluation


# Held-out loss under every strategy: each held-out sample counts once.
#
# All ranks run the same number of batches; the last ones may be smaller, or hold a sample that does not
# count. One all-reduce at the end sums over the whole set.


class Evaluator:
    """Evaluator of the held-out samples, with its own loader that stays open between evaluations."""

    def __init__(
        self,
        strategy: Strategy,
        heldout: SampleSet,
        *,
        batch_size: int,
        workers: int,
        pin_memory: bool,
        has_classes: bool,
    ) -> None:
        index, count = strategy.data_shard()
        sampler = HeldoutBatchSampler(len(heldout), batch_size, shard_index=index, shard_count=count)
        self._strategy = strategy
        self._valid_counts = sampler.valid_counts()
        self._num_samples = len(heldout)
        self._has_classes = has_classes
        self._loader: Loader = build_loader(heldout, sampler, workers=workers, pin_memory=pin_memory)

    def run(self, step: int, *, final: bool, beat: Callable[[], None] = lambda: None) -> events.Evaluation:
        """Evaluate after `step`; return the result, which is the same on every rank.

        `beat` is called before each batch.
        """
        started = time.monotonic()
        total = count = correct = 0.0
        knows_correct = self._has_classes and self._strategy.loss.count_correct is not None
        beat()
        for batch, num_valid in zip(self._loader, self._valid_counts, strict=True):
            beat()
            sums = self._strategy.evaluate(batch, num_valid)
            total += sums.total
            count += sums.count
            correct += sums.correct or 0.0
        total, count, correct = self._sum_over_ranks(total, count, correct)
        return events.Evaluation(
            step=step,
            loss=total / count if count else None,
            samples=self._num_samples,
            seconds=time.monotonic() - started,
            accuracy=correct / count if knows_correct and count else None,
            final=final,
        )

    def _sum_over_ranks(self, *sums: float) -> list[float]:
        if self._strategy.setup.world_size == 1:
            return list(sums)
        # Ranks that share a batch all add its sums, which does not change their quotients.
        together = torch.tensor(sums, dtype=torch.float64, device=self._strategy.device)
        dist.all_reduce(together)
        return [float(value) for value in together]

    def close(self) -> None:
        self._loader.close()
