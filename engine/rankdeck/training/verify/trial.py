"""Two steps under the strategy, over all ranks, and what they computed in whole tensors on rank 0.

The trial is built as the run will be (assembly.py) and steps as the run will (step.py). Gradients are taken
when the optimizer is about to use them, and put together by the strategy's own `weights`: for that moment
each weight holds its gradient, and NaN where it has none. Read compare.py next.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rankdeck.memory.null_ledger import NullLedger
from rankdeck.strategies.base import Strategy
from rankdeck.torch_compat.dtensors import local_part
from rankdeck.training.assembly import Built, build
from rankdeck.training.batches import training_loader
from rankdeck.training.loss_scaling import LossScaling
from rankdeck.training.reporting import StepFacts
from rankdeck.training.step import OptimizerStep, Trained
from rankdeck.training.verify.computed import Computed, snapshot
from rankdeck.training.verify.draws import FixedDraws
from rankdeck.training.verify.replicas import apart
from rankdeck.training.verify.scope import NUM_STEPS
from rankdeck.training.workload import Workload


class StrategyTrial:
    """A strategy of its own over a workload. Every rank makes one and calls its methods together; `close` it.

    Raises: RankdeckError where the strategy refuses the model, the data or the devices.
    """

    def __init__(
        self, workload: Workload, *, rank: int, world_size: int, devices: list[torch.device]
    ) -> None:
        self._workload = workload
        self._rank, self._world_size = rank, world_size
        self._built: Built = build(
            workload, rank=rank, world_size=world_size, devices=devices, ledger=NullLedger()
        )
        self.computed: Computed | None = None
        """On rank 0, once `run` has returned."""

    @property
    def strategy(self) -> Strategy:
        return self._built.strategy

    def run(self, draws: FixedDraws) -> None:
        """Take the steps. Raises: whatever a step of the run would raise."""
        strategy, optimizer = self._built.strategy, self._built.optimizer
        turn: Any = getattr(optimizer, "train", None)
        if callable(turn):
            turn()
        is_fp16 = self._workload.config.train.precision == "fp16"
        steps = OptimizerStep(
            self._workload,
            Trained(strategy, optimizer, LossScaling(strategy.device, is_on=is_fp16)),
            check_loss=lambda step, total: None,
            on_batch=lambda batch: None,
        )
        computed = Computed(before=self._whole())
        with contextlib.closing(training_loader(self._workload, strategy.data_shard())) as loader:
            batches = iter(list(loader))  # before draws are fixed: samples and their order are the data's
        with draws, self._taking_gradients(computed):
            for step in range(1, NUM_STEPS + 1):
                facts = steps.take(step, batches)
                if step == NUM_STEPS or strategy.steps_itself:
                    strategy.settle()  # stages that step by themselves meet here
                computed.losses.append(self._loss(facts))
                computed.after.append(self._whole())
        self.computed = computed if self._rank == 0 else None

    def close(self) -> None:
        self._built.strategy.close()

    def _whole(self) -> dict[str, Tensor]:
        """Weights and persistent buffers, on rank 0."""
        weights = self.strategy.weights()
        return snapshot(weights) if self._rank == 0 else {}

    @contextlib.contextmanager
    def _taking_gradients(self, computed: Computed) -> Iterator[None]:
        """Whenever the optimizer is about to step, by whatever class it is of."""
        optimizer: Any = self._built.optimizer
        strategy, own_step = self.strategy, optimizer.step

        def step(*args: Any, **kwargs: Any) -> Any:
            gradients = self._gradients()
            in_gradients = apart(strategy.module, self._world_size, in_gradients=True)
            result = own_step(*args, **kwargs)
            in_weights = apart(strategy.module, self._world_size, in_gradients=False)
            if self._rank == 0:
                computed.gradients.append(gradients)
                computed.apart.append({"gradient": in_gradients, "weight": in_weights})
            return result

        optimizer.step = step
        try:
            yield
        finally:
            del optimizer.step

    @torch.no_grad()
    def _gradients(self) -> dict[str, Tensor | None]:
        """Whole gradients by parameter, on rank 0; what stands there for buffers means nothing."""
        # A Parameter may hold whole numbers, which have no gradient and no NaN.
        weights = self.strategy.module.parameters()
        parameters = [p for p in weights if p.dtype.is_floating_point or p.dtype.is_complex]
        kept = [local_part(parameter).to("cpu", copy=True) for parameter in parameters]
        for parameter in parameters:
            _hold_gradient(parameter)
        whole = self._whole()
        for parameter, values in zip(parameters, kept, strict=True):
            local_part(parameter).copy_(values)
        return {name: None if _is_missing(gradient) else gradient for name, gradient in whole.items()}

    def _loss(self, facts: StepFacts) -> float:
        """The mean loss of a step over all ranks."""
        total, count = (0.0, 0.0) if facts.loss is None else map(float, facts.loss)
        if self._world_size > 1:
            sums = torch.tensor([total, count], dtype=torch.float64, device=self.strategy.device)
            dist.all_reduce(sums)
            total, count = sums.tolist()
        return total / count if count > 0 else total


def _hold_gradient(parameter: nn.Parameter) -> None:
    """Put a weight's gradient in its place, NaN where it has none."""
    gradient = parameter.grad
    if gradient is None:
        local_part(parameter).fill_(float("nan"))
    else:
        local_part(parameter).copy_(gradient.to_dense() if gradient.is_sparse else local_part(gradient))


def _is_missing(gradient: Tensor) -> bool:
    return bool(gradient.numel()) and bool(torch.isnan(gradient).all())
