"""pipeline: each rank holds a stage or two of the layers, and microbatches flow through them.

    rank 0   F0 F1 F2 F3       B0    B1    B2    B3          F, B: forward and backward of a microbatch
    rank 1      F0 F1 F2 F3 B0    B1    B2    B3             blank: the bubble, (p-1)/(m+p-1) of the step

Where: each rank holds weights, gradients and optimizer state of its own stages, and the activations of the
microbatches under way: gpipe m of them, 1f1b p - s on stage s. Sent per rank and step: m x a bytes of
activations on and m x a bytes of gradients back for each cut to another rank, for microbatches of a bytes at
the cut; tied weights 2(k-1)/k of their bytes among the k ranks that hold them. Wins: models too deep for one
device, on slow links. Breaks: few microbatches, uneven stages, batch norms (each sees a microbatch at a
time).

The schedules are torch's (torch.distributed.pipelining), driven with static shapes, so that no forward is run
to find them out. Read ../parallel/pipelining/schedules.py and communication.py there before, and
pipeline_async.py after.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from rankdeck.base.errors import ConfigError
from rankdeck.config import microbatches as rules
from rankdeck.parallel.mesh import Mesh
from rankdeck.parallel.pipelining.building import build_stages
from rankdeck.parallel.pipelining.costs import Boundary
from rankdeck.parallel.pipelining.schedules import make_schedule, rank_of_stages, theory_bubble
from rankdeck.profiling.spans import SpanRecorder
from rankdeck.strategies.base import (
    Batch,
    HeldoutSums,
    LossSum,
    PipelineFacts,
    Setup,
    Strategy,
    cast,
    each_tensor,
    first_samples,
)
from rankdeck.torch_compat.pipelining import raised_in_a_stage, receive_buffers


class Pipeline(Strategy):
    name = "pipeline"
    forwards_alone = False

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
        self._schedule_name = str(setup.options.get("schedule", "1f1b"))
        self._num_microbatches = self._choose_microbatches()
        self._microbatch = setup.part_batch // self._num_microbatches
        self._traffic = _Traffic(setup.spans)
        self._steps = 0

    def _choose_microbatches(self) -> int:
        """Raises: ConfigError when the batch cannot be cut as the schedule asks for."""
        setup = self.setup
        wanted = setup.options.get("microbatches")
        problem = rules.problem(self._schedule_name, setup.world_size, setup.part_batch, 1, wanted)
        if problem is not None:
            raise ConfigError(problem.message, problems=[problem])
        chosen = wanted or rules.default(self._schedule_name, setup.world_size, setup.part_batch)
        assert chosen is not None
        return int(chosen)

    def mesh(self) -> Mesh:
        return Mesh.of(self.setup.rank, stage=self.setup.world_size)

    def reports_loss(self) -> bool:
        return self._relay.is_last

    def build(self, model_fn: Callable[[], nn.Module]) -> None:
        setup = self.setup
        assert setup.sample is not None
        sample = setup.sample
        self._relay = build_stages(
            model_fn,
            rank_of_stages(self._schedule_name, setup.world_size),
            options=setup.options,
            inputs=lambda: cast(sample(self._microbatch)[0], setup.dtype),
            num_samples=self._microbatch,
            device=self.device,
            precision=setup.precision,
            ledger=setup.ledger,
            group=self._group,
            pipelines=self._pipelines,
        )
        self._cut = self._relay.cut
        self._split_layers()
        self._make_stages()

    def _split_layers(self) -> None:
        """For a hybrid: the weights of this rank's stages may be split here."""

    def _shard_stages(self) -> None:
        """For a hybrid: `_runners` may be sharded here, before torch's stages take them."""

    def _make_stages(self) -> None:
        cut, num_stages = self._cut, len(self._relay.rank_of)
        boundaries = [*cut.boundaries, ()]
        self._runners = [
            _Runner(self, stage, boundaries[stage + 1], is_last=stage == num_stages - 1)
            for stage in self._relay.own
        ]
        self._shard_stages()
        self._torch_stages = [
            _Stage(
                self._traffic,
                runner,
                stage,
                num_stages,
                self.device,
                input_args=_static(cut.boundaries[stage]) if stage else (torch.empty(1, device="meta"),),
                output_args=_static(boundaries[stage + 1]) or (torch.empty((), device="meta"),),
                group=self._group,
            )
            for stage, runner in zip(self._relay.own, self._runners, strict=True)
        ]
        self._schedule = make_schedule(
            self._schedule_name, self._torch_stages, self._num_microbatches, lambda output, _: output
        )

    @property
    def module(self) -> nn.Module:
        return self._cut.model

    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        self._steps += last
        inputs, targets = self._own_parts(batch)
        runs = [slice(i, i + self._microbatch) for i in range(0, self.setup.part_batch, self._microbatch)]
        for runner in self._runners:
            runner.start(_cut_batch(inputs, runs), _cut_batch(targets, runs), scale)
        # Every structure of inputs and targets is ours to cut: torch passes numbers of microbatches along.
        numbers = torch.arange(self._num_microbatches)
        args = (numbers,) if 0 in self._relay.own else ()
        with raised_in_a_stage():
            self._schedule.step(*args, target=numbers if self._relay.is_last else None, return_outputs=False)
        self._name_buffers()
        sums = self._runners[-1].sums
        if not sums:
            return LossSum(torch.zeros((), device=self.device), 0)
        total: Any = sum(total for total, _ in sums)
        count: Any = sum(count for _, count in sums)
        self._runners[-1].sums = []
        return LossSum(total, count)

    def _own_parts(self, batch: Batch) -> Batch:
        """What of the batch this rank's stages look at."""
        inputs = batch[0] if 0 in self._relay.own or self._cut.reads_inputs else None
        return self.to_device((inputs, batch[1] if self._relay.is_last else None))

    def _name_buffers(self) -> None:
        """torch's stages keep a tensor per microbatch to receive into."""
        ledger = self.setup.ledger
        if ledger is not None and ledger.is_following:
            ledger.relabel(
                [tensor for stage in self._torch_stages for tensor in stage.buffers()], "communication"
            )

    def sync_gradients(self) -> None:
        self._relay.sum_tied_gradients()

    def clip(self, max_norm: float) -> Tensor:
        return self._relay.clip(max_norm)

    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        """Forward only, stage by stage, each stage taking all microbatches before the next."""
        size = self._microbatch
        valid = [min(size, num_valid - start) for start in range(0, num_valid, size)]
        runs = [slice(i * size, i * size + count) for i, count in enumerate(valid)]
        inputs, targets = self._own_parts(batch)
        whole = [slice(run.start, run.start + size) for run in runs]
        fed = _cut_batch(inputs, runs if self._cut.takes_any_batch else whole)
        samples = valid if self._cut.takes_any_batch else [size] * len(valid)
        wanted = _cut_batch(targets, runs)
        found: list[HeldoutSums] = []

        def finish(index: int, outputs: Any) -> None:
            if not self._cut.takes_any_batch:
                outputs = first_samples(outputs, valid[index])
            found.append(self.heldout_sums(outputs, wanted[index]))

        with self.evaluating():
            self._relay.run(list(zip(fed, samples, strict=True)), finish)
        correct = [sums.correct for sums in found if sums.correct is not None]
        return HeldoutSums(
            sum(sums.total for sums in found),
            sum(sums.count for sums in found),
            sum(correct) if correct else None,
        )

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        with self._cut.evaluating(), torch.no_grad(), self.autocast():
            yield

    def weights(self) -> dict[str, Tensor]:
        return self._relay.gather_weights()

    def sent_bytes_per_step(self) -> tuple[str, int, bool] | None:
        """Counted where tensors are handed to the network; tied weights by formula."""
        if not self._steps:
            return None
        sent = round(self._traffic.sent_bytes / self._steps) + self._relay.tied_bytes()
        return f"point to point ({self._schedule_name})", sent, True

    def pipeline_facts(self) -> PipelineFacts:
        return PipelineFacts(
            stages=self._relay.own,
            microbatches=self._num_microbatches,
            in_flight=self._traffic.most_in_flight,
            theory_bubble=theory_bubble(self.setup.world_size, self._num_microbatches, self._schedule_name),
        )


