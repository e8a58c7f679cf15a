"""The one training loop. It is the same under every strategy: data in, gradients out, one optimizer step,
facts told.

    zero_grad -> for each part: forward_backward -> sync -> (count) -> (clip) -> optimizer -> schedule -> tell

The loop never waits for its own reporting. The ledger follows sampled steps only. A loss is a sum over the
global batch divided once by its count: where the count of targets is known beforehand, the loss is scaled by
it before backward; where it is not (masked targets, a person's own loss), gradients are scaled after backward
by the count that all ranks agree on. Read worker.py next.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from rankdeck import events
from rankdeck.base.errors import ConfigError, TrainingError
from rankdeck.data.base import needs_epoch
from rankdeck.data.loader import Loader, build_loader, first_batch
from rankdeck.data.sampling import StepBatches
from rankdeck.memory.ledger import Ledger
from rankdeck.memory.sampling import SamplingBudget
from rankdeck.memory.torch_memory import OwnedBytes, read_gpu_bytes, reset_gpu_peaks
from rankdeck.profiling.simulated_pace import pace_of
from rankdeck.profiling.spans import ALWAYS_STEPS, SpanBudget, SpanRecorder
from rankdeck.rundir import EventWriter
from rankdeck.strategies.base import Batch, Setup, Strategy
from rankdeck.training.evaluation import Evaluator
from rankdeck.training.finite import first_non_finite
from rankdeck.training.loss_scaling import LossScaling
from rankdeck.training.reporting import BusyMeter, StepFacts, StepReporter
from rankdeck.training.workload import Workload

if TYPE_CHECKING:
    from rankdeck.checkpoint.store import Restored
    from rankdeck.training.saving import Saver

GPU_MEMORY_S = 0.2
"""Seconds between two readings of a GPU's allocator."""


@dataclass
class Job:
    """What one rank trains and whom it tells. `devices` are the places of its devices in the run."""

    workload: Workload
    strategy: Strategy
    writer: EventWriter
    rank: int
    devices: list[int]
    ledger: Ledger | None = None
    sampling: SamplingBudget = field(default_factory=SamplingBudget)
    beat: Callable[[int, str], None] = lambda step, phase: None
    saver: Saver | None = None


