"""Take one optimizer step over one global batch, the same for every strategy:

    zero_grad -> for each microstep: forward_backward -> sync -> (divide by the count) -> (clip) -> optimizer

The loss is a sum over the global batch, divided once by the number of targets. If this number is known in
advance, the loss is divided by it before the backward pass. If not (masked targets, a user's own loss),
gradients are divided after the backward pass by the number summed over all ranks. With data.last = "keep" the
last step of an epoch can have fewer samples than other steps; a rank that gets none of these samples computes
one sample with scale 0. Read loop.py next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from rankdeck.data.samplers import local_range
from rankdeck.strategies.base import Batch, LossSum, Strategy
from rankdeck.training.reporting import StepFacts
from rankdeck.training.workload import Workload


@dataclass(frozen=True)
class TrainComponents:
    """The components of a run that each step changes and that checkpoints include."""

    strategy: Strategy
    optimizer: Optimizer
    scaling: LossScaling


def set_optimizer_mode(optimizer: Optimizer, mode: Literal["train", "eval"]) -> None:
    """Switch an optimizer to its training or evaluation weights if it has both (schedule-free ones do)."""
    turn = getattr(optimizer, mode, None)
    if callable(turn):
        turn()


class OptimizerStep:
    """The optimizer steps of a run.

    `check_loss(step, sum)` raises for a loss that is not finite, before weights change; it is not called for
    a loss on a GPU, because reading the loss would wait for the GPU. `on_batch` is called with each batch
    before the batch is used.
    """

    def __init__(
        self,
        workload: Workload,
        trained: TrainComponents,
        *,
        check_loss: Callable[[int, float], None],
        on_batch: Callable[[Batch], object],
    ) -> None:
        self.last_inputs: Any = None
        """The inputs of the model's last forward pass."""
        self._train = workload.config.train
        self._schedule = workload.schedule
        self._counts_vary = workload.has_varying_counts
        self._strategy, self._optimizer, self._scaling = trained.strategy, trained.optimizer, trained.scaling
        self._check_loss, self._on_batch = check_loss, on_batch
        # Before the schedule overwrites them in each step.
        self._base_lrs: list[float] = [group["lr"] for group in trained.optimizer.param_groups]
        self._epochs = workload.epochs
        self._data_shard = trained.strategy.data_shard()
        self._full_step_samples = self._local_samples(self._train.global_batch)
        self._num_completed_steps = 0
        trained.strategy.set_update_weights(self._run_scheduled_update)

    def resume_after(self, step: int) -> None:
        """Make `step` + 1 the next step, for a resumed run."""
        self._num_completed_steps = step

    def run(self, step: int, batches: Iterator[Batch]) -> StepFacts:
        """Take step number `step` over the next `accumulate` batches."""
        train, strategy = self._train, self._strategy
        if not strategy.owns_optimizer_step:
            self._optimizer.zero_grad(set_to_none=True)
        loss_scale = self._scaling.current_scale
        total: Any = None
        count: Any = 0
        of_step = self._epochs.step_samples(step - 1)
        own_samples = (
            self._full_step_samples if of_step == train.global_batch else self._local_samples(of_step)
        )
        for microstep, num_samples in enumerate(own_samples):
            batch = self._next_batch(batches)
            scale = self._scaling.scale_factor(
                self._normalization_factor(batch, num_samples, of_step) if num_samples else 0.0
            )
            sums = strategy.forward_backward(batch, scale, last=microstep == train.accumulate - 1)
            if not num_samples:
                # The rank has no share of this microstep; it computed a sample only to take part.
                sums = LossSum(torch.zeros_like(sums.total), 0)
            total = sums.total if total is None else total + sums.total
            count = count + sums.count
        norm = None if strategy.owns_optimizer_step else self._finish_gradients(count)
        factor = self._schedule(step - 1)
        # Reading a GPU's loss here would wait for the GPU; the reporter reads it later.
        if isinstance(total, Tensor) and not total.is_cuda:
            total, count = float(total), float(count)
            norm = None if norm is None else float(norm)
            self._check_loss(step, total)
        if not strategy.owns_optimizer_step:
            self._set_lr(factor)
            with strategy.optimizer_phase():
                self._scaling.step(self._optimizer)
        loss, rate = (total, count) if strategy.reports_loss() else None, self._base_lrs[0] * factor
        return StepFacts(step, loss, rate, sum(own_samples), 0.0, time.time(), norm, loss_scale)

    def _local_samples(self, of_step: int) -> list[int]:
        """Return this rank's number of samples in each microstep of a step with `of_step` samples."""
        num_microsteps = self._train.accumulate
        return [
            len(local_range(of_step, microstep, num_microsteps, *self._data_shard))
            for microstep in range(num_microsteps)
        ]

    def _next_batch(self, batches: Iterator[Batch]) -> Batch:
        """Return the next batch, still on the CPU: the strategy moves it to its device."""
        strategy = self._strategy
        with strategy.spans.phase(0, "data"):
            if strategy.ledger.is_tracking:
                # Batches are read into CPU memory, which the ledger does not count.
                with strategy.ledger.paused():
                    batch = next(batches)
            else:
                batch = next(batches)
        self.last_inputs = batch[0]
        self._on_batch(batch)
        return batch

    def _normalization_factor(self, batch: Batch, num_samples: int, of_step: int) -> float:
        """Return the factor by which a microstep's loss sum is multiplied before the backward pass.

        It is 1 / the number of targets of all `of_step` samples of the step if that number is known in
        advance, otherwise 1 / train.global_batch, which `_normalize_gradients` corrects.
        """
        if self._counts_vary:
            return 1.0 / self._train.global_batch
        nominal = self._strategy.loss.nominal_count(batch[1])
        assert nominal is not None
        return 1.0 / (nominal * of_step // num_samples)

    def _finish_gradients(self, count: Any) -> Any:
        """Sync, normalize and clip gradients; return their norm before clipping, or None if they are not
        clipped."""
        strategy, train = self._strategy, self._train
        strategy.sync_gradients()
        with strategy.optimizer_phase():
            self._scaling.unscale(self._optimizer)
            if self._counts_vary:
                self._normalize_gradients(self._global_count(count))
            return strategy.clip(train.clip_norm) if train.clip_norm else None

    def _run_scheduled_update(self, update: int, count: Any) -> None:
        """Take one optimizer step for a strategy whose own schedule decides when the optimizer steps.

        `update` counts from 1 in this process; `count` is the number of targets of the update's global batch.
        """
        if self._counts_vary:
            self._normalize_gradients(torch.as_tensor(count, dtype=torch.float64))
        self._set_lr(self._schedule(self._num_completed_steps + update - 1))
        with self._strategy.optimizer_phase():
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _global_count(self, count: Any) -> Tensor:
        """Return the count of targets, summed over all ranks that report loss."""
        strategy = self._strategy
        # Ranks that do not report loss share the batch of one that does.
        counts = torch.tensor(float(count) if strategy.reports_loss() else 0.0, dtype=torch.float64)
        counts = counts.to(strategy.device)
        if strategy.setup.world_size > 1:
            dist.all_reduce(counts)
        return counts

    def _normalize_gradients(self, count: Tensor) -> None:
        """Turn gradients of sum/global_batch into gradients of sum/count. Without targets, gradients become
        0.

        A count can be a sum of the targets' weights, and can therefore be below 1.
        """
        factor = self._train.global_batch / torch.where(count > 0, count, 1.0)
        gradients = [p.grad for p in self._strategy.module.parameters() if p.grad is not None]
        for gradient in gradients:
            gradient.mul_(factor.to(gradient.device, gradient.dtype))

    def _set_lr(self, factor: float) -> None:
        for group, base in zip(self._optimizer.param_groups, self._base_lrs, strict=True):
            group["lr"] = base * factor


# Loss scaling keeps fp16 gradients from underflow: the loss is multiplied by a factor that grows while
# gradients are finite and shrinks when they are not. A step with a gradient that is not finite is skipped.
#
# Source: torch.amp.GradScaler. All ranks must find the same gradients, so only strategies whose ranks all
# hold the full gradient support it (compatibility.py refuses the others). Other precisions bypass it.

_STATE_NAME = "loss-scaling"


class LossScaling:
    """Loss scaling for one optimizer; `is_on` is True only with fp16."""

    def __init__(self, device: torch.device, *, is_on: bool) -> None:
        self.is_on = is_on
        self._device = device
        self._scaler = torch.amp.GradScaler(device.type, enabled=is_on)

    def scale_factor(self, factor: float) -> float | Tensor:
        """Return `factor` times the loss scale, without waiting for the GPU."""
        if not self.is_on:
            return factor
        scaled: Tensor = self._scaler.scale(torch.full((), factor, device=self._device))
        return scaled

    @property
    def current_scale(self) -> Tensor | None:
        """This step's loss scale, as a tensor on the device so that no code has to wait for it; None without
        loss scaling."""
        if not self.is_on:
            return None
        scale: Tensor = self._scaler.scale(torch.ones((), device=self._device))
        return scale

    def unscale(self, optimizer: Optimizer) -> None:
        """Remove the scale from gradients. Call it before clipping."""
        if self.is_on:
            self._scaler.unscale_(optimizer)

    def step(self, optimizer: Optimizer) -> None:
        """Step the optimizer, or skip the step if a gradient is not finite."""
        if not self.is_on:
            optimizer.step()
            return
        self._scaler.step(optimizer)
        self._scaler.update()

    def state(self) -> dict[str, Tensor]:
        if not self.is_on:
            return {}
        state = self._scaler.state_dict()
        values = [float(state["scale"]), float(state["_growth_tracker"])]
        return {_STATE_NAME: torch.tensor(values, dtype=torch.float64)}

    def pop_state(self, states: dict[str, Tensor]) -> None:
        """Remove the loss scaler's state from `states`, if present, and restore the scaler from it."""
        saved = states.pop(_STATE_NAME, None)
        if self.is_on and saved is not None:
            scale, tracker = saved.tolist()
            scaler_state = self._scaler.state_dict() | {"scale": scale, "_growth_tracker": int(tracker)}
            self._scaler.load_state_dict(scaler_state)
