"""Take two steps under the strategy, on all ranks, and gather their results as full tensors on rank 0.

The trial is built like the run (assembly.py) and takes its steps like the run (step.py). Gradients are copied
just before the optimizer uses them. The strategy's method `weights` gathers the copies later: for that, each
weight temporarily holds its gradient, or NaN if it has none. Gathering sharded weights takes a long time, so
the decisive tensors are gathered first, and the others only if a difference is found. Read compare.py next.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rankdeck.base.heartbeat import CHECK_BUILD, CHECK_STEP, VERIFYING
from rankdeck.memory.ledger import NullLedger
from rankdeck.parallel.tensor.split_plan import ModelAnalysis
from rankdeck.strategies.base import Strategy
from rankdeck.torch_compat.dtensors import is_dtensor, local_part
from rankdeck.training.assembly import BuiltStrategy, build
from rankdeck.training.reporting import StepFacts
from rankdeck.training.step import LossScaling, OptimizerStep, TrainComponents, set_optimizer_mode
from rankdeck.training.verify.compare import StepResults, snapshot
from rankdeck.training.verify.compared_samples import Batches, read_batches, shard_slices
from rankdeck.training.verify.draws import FixedDraws
from rankdeck.training.verify.scope import NUM_STEPS
from rankdeck.training.workload import Workload


class StrategyTrial:
    """The check's own strategy for a workload. Every rank creates a trial, and all ranks call its methods
    together; call `close` at the end.

    `analysis` holds findings about the model, as in assembly.py.

    Raises: RankdeckError if the strategy refuses the model, the data or the devices.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        rank: int,
        world_size: int,
        devices: list[torch.device],
        analysis: ModelAnalysis,
        beat: Callable[[str], object],
    ) -> None:
        self._workload, self._beat = workload, beat
        beat(CHECK_BUILD)
        self._rank, self._world_size = rank, world_size
        self._built: BuiltStrategy = build(
            workload,
            rank=rank,
            world_size=world_size,
            devices=devices,
            ledger=NullLedger(),
            analysis=analysis,
        )
        self.computed = StepResults()
        """Losses on every rank; on rank 0 also the gathered tensors."""
        self._gradients: list[list[Tensor | None]] = []
        self._weights: list[list[Tensor]] = []

    @property
    def strategy(self) -> Strategy:
        return self._built.strategy

    def run(self, draws: FixedDraws, shared: Batches | None, goes_on: Callable[[], bool]) -> None:
        """Take one step, and a second one if `goes_on` allows it.

        The samples are this rank's slices of `shared`; if `shared` is None, the rank reads its own samples.

        Raises: any exception that a step of the run would raise.
        """
        strategy, optimizer = self._built.strategy, self._built.optimizer
        set_optimizer_mode(optimizer, "train")
        is_fp16 = self._workload.config.train.precision == "fp16"
        steps = OptimizerStep(
            self._workload,
            TrainComponents(strategy, optimizer, LossScaling(strategy.device, is_on=is_fp16)),
            check_loss=lambda step, total: None,
            on_batch=lambda batch: self._beat(CHECK_STEP),
        )
        self._beat(CHECK_STEP)
        shard = strategy.data_shard()
        # Before draws are fixed: the data draws its samples and their order as usual.
        batches = iter(read_batches(self._workload, shard) if shared is None else shard_slices(shared, shard))
        with draws, self._record_gradients():
            for step in range(1, NUM_STEPS + 1):
                if step > 1 and not goes_on():
                    break
                facts = steps.run(step, batches)
                if strategy.owns_optimizer_step:
                    strategy.finalize()  # stages that own their optimizer step synchronize here
                self.computed.losses.append(self._mean_loss(facts))
                self._weights.append([_copy_to_host(local_part(weight)) for weight in self._parameters()])
            strategy.finalize()
        self._beat(VERIFYING)

    def gather(self, gradients_of: int) -> None:
        """Gather weights and state after the last step, and the gradients of step `gradients_of` (from 0).

        All ranks call this together, once, before `gather_rest`.
        """
        self.computed.after[len(self.computed.losses) - 1] = self._full_state()
        self._gather_gradients(gradients_of)

    def gather_rest(self) -> None:
        """Gather all remaining tensors. All ranks call this together."""
        for step in range(len(self._gradients)):
            if step not in self.computed.gradients:
                self._gather_gradients(step)
        for step, weights in enumerate(self._weights[:-1]):
            self._set_weights(weights)
            self.computed.after[step] = self._full_state()

    def close(self) -> None:
        self._built.strategy.close()

    def _gather_gradients(self, step: int) -> None:
        self._set_weights(self._gradients[step])
        state = self._full_state()
        self.computed.gradients[step] = {
            name: None if _is_missing(gradient) else gradient for name, gradient in state.items()
        }

    @torch.no_grad()
    def _set_weights(self, values: Sequence[Tensor | None]) -> None:
        """Overwrite this rank's weights with `values`; where a value is None, with NaN."""
        for parameter, value in zip(self._parameters(), values, strict=True):
            shard = local_part(parameter)
            shard.fill_(float("nan")) if value is None else shard.copy_(value)

    def _full_state(self) -> dict[str, Tensor]:
        """Return weights and persistent buffers on rank 0, an empty dictionary on other ranks."""
        weights = self.strategy.weights()
        return snapshot(weights) if self._rank == 0 else {}

    def _parameters(self) -> list[nn.Parameter]:
        """Return this rank's weights that can have gradients; integer weights can hold neither gradients nor
        NaN."""
        weights = self.strategy.module.parameters()
        return [p for p in weights if p.dtype.is_floating_point or p.dtype.is_complex]

    @contextlib.contextmanager
    def _record_gradients(self) -> Iterator[None]:
        """Record gradients just before each optimizer step in the `with` block, for optimizers of any
        class."""
        optimizer: Any = self._built.optimizer
        module, own_step = self.strategy.module, optimizer.step

        def step(*args: Any, **kwargs: Any) -> Any:
            self._gradients.append([_local_gradient(parameter) for parameter in self._parameters()])
            in_gradients = rank_distances(module, self._world_size, in_gradients=True)
            result = own_step(*args, **kwargs)
            in_weights = rank_distances(module, self._world_size, in_gradients=False)
            self.computed.rank_distances.append({"gradient": in_gradients, "weight": in_weights})
            return result

        # On the instance, so that it works for optimizers of any class.
        optimizer.step = step
        try:
            yield
        finally:
            del optimizer.step

    def _mean_loss(self, facts: StepFacts) -> float:
        """Return a step's mean loss over all ranks."""
        total, count = (0.0, 0.0) if facts.loss is None else map(float, facts.loss)
        if self._world_size > 1:
            sums = torch.tensor([total, count], dtype=torch.float64, device=self.strategy.device)
            dist.all_reduce(sums)
            total, count = sums.tolist()
        return total / count if count > 0 else total