class Trainer:
    """Builds the optimizer over a built strategy's parameters and runs the loop."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._train = job.workload.config.train
        self._strategy = job.strategy
        self._optimizer: Optimizer = job.workload.build_optimizer(job.strategy.module.parameters())
        self._scaling = LossScaling(job.strategy.device, is_on=self._train.precision == "fp16")
        if job.saver is not None:
            job.saver.scaling = self._scaling
            job.saver.tell_steps = self._tell_steps
        self._base_rates: list[float] = [group["lr"] for group in self._optimizer.param_groups]
        self._reporter = StepReporter(job.writer, job.rank, job.strategy.device)
        # Of a rank that is one device its process tells enough, to the sampler.
        tells_busy = self._strategy.setup.is_rehearsal and len(job.devices) > 1
        self._busy = BusyMeter(job.writer, job.rank, job.devices) if tells_busy else None
        self._memory_told = 0.0
        self._owned = OwnedBytes(self._strategy.module, self._optimizer)
        self._last_inputs: Any = None
        self._restored: Restored | None = None
        self._first_step = 0
        self._spans, self._span_budget = job.strategy.spans, SpanBudget()
        self._strategy.update_weights = self._update_in_schedule
        self._strategy.tell_drained = lambda under_way, updates: job.writer.write(
            events.Drained(rank=job.rank, microbatches=under_way, updates=updates)
        )
        if job.ledger is not None:
            job.ledger.watch(job.strategy.module, self._optimizer)

    @property
    def strategy(self) -> Strategy:
        return self._strategy

    @property
    def ledger(self) -> Ledger | None:
        return self._job.ledger

    @property
    def optimizer(self) -> Optimizer:
        return self._optimizer

    def run(self) -> events.Evaluation | None:
        """All steps and the evaluations between them; the last evaluation, or None where nothing is held out.

        Raises:
            TrainingError: the loss is not finite.
            StopRequested: the person asked for it.
        """
        first = self._first_step = self._restore()
        self._job.writer.write(events.Restored(rank=self._job.rank, step=first))
        loader = self.loader(first)
        evaluator = self._evaluator()
        steps = self._job.workload.steps
        try:
            batches = iter(loader)
            if self._restored is not None:
                self._restored.put_random_states()
            self._steps(first, batches, evaluator)
            found = self._evaluate(evaluator, steps, final=True)
            if self._job.saver is not None:
                self._job.saver.at_end(steps, self._strategy, self._optimizer)
            return found
        finally:
            self._reporter.flush()
            loader.close()
            if evaluator is not None:
                evaluator.close()

    def _restore(self) -> int:
        """The step that a resumed run goes on after; 0 for a new one."""
        saver = self._job.saver
        if saver is None or saver.start is None:
            return 0
        if self._strategy.warms_up:
            self._warm_up()
        self._restored = saver.restore(self._strategy, self._optimizer)
        assert self._restored is not None
        if self._restored.step > self._job.workload.steps:
            raise ConfigError(
                f"The checkpoint is of step {self._restored.step}, but the run has "
                f"{self._job.workload.steps} steps only.",
                path="train.steps",
                advice=f"Resume with --set train.steps={2 * self._restored.step}",
            )
        if not self._restored.same_layout:
            # Streams of another layout cannot be taken over: new ones, which do not repeat those from step 1.
            torch.manual_seed(torch.initial_seed() + self._restored.step * 7919)
        return self._restored.step

    def _warm_up(self) -> None:
        """One forward and backward for nothing.

        What it changes (buffers, random states) is restored after it.
        """
        loader = self.loader()
        try:
            for part, batch in zip(range(self._train.accumulate), loader, strict=False):
                last = part == self._train.accumulate - 1
                self._strategy.forward_backward(batch, self._scale(batch), last=last)
            self._strategy.sync_gradients()
        finally:
            loader.close()
        self._optimizer.zero_grad(set_to_none=True)

    def _steps(self, first: int, batches: Iterator[Batch], evaluator: Evaluator | None) -> None:
        job, every = self._job, self._train.evaluate_every
        job.sampling.always_through += self._strategy.steps_to_fill
        step_ended = time.perf_counter()
        for step in range(first + 1, job.workload.steps + 1):
            job.beat(step, "step")
            followed = job.ledger is not None and job.sampling.should_follow(step - first)
            self._begin_spans(step, step - first, followed)
            facts = self.step(step, batches, followed=followed)
            self._end_spans()
            now = time.perf_counter()
            facts.step_s, step_ended = now - step_ended, now
            job.sampling.record(step - first, facts.step_s, followed=followed)
            if step - first >= ALWAYS_STEPS[-1]:
                self._span_budget.add_step(facts.step_s)
            self._tell(facts)
            if step - first == 3 or (step - first > 3 and step == job.workload.steps):
                self._tell_sent_bytes(step)
            if every and step % every == 0 and step < job.workload.steps:
                self._evaluate(evaluator, step, final=False)
                step_ended = time.perf_counter()
            if job.saver is not None and job.saver.after_step(step, self._strategy, self._optimizer):
                step_ended = time.perf_counter()
        self._strategy.settle()
        self._tell_steps()
        self._tell_spans(wait=True)

    def _tell_steps(self) -> None:
        """Write what is known of the steps so far.

        Raises: TrainingError for a loss that is no number.
        """
        self._check_finite(self._reporter.flush(wait=True))

    def _begin_spans(self, step: int, nth: int, followed: bool) -> None:
        """The ledger slows a step down: such a one is sampled only where there may be no other.

        Of the last step of a run some phases would never be known.
        """
        wanted = self._span_budget.should_record(nth) and (not followed or nth in ALWAYS_STEPS)
        wanted = wanted and (step < self._job.workload.steps or nth < ALWAYS_STEPS[-1])
        pace = self._spans.pace
        self._spans.begin_step(step, record=wanted and (pace is None or pace.is_holding), followed=followed)

    def _end_spans(self) -> None:
        self._spans.end_step()
        self._tell_spans(wait=False)

    def _tell_spans(self, *, wait: bool) -> None:
        started_s = time.perf_counter()
        for event, marks_cost_s in self._spans.take(self._job.rank, self._job.devices, wait=wait):
            self._job.writer.write(event)
            ended_s = time.perf_counter()
            self._span_budget.add_cost(ended_s - started_s + marks_cost_s)
            started_s = ended_s

    def step(self, step: int, batches: Iterator[Batch], *, followed: bool) -> StepFacts:
        """One optimizer step over the next global batch; the ledger follows it and tells where asked."""
        return self._followed_step(step, batches) if followed else self._step(step, batches)

    def _step(self, step: int, batches: Iterator[Batch]) -> StepFacts:
        """One optimizer step over one global batch."""
        train, strategy = self._train, self._strategy
        if not strategy.steps_itself:
            self._optimizer.zero_grad(set_to_none=True)
        total: Any = None
        count: Any = 0
        samples = 0
        for part in range(train.accumulate):
            with self._spans.phase(0, "data"):
                batch = self._next(batches)
            samples += _num_samples(batch)
            scale = self._scaling.scaled(self._scale(batch))
            sums = strategy.forward_backward(batch, scale, last=part == train.accumulate - 1)
            total = sums.total if total is None else total + sums.total
            count = count + sums.count
        norm = None if strategy.steps_itself else self._finish_gradients(count)
        factor = self._job.workload.schedule(step - 1)
        if isinstance(total, Tensor) and not total.is_cuda:
            total, count = float(total), float(count)
            self._check_total(step, total)
        if not strategy.steps_itself:
            self._set_rate(factor)
            with strategy.stepping():
                self._scaling.step(self._optimizer)
        loss = (total, count) if strategy.reports_loss() else None
        rate = self._base_rates[0] * factor
        return StepFacts(step, loss, rate, samples, 0.0, time.time(), norm)

    def _finish_gradients(self, count: Any) -> Any:
        """Make gradients those of the whole global batch, of bounded norm; the norm where it is bounded."""
        strategy, train = self._strategy, self._train
        strategy.sync_gradients()
        with strategy.stepping():
            self._scaling.unscale(self._optimizer)
            if self._job.workload.counts_vary:
                self._scale_gradients(self._count_of_all(count))
            return strategy.clip(train.clip_norm) if train.clip_norm else None

    def _update_in_schedule(self, update: int, count: Any) -> None:
        """One optimizer step of a strategy that steps itself: `update` counts from 1 in this process, `count`
        is that of its whole global batch."""
        if self._job.workload.counts_vary:
            self._scale_gradients(torch.as_tensor(count, dtype=torch.float64))
        self._set_rate(self._job.workload.schedule(self._first_step + update - 1))
        with self._strategy.stepping():
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _followed_step(self, step: int, batches: Iterator[Batch]) -> StepFacts:
        ledger = self._job.ledger
        assert ledger is not None
        with ledger.following():
            ledger.reset_peaks()
            facts = self._step(step, batches)
        readings = [
            events.DeviceMemory(
                device=self._job.devices[reading.device],
                live_bytes=reading.live_bytes,
                peak_bytes=reading.peak_bytes,
                live_by_kind=reading.live_by_kind,
                peak_by_kind=reading.peak_by_kind,
            )
            for reading in ledger.devices()
        ]
        self._job.writer.write(
            events.Memory(
                rank=self._job.rank, step=step, source=events.MEASURED_IN_REHEARSAL, devices=readings
            )
        )
        return facts

    def _next(self, batches: Iterator[Batch]) -> Batch:
        # The batch is the host's until the strategy takes it to its device.
        ledger = self._job.ledger
        if ledger is not None and ledger.is_following:
            with ledger.paused():
                batch = next(batches)
        else:
            batch = next(batches)
        self._last_inputs = batch[0]
        return batch

    def _scale(self, batch: Batch) -> float:
        """What a part's loss sum is multiplied by before backward: 1 over the targets of the whole global
        batch, where they are known
        beforehand; else 1 over its samples, which `_scale_gradients` sets right."""
        if self._job.workload.counts_vary:
            return 1.0 / self._train.global_batch
        nominal = self._strategy.loss.nominal_count(batch[1])
        assert nominal is not None
        return 1.0 / (nominal * self._num_slices)

    @functools.cached_property
    def _num_slices(self) -> int:
        """Into how many parts the targets of a global batch are cut."""
        return self._train.accumulate * self._strategy.data_shard()[1]

    def _count_of_all(self, count: Any) -> Tensor:
        """This rank's count of targets, added up over all ranks that report loss."""
        strategy = self._strategy
        counts = torch.tensor(float(count) if strategy.reports_loss() else 0.0, dtype=torch.float64)
        counts = counts.to(strategy.device)
        if strategy.setup.world_size > 1:
            dist.all_reduce(counts)
        return counts

    def _scale_gradients(self, count: Tensor) -> None:
        """Gradients of sum/global_batch become gradients of sum/count. No target at all gives 0.

        A count may be a sum of weights, and below 1.
        """
        factor = self._train.global_batch / torch.where(count > 0, count, 1.0)
        gradients = [p.grad for p in self._strategy.module.parameters() if p.grad is not None]
        for gradient in gradients:
            gradient.mul_(factor.to(gradient.device, gradient.dtype))

    def _set_rate(self, factor: float) -> None:
        for group, base in zip(self._optimizer.param_groups, self._base_rates, strict=True):
            group["lr"] = base * factor

    def _tell(self, facts: StepFacts) -> None:
        self._check_finite(self._reporter.add(facts))
        if self._busy is not None and self._busy.due():
            self._busy.tell(self._strategy.replicas_busy_s())
        if not self._strategy.setup.is_rehearsal and time.monotonic() - self._memory_told >= GPU_MEMORY_S:
            self._tell_gpu_memory(facts.step)

    def _tell_gpu_memory(self, step: int) -> None:
        self._memory_told = time.monotonic()
        readings = []
        for place, device in zip(self._job.devices, self._strategy.setup.devices, strict=True):
            gpu = read_gpu_bytes(device, self._owned)
            readings.append(
                events.DeviceMemory(
                    device=place,
                    live_bytes=gpu.allocated_bytes,
                    peak_bytes=gpu.peak_allocated_bytes,
                    live_by_kind=gpu.live_by_kind,
                    peak_by_kind=gpu.peak_by_kind,
                    reserved_bytes=gpu.reserved_bytes,
                    peak_reserved_bytes=gpu.peak_reserved_bytes,
                )
            )
            reset_gpu_peaks(device)
        self._job.writer.write(
            events.Memory(rank=self._job.rank, step=step, source=events.MEASURED_ON_GPU, devices=readings)
        )

    def _tell_sent_bytes(self, step: int) -> None:
        sent, times = self._strategy.sent_bytes_per_step(), self._strategy.sync_times()
        if sent is not None:
            algorithm, num_bytes, measured = sent
            self._job.writer.write(
                events.Comm(
                    rank=self._job.rank,
                    step=step,
                    algorithm=algorithm,
                    sent_bytes=num_bytes,
                    measured=measured,
                    by_peer=self._strategy.sent_by_peer(),
                    sync_s=None if times is None else times.seconds,
                    overlapped_s=None if times is None else times.overlapped_s,
                )
            )

        facts = self._strategy.pipeline_facts()
        if facts is not None:
            self._job.writer.write(events.Pipeline(rank=self._job.rank, step=step, **asdict(facts)))

    def _check_finite(self, known: StepFacts | None) -> None:
        if known is not None and known.loss is not None:
            self._check_total(known.step, known.loss[0])

    def _check_total(self, step: int, total: float) -> None:
        if math.isfinite(total):
            return
        self._reporter.flush()
        place = first_non_finite(
            self._strategy.module, self._last_inputs, alone=self._strategy.forwards_alone
        )
        word = "NaN" if math.isnan(total) else "infinite"
        raise TrainingError(
            f"The loss became {word} in step {step} on rank {self._job.rank}, first seen in {place}.",
            code="loss-not-finite",
            advice="Lower train.optimizer.lr, set train.clip_norm = 1.0, or add warm-up to train.schedule.",
            rank=self._job.rank,
        )

    def loader(self, after_step: int = 0) -> Loader:
        """This rank's training batches, in order, after a step; close it."""
        workload, train, data = self._job.workload, self._train, self._job.workload.config.data
        index, count = self._strategy.data_shard()
        sampler = StepBatches(
            len(workload.train),
            train.global_batch,
            accumulate=train.accumulate,
            shard_index=index,
            shard_count=count,
            seed=train.seed,
            steps=workload.steps,
            start_step=after_step,
            draws=needs_epoch(workload.train),
        )
        return build_loader(
            workload.train, sampler, workers=data.workers, pin_memory=data.pin_memory, seed=train.seed
        )

    def _evaluator(self) -> Evaluator | None:
        workload = self._job.workload
        if workload.heldout is None or len(workload.heldout) == 0:
            return None
        return Evaluator(
            self._strategy,
            workload.heldout,
            batch=self._train.global_batch // self._train.accumulate,
            workers=workload.config.data.workers,
            pin_memory=workload.config.data.pin_memory,
            has_classes=workload.has_classes,
        )

    def _evaluate(self, evaluator: Evaluator | None, step: int, *, final: bool) -> events.Evaluation | None:
        if evaluator is None:
            return None
        self._tell_steps()
        self._strategy.settle()
        self._job.beat(step, "evaluation")
        found = evaluator.run(step, final=final)
        if self._job.rank == 0:
            self._job.writer.write(found)
        return found