class _Traffic:
    """What this rank's stages have under way, what they have sent, and when they worked."""

    def __init__(self, spans: SpanRecorder) -> None:
        self.spans = spans
        self.sent_bytes = 0
        self.in_flight = 0
        self.most_in_flight = 0

    def forwarded(self) -> None:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def backwarded(self) -> None:
        self.in_flight -= 1


class _Runner(nn.Module):
    """What torch's stage calls: one of our stages on the microbatch of the moment, and the loss at the end.

    The loss is computed in here so that outputs live no longer than they must, and may be of any kind.
    """

    def __init__(self, strategy: Pipeline, stage: int, leaves: Boundary, *, is_last: bool) -> None:
        super().__init__()
        self.stage = strategy._cut.stages[stage]
        self.microbatch = 0
        self.sums: list[tuple[Tensor, Any]] = []
        self._is_first = stage == 0
        self._is_last = is_last
        self._leaves = leaves
        self._autocast = strategy.autocast
        self._loss = strategy.loss
        self._inputs: list[Any] = []
        self._targets: list[Any] = []
        self._scale: float | Tensor = 1.0

    def start(self, inputs: list[Any], targets: list[Any], scale: float | Tensor) -> None:
        self._inputs, self._targets, self._scale = inputs, targets, scale
        self.sums = []

    def forward(self, *received: Tensor) -> Any:
        with self._autocast():
            output = self.stage(None if self._is_first else received, self._inputs[self.microbatch])
            if self._is_last:
                total, count = self._loss.function(output, self._targets[self.microbatch])
                self.sums.append((total.detach(), count))
                return total * self._scale
        return tuple(
            tensor.to(shape.dtype).contiguous() for tensor, shape in zip(output, self._leaves, strict=True)
        )


