"""What a pipeline without a flush must compute, in one process: the same delays, applied by hand.

Every stage keeps all versions of its weights. Microbatch n runs on the version that the stage would have by
then, and its gradient goes to the newest. After a drain all stages have the same version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankdeck.config import from_text
from rankdeck.config.catalog import AsyncPipelineOptions
from rankdeck.data.loader import build_loader, first_batch
from rankdeck.data.samplers import TrainBatchSampler
from rankdeck.parallel.pipelining.cutting import cut_model
from rankdeck.parallel.pytree import cast_to
from rankdeck.training import workload as workloads

Weights = dict[str, Tensor]


class _Stage:
    """One stage, its optimizer and every version of its weights so far."""

    def __init__(self, module: nn.Module, workload: workloads.Workload) -> None:
        self.module = module
        self.optimizer = workload.build_optimizer(module.parameters())
        self.base_rate: float = self.optimizer.param_groups[0]["lr"]
        self.versions = [self._copy()]
        self.gradients: list[Tensor] | None = None

    def _copy(self) -> Weights:
        return {name: p.detach().clone().requires_grad_() for name, p in self.module.named_parameters()}

    def add(self, gradients: tuple[Tensor, ...]) -> None:
        if self.gradients is None:
            self.gradients = list(gradients)
        else:
            self.gradients = [old + new for old, new in zip(self.gradients, gradients, strict=True)]

    def update(self, factor: float, scale: float | None) -> None:
        assert self.gradients is not None
        for parameter, gradient in zip(self.module.parameters(), self.gradients, strict=True):
            parameter.grad = gradient if scale is None else gradient * scale
        self.optimizer.param_groups[0]["lr"] = self.base_rate * factor
        self.optimizer.step()
        self.gradients = None
        self.versions.append(self._copy())


def train_delayed(toml: str, num_stages: int, *, late_by: int = 0) -> tuple[Weights, list[float]]:
    """Final weights and the losses of all microbatches. `late_by` makes every delay longer, as an error."""
    config = from_text(toml, folder=Path.cwd())
    workload, train = workloads.load(config), config.train
    dtype = torch.float64 if train.precision == "fp64" else torch.float32
    samples = train.global_batch // train.accumulate
    model = workload.build_model().train().to(dtype)
    inputs = cast_to(first_batch(workload.train, samples)[0], dtype)
    options = AsyncPipelineOptions(**config.strategy.options)
    cut = cut_model(model, num_stages, options, inputs, samples, device=torch.device("cpu"))
    stages = [_Stage(module, workload) for module in cut.stages]
    sampler = TrainBatchSampler(
        len(workload.train),
        train.global_batch,
        accumulate=train.accumulate,
        seed=train.seed,
        steps=workload.steps,
    )
    losses: list[float] = []
    drained, group_count = 0, 0.0
    for number, (inputs, targets) in enumerate(build_loader(workload.train, sampler)):
        inputs, targets = cast_to(inputs, dtype), cast_to(targets, dtype)
        update = number // train.accumulate
        delays = [_delay(config.strategy.options["mode"], num_stages, index) for index in range(num_stages)]
        ages = [max(drained, update - delay - late_by) for delay in delays]
        used = [stage.versions[age] for stage, age in zip(stages, ages, strict=True)]
        output: Any = None
        for index, (stage, weights) in enumerate(zip(stages, used, strict=True)):
            output = torch.func.functional_call(stage.module, weights, (output if index else None, inputs))
        total, count = workload.loss.function(output, targets)
        losses.append(float(total.detach()) / float(count))
        nominal = workload.loss.nominal_count(targets)
        assert nominal is not None
        varies = workload.has_varying_counts
        scale = 1.0 / train.global_batch if varies else 1.0 / (nominal * train.accumulate)
        weight_list = [weight for weights in used for weight in weights.values()]
        gradients = iter(torch.autograd.grad(total * scale, weight_list))
        for stage in stages:
            stage.add(tuple(next(gradients) for _ in stage.versions[0]))
        group_count += float(count)
        if (number + 1) % train.accumulate == 0:
            for stage in stages:
                stage.update(workload.schedule(update), train.global_batch / group_count if varies else None)
            group_count = 0.0
            if train.evaluate_every and (update + 1) % train.evaluate_every == 0:
                drained = update + 1
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}, losses


def _delay(mode: str, num_stages: int, stage: int) -> int:
    """In updates."""
    return 1 if mode == "2bw" else num_stages - 1 - stage