def assemble(
    workload: Workload,
    *,
    rank: int,
    world_size: int,
    devices: list[torch.device],
    places: list[int],
    writer: EventWriter,
    ledger: Ledger | None = None,
    **job: Any,
) -> Trainer:
    """A trainer over a strategy that is built: what a rank does once data is loaded and the ranks have met.

    `devices` are this rank's torch devices and `places` where they stand in the run; `ledger` is made here
    for a rehearsal that brings none; `job` goes to Job.
    """
    config = workload.config
    # A compiled graph runs past the ledger: bytes are not known then, and not guessed.
    if ledger is None and devices[0].type == "cpu" and not config.train.compile:
        ledger = Ledger(len(devices))
    strategy_type: type[Strategy] = config.strategy_card.load()
    pace = pace_of(config, devices[0], world_size, waits_inside=strategy_type.waits_inside)
    setup = Setup(
        options=config.strategy.options,
        loss=workload.loss,
        devices=devices,
        rank=rank,
        world_size=world_size,
        ledger=ledger,
        precision=config.train.precision,
        compile=config.train.compile,
        seed=config.train.seed,
        part_batch=config.train.global_batch // config.train.accumulate,
        accumulate=config.train.accumulate,
        sample=functools.partial(first_batch, workload.train),
        spans=SpanRecorder(devices, pace),
    )
    strategy = strategy_type(setup)
    with contextlib.nullcontext() if ledger is None else ledger.following():
        strategy.build(workload.build_model)
    # Random streams are the strategy's to part; the weights came from the bare seed.
    torch.manual_seed(config.train.seed * 1_000_003 + 1 + strategy.mesh().random_stream)
    return Trainer(Job(workload, strategy, writer, rank, places, ledger, **job))


def _num_samples(batch: Any) -> int:
    """The length of the first tensor in a batch."""
    if isinstance(batch, Tensor):
        return len(batch)
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    return _num_samples(batch[0]) if isinstance(batch, tuple | list) and batch else 0