class _Stage(PipelineStage):
    """torch's stage, which tells its runner the number of the microbatch and counts what it does."""

    def __init__(self, traffic: _Traffic, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._traffic = traffic

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        assert isinstance(self.submod, _Runner)
        self.submod.microbatch = fwd_chunk_id
        with self._phase("forward", fwd_chunk_id):
            output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        self._traffic.forwarded()
        return output

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> Any:
        with self._phase("backward" if full_backward else "backward-input", bwd_chunk_id):
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        if full_backward:
            self._traffic.backwarded()

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> Any:
        with self._phase("backward-weight", bwd_chunk_id):
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
        self._traffic.backwarded()

    def _phase(self, name: str, microbatch: int) -> contextlib.AbstractContextManager[object]:
        return self._traffic.spans.phase(0, name, stage=self.stage_index, microbatch=microbatch)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._counted(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._counted(super().get_bwd_send_ops(bwd_chunk_id))

    def _counted(self, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        self._traffic.sent_bytes += sum(op.tensor.numel() * op.tensor.element_size() for op in ops)
        return ops

    def buffers(self) -> list[Tensor]:
        """What is received into, for every microbatch."""
        return receive_buffers(self)


def _static(boundary: Boundary) -> tuple[Tensor, ...]:
    """A boundary as torch's stages want to know it: tensors without memory."""
    return tuple(
        torch.empty(
            shape.shape, dtype=shape.dtype, device="meta", requires_grad=shape.dtype.is_floating_point
        )
        for shape in boundary
    )


def _cut_batch(value: Any, runs: Sequence[slice]) -> list[Any]:
    return [each_tensor(value, lambda tensor, run=run: tensor[run]) for run in runs]  # type: ignore[misc]