def _local_gradient(parameter: nn.Parameter) -> Tensor | None:
    """Return this rank's shard of a gradient."""
    gradient = parameter.grad
    if gradient is None:
        return None
    return _copy_to_host(gradient.to_dense() if gradient.is_sparse else local_part(gradient))


def _copy_to_host(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _is_missing(gradient: Tensor) -> bool:
    return bool(gradient.numel()) and bool(torch.isnan(gradient).all())


# Check whether ranks that hold the same weight, or the same shard, have the same numbers in it and in its
# gradient.
#
# Rank 0's weights would not show a step in which other ranks diverge. Only a few numbers per tensor are sent.

_Fingerprint = tuple[float, float]
"""A tensor's norm, and the sum of its elements weighted by -1, 0 and 1 in turn."""


@torch.no_grad()
def rank_distances(module: nn.Module, world_size: int, *, in_gradients: bool) -> dict[str, float]:
    """Return, by name, how far weights (or their gradients, if `in_gradients` is True) differ between ranks.

    Each difference is relative to the tensor's norm.

    Tensors that are bitwise equal are left out. All ranks of a run call this together.
    """
    if world_size == 1:
        return {}
    fingerprints = list(_fingerprints(module, in_gradients=in_gradients))
    everyone: list[list[tuple[str, Hashable, _Fingerprint]]] = [[] for _ in range(world_size)]
    dist.all_gather_object(everyone, fingerprints)
    by_shard = defaultdict(list)
    for name, coordinates, numbers in (
        shard_fingerprints for rank in everyone for shard_fingerprints in rank
    ):
        by_shard[name, coordinates].append(numbers)
    distances: dict[str, float] = {}
    for (name, _), shard_fingerprints in by_shard.items():
        if any(numbers != shard_fingerprints[0] for numbers in shard_fingerprints):
            distances[name] = max(distances.get(name, 0.0), _fingerprint_distance(shard_fingerprints))
    return distances


def _fingerprints(module: nn.Module, *, in_gradients: bool) -> Iterator[tuple[str, Hashable, _Fingerprint]]:
    for name, weight in module.named_parameters():
        tensor = weight.grad if in_gradients else weight.detach()
        if tensor is None or tensor.is_sparse:
            continue
        shard = local_part(tensor)
        wide = torch.view_as_real(shard) if shard.is_complex() else shard
        flat = (wide if wide.is_floating_point() else wide.double()).reshape(-1)
        # A norm alone stays the same if numbers change their signs or positions.
        signed = flat[2::3].sum(dtype=torch.float64) - flat[::3].sum(dtype=torch.float64)
        norm = torch.linalg.vector_norm(flat, dtype=torch.float64)
        yield name, _shard_coordinates(weight), (float(norm), float(signed))


def _shard_coordinates(weight: Tensor) -> Hashable:
    """Return the coordinate of this rank's shard of a weight along each dimension of the device mesh (None
    for a dimension along which the weight is replicated); None for a weight that is not a DTensor."""
    if not is_dtensor(weight):
        return None
    coordinates: Sequence[int] = weight.device_mesh.get_coordinate() or ()
    return tuple(
        coordinate if not placement.is_replicate() else None
        for coordinate, placement in zip(coordinates, weight.placements, strict=False)
    )


def _fingerprint_distance(fingerprints: list[_Fingerprint]) -> float:
    first = fingerprints[0]
    largest = max(norm for norm, _ in fingerprints)
    distances = [math.dist(first, other) for other in fingerprints[1:]]
    return max(distances) / largest if largest > 0 and math.isfinite(largest) else math.inf
