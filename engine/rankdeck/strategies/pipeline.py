"""pipeline: each rank holds a stage or two of the layers, and microbatches flow through them.

    rank 0   F0 F1 F2 F3       B0    B1    B2    B3          F, B: forward and backward of a microbatch
    rank 1      F0 F1 F2 F3 B0    B1    B2    B3             blank: the bubble, (p-1)/(m+p-1) of the step

Where: each rank holds weights, gradients and optimizer state of its own stages, and the activations of the
microbatches under way: gpipe m of them, 1f1b p - s on stage s. Sent per rank and step: m x a bytes of
activations on and m x a bytes of gradients back for each cut to another rank, for microbatches of a bytes at
the cut; tied weights 2(k-1)/k of their bytes among the k ranks that hold them. Wins: models too deep for one
device, on slow links. Breaks: few microbatches, uneven stages, batch norms (each sees a microbatch at a
time).

The schedules are torch's (torch.distributed.pipelining); `schedule = "1f1b-by-hand"` is 1f1b once more, on
plain sends and receives: read ../parallel/pipelining/one_forward_one_backward.py for what a schedule is, then
schedules.py and communication.py there, and pipeline_async.py after.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rankdeck.base.errors import ConfigError
from rankdeck.config import microbatches as rules
from rankdeck.config.catalog import PipelineOptions
from rankdeck.parallel.mesh import Mesh
from rankdeck.parallel.nested import cast, cut_batch, first_samples
from rankdeck.parallel.pipelining.building import build_stages
from rankdeck.parallel.pipelining.costs import Boundary
from rankdeck.parallel.pipelining.one_forward_one_backward import HandWrittenSchedule
from rankdeck.parallel.pipelining.schedules import BY_HAND, rank_of_stages
from rankdeck.parallel.pipelining.stages import StageRunner, TorchSchedule, Traffic
from rankdeck.parallel.tensor.gradients import clip_over_ranks
from rankdeck.strategies.base import Batch, HeldoutSums, LossSum, Setup, Strategy
from rankdeck.strategies.facts import StageFacts


class PipelineParallel(Strategy):
    name = "pipeline"
    forwards_alone = False
    options: PipelineOptions
    facts: StageFacts

    def __init__(
        self,
        setup: Setup,
        group: dist.ProcessGroup | None = None,
        pipelines: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """`setup` counts ranks within `group`, by default all of them; `pipelines` are all such groups."""
        super().__init__(setup)
        self._group = group
        self._pipelines = pipelines
        self._num_microbatches = self._choose_microbatches()
        self._microbatch = setup.part_batch // self._num_microbatches

    def _choose_microbatches(self) -> int:
        """Raises: ConfigError when the batch cannot be cut as the schedule asks for."""
        setup, schedule, wanted = self.setup, self.options.schedule, self.options.microbatches
        problem = rules.problem(schedule, setup.world_size, setup.part_batch, 1, wanted)
        if problem is not None:
            raise ConfigError(problem.message, problems=[problem])
        chosen = wanted or rules.default(schedule, setup.world_size, setup.part_batch)
        assert chosen is not None
        return chosen

    def mesh(self) -> Mesh:
        return Mesh.of(self.setup.rank, stage=self.setup.world_size)

    def reports_loss(self) -> bool:
        return self.stages.is_last

    def build(self, model_fn: Callable[[], nn.Module]) -> None:
        setup = self.setup
        assert setup.sample is not None
        sample = setup.sample
        self.stages = build_stages(
            model_fn,
            rank_of_stages(self.options.schedule, setup.world_size),
            options=self.options,
            inputs=lambda: cast(sample(self._microbatch)[0], setup.dtype),
            num_samples=self._microbatch,
            device=self.device,
            precision=setup.precision,
            ledger=self.ledger,
            group=self._group,
            pipelines=self._pipelines,
        )
        self.cut = self.stages.cut
        self._split_layers()
        boundaries = [*self.cut.boundaries, ()]
        self.runners = [
            StageRunner(
                self.cut.stages[stage],
                stage,
                len(self.stages.rank_of),
                boundaries[stage + 1],
                self.loss,
                self.autocast,
            )
            for stage in self.stages.own
        ]
        self._shard_stages()
        traffic = Traffic(self.spans)
        self.facts = StageFacts(
            self.stages, self.options.schedule, setup.world_size, self._num_microbatches, traffic
        )
        # Last, because torch's stages keep what they are given.
        self._schedule = self._make_schedule(boundaries, traffic)

    def _split_layers(self) -> None:
        """For a hybrid: the weights of this rank's stages may be split here."""

    def _shard_stages(self) -> None:
        """For a hybrid: `runners` may be sharded here."""

    def _make_schedule(
        self, boundaries: Sequence[Boundary], traffic: Traffic
    ) -> TorchSchedule | HandWrittenSchedule:
        where: Any = {"device": self.device, "group": self._group, "traffic": traffic}
        if self.options.schedule == BY_HAND:
            (runner,) = self.runners
            return HandWrittenSchedule(
                runner, boundaries, self._num_microbatches, ledger=self.ledger, **where
            )
        return TorchSchedule(
            self.options.schedule,
            self.runners,
            boundaries,
            self._num_microbatches,
            dtype=self.setup.dtype,
            **where,
        )

    @property
    def module(self) -> nn.Module:
        return self.cut.model

    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        """All microbatches through all stages and back; only the last stage knows losses."""
        inputs, targets = (
            cut_batch(part, self._microbatch, self.setup.part_batch) for part in self._own_parts(batch)
        )
        for runner in self.runners:
            runner.start(inputs, targets, scale)
        self._schedule.run()
        self.facts.steps += last
        if self.ledger.is_following:
            self.ledger.relabel(self._schedule.buffers(), "communication")
        sums, self.runners[-1].sums = self.runners[-1].sums, []
        if not sums:
            return LossSum(torch.zeros((), device=self.device), 0)
        total: Any = sum(total for total, _ in sums)
        count: Any = sum(count for _, count in sums)
        return LossSum(total, count)

    def _own_parts(self, batch: Batch) -> Batch:
        """What of the batch this rank's stages look at."""
        inputs = batch[0] if 0 in self.stages.own or self.cut.reads_inputs else None
        return self.to_device((inputs, batch[1] if self.stages.is_last else None))

    def sync_gradients(self) -> None:
        """Stages that share a weight have each a part of its gradient."""
        self.stages.sum_tied_gradients()

    def clip(self, max_norm: float) -> Tensor:
        num_ranks = self.setup.world_size
        return clip_over_ranks(
            self.module.parameters(),
            max_norm,
            world_size=num_ranks,
            num_stages=num_ranks,
            owners=self.stages.owners(),
        )

    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        """Forward only, stage by stage, each stage taking all microbatches before the next."""
        size, any_batch = self._microbatch, self.cut.takes_any_batch
        valid = [min(size, num_valid - start) for start in range(0, num_valid, size)]
        inputs, targets = self._own_parts(batch)
        fed = cut_batch(inputs, size, num_valid if any_batch else len(valid) * size)
        samples = valid if any_batch else [size] * len(valid)
        wanted = cut_batch(targets, size, num_valid)
        parts: list[HeldoutSums] = []

        def finish(index: int, outputs: Any) -> None:
            if not any_batch:
                outputs = first_samples(outputs, valid[index])
            parts.append(self.heldout_sums(outputs, wanted[index]))

        with self.evaluating():
            self.stages.run(list(zip(fed, samples, strict=True)), finish)
        correct = [sums.correct for sums in parts if sums.correct is not None]
        return HeldoutSums(
            sum(sums.total for sums in parts),
            sum(sums.count for sums in parts),
            sum(correct) if correct else None,
        )

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        with self.cut.evaluating(), torch.no_grad(), self.autocast():
            yield

    def weights(self) -> dict[str, Tensor]:
        return self.stages.gather_weights()
