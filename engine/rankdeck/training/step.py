"""One optimizer step over one global batch, the same under every strategy:

    zero_grad -> for each part: forward_backward -> sync -> (divide by the count) -> (clip) -> optimizer

A loss is a sum over the global batch, divided once by its count. Where the count of targets is known
beforehand, the loss is scaled by it before backward; where it is not (masked targets, a person's own loss),
gradients are scaled after backward by the count that all ranks agree on. With data.last = "keep" the last
step of an epoch is shorter; a rank without a share of it computes a sample that counts nothing. Read loop.py
next.
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
    """What a run changes from step to step, and a checkpoint holds."""

    strategy: Strategy
    optimizer: Optimizer
    scaling: LossScaling


def set_optimizer_mode(optimizer: Optimizer, mode: Literal["train", "eval"]) -> None:
    """Turn it to training or evaluation: schedule-free optimizers have weights for each."""
    turn = getattr(optimizer, mode, None)
    if callable(turn):
        turn()


class OptimizerStep:
    """Takes the steps of a run. `check_loss(step, sum)` raises for a loss that is no number, before weights
    are touched; a GPU's is not known by then. `on_batch` is told of each batch before it is used."""

    def __init__(
        self,
        workload: Workload,
        trained: TrainComponents,
        *,
        check_loss: Callable[[int, float], None],
        on_batch: Callable[[Batch], object],
    ) -> None:
        self.last_inputs: Any = None
        """What the model saw last."""
        self._train = workload.config.train
        self._schedule = workload.schedule
        self._counts_vary = workload.has_varying_counts
        self._strategy, self._optimizer, self._scaling = trained.strategy, trained.optimizer, trained.scaling
        self._check_loss, self._on_batch = check_loss, on_batch
        self._base_lrs: list[float] = [group["lr"] for group in trained.optimizer.param_groups]
        self._epochs = workload.epochs
        self._data_shard = trained.strategy.data_shard()
        self._full_step_samples = self._local_samples(self._train.global_batch)
        self._num_completed_steps = 0
        trained.strategy.set_update_weights(self._run_scheduled_update)

    def resume_after(self, step: int) -> None:
        """The next step is `step` + 1: a resumed run."""
        self._num_completed_steps = step

    def run(self, step: int, batches: Iterator[Batch]) -> StepFacts:
        """Step number `step`, which takes `accumulate` batches."""
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
        for part, own in enumerate(own_samples):
            batch = self._next_batch(batches)
            scale = self._scaling.scale_factor(
                self._normalization_factor(batch, own, of_step) if own else 0.0
            )
            sums = strategy.forward_backward(batch, scale, last=part == train.accumulate - 1)
            if not own:
                sums = LossSum(torch.zeros_like(sums.total), 0)
            total = sums.total if total is None else total + sums.total
            count = count + sums.count
        norm = None if strategy.owns_optimizer_step else self._finish_gradients(count)
        factor = self._schedule(step - 1)
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
        """How many of a step's samples this rank has in each part."""
        parts = self._train.accumulate
        return [len(local_range(of_step, part, parts, *self._data_shard)) for part in range(parts)]

    def _next_batch(self, batches: Iterator[Batch]) -> Batch:
        """The batch is the host's until the strategy takes it to its device."""
        strategy = self._strategy
        with strategy.spans.phase(0, "data"):
            if strategy.ledger.is_tracking:
                with strategy.ledger.paused():
                    batch = next(batches)
            else:
                batch = next(batches)
        self.last_inputs = batch[0]
        self._on_batch(batch)
        return batch

    def _normalization_factor(self, batch: Batch, own: int, of_step: int) -> float:
        """What the loss sum of a part with `own` samples is multiplied by before backward: 1 over the targets
        of all `of_step` samples of the step where they are known beforehand, else 1 over train.global_batch,
        which `_normalize_gradients` sets right."""
        if self._counts_vary:
            return 1.0 / self._train.global_batch
        nominal = self._strategy.loss.nominal_count(batch[1])
        assert nominal is not None
        return 1.0 / (nominal * of_step // own)

    def _finish_gradients(self, count: Any) -> Any:
        """Make gradients those of the whole global batch, of bounded norm; the norm where it is bounded."""
        strategy, train = self._strategy, self._train
        strategy.sync_gradients()
        with strategy.optimizer_phase():
            self._scaling.unscale(self._optimizer)
            if self._counts_vary:
                self._normalize_gradients(self._global_count(count))
            return strategy.clip(train.clip_norm) if train.clip_norm else None

    def _run_scheduled_update(self, update: int, count: Any) -> None:
        """One optimizer step of a strategy that steps itself: `update` counts from 1 in this process, `count`
        is that of its whole global batch."""
        if self._counts_vary:
            self._normalize_gradients(torch.as_tensor(count, dtype=torch.float64))
        self._set_lr(self._schedule(self._num_completed_steps + update - 1))
        with self._strategy.optimizer_phase():
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _global_count(self, count: Any) -> Tensor:
        """This rank's count of targets, added up over all ranks that report loss."""
        strategy = self._strategy
        counts = torch.tensor(float(count) if strategy.reports_loss() else 0.0, dtype=torch.float64)
        counts = counts.to(strategy.device)
        if strategy.setup.world_size > 1:
            dist.all_reduce(counts)
        return counts

    def _normalize_gradients(self, count: Tensor) -> None:
        """Gradients of sum/global_batch become gradients of sum/count. No target at all gives 0.

        A count may be a sum of weights, and below 1.
        """
        factor = self._train.global_batch / torch.where(count > 0, count, 1.0)
        gradients = [p.grad for p in self._strategy.module.parameters() if p.grad is not None]
        for gradient in gradients:
            gradient.mul_(factor.to(gradient.device, gradient.dtype))

    def _set_lr(self, factor: float) -> None:
        for group, base in zip(self._optimizer.param_groups, self._base_lrs, strict=True):
            group["lr"] = base * factor


# Keeping fp16 gradients out of underflow: the loss is multiplied by a factor that grows while gradients
# stay finite and shrinks when they do not; a step with gradients that are not finite is left out.
#
# Source: torch.amp.GradScaler. Every rank must find the same gradients, so it is for strategies whose ranks
# all hold the whole gradient (compatibility.py refuses the others). Other precisions pass through untouched.

_STATE_NAME = "loss-scaling"


class LossScaling:
    """One optimizer's scaling; `is_on` only with fp16."""

    def __init__(self, device: torch.device, *, is_on: bool) -> None:
        self.is_on = is_on
        self._device = device
        self._scaler = torch.amp.GradScaler(device.type, enabled=is_on)

    def scale_factor(self, factor: float) -> float | Tensor:
        """What a loss sum is multiplied by before backward; on a GPU nothing waits for it."""
        if not self.is_on:
            return factor
        scaled: Tensor = self._scaler.scale(torch.full((), factor, device=self._device))
        return scaled

    @property
    def current_scale(self) -> Tensor | None:
        """The factor of this step, on the device: nothing waits for it. None where nothing is scaled."""
        if not self.is_on:
            return None
        scale: Tensor = self._scaler.scale(torch.ones((), device=self._device))
        return scale

    def unscale(self, optimizer: Optimizer) -> None:
        """Gradients as they would be without scaling; before they are clipped."""
        if self.is_on:
            self._scaler.unscale_(optimizer)

    def step(self, optimizer: Optimizer) -> None:
        """The optimizer's step, left out where a gradient is not finite."""
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
        """What `state` gave, taken out of `states` if it is there."""
        kept = states.pop(_STATE_NAME, None)
        if self.is_on and kept is not None:
            scale, tracker = kept.tolist()
            known = self._scaler.state_dict() | {"scale": scale, "_growth_tracker": int(tracker)}
            self._scaler.load_state_dict(known)
