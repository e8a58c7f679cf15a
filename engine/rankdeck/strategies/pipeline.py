"""pipeline: each rank holds one or two stages of consecutive layers; microbatches flow through the stages.

    rank 0   F0 F1 F2 F3       B0    B1    B2    B3          F, B: forward, backward pass of a microbatch
    rank 1      F0 F1 F2 F3 B0    B1    B2    B3             blank: the bubble, (p-1)/(m+p-1) of the step

Where, for m microbatches on p stages: each rank holds weights, gradients and optimizer state of its own
stages, and the activations of the microbatches in flight: all m with gpipe, p - s on stage s with 1f1b. Sent
per rank and step, for each cut to another rank: m x A bytes of activations forward and m x A bytes of
gradients back, where A is the size of one microbatch's activations at the cut; for tied weights, 2(k-1)/k of
their bytes among the k ranks that hold them. Wins: models too deep for one device, on slow links. Breaks: few
microbatches; uneven stages; batch norms, which normalize over a microbatch (running statistics are those of
the whole batch, see ../parallel/pipelining/stages.py); batches padded to their longest sample, where each new
length costs one extra forward pass over a microbatch.

The schedules are torch's (torch.distributed.pipelining). `schedule = "1f1b-by-hand"` implements 1f1b once
more with plain sends and receives: read ../parallel/pipelining/one_forward_one_backward.py to learn what a
schedule is, then schedules.py and communication.py in the same folder, and pipeline_async.py last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rankdeck.base.errors import ConfigError, ModelError
from rankdeck.base.phrases import phrase
from rankdeck.config import microbatches as rules
from rankdeck.config.catalog import PipelineOptions
from rankdeck.config.compatibility import SPLIT_BACKWARD_SCHEDULES
from rankdeck.parallel.pipelining.communication import StageCommunication
from rankdeck.parallel.pipelining.costs import Boundary
from rankdeck.parallel.pipelining.cutting import cut_model, move_in_place
from rankdeck.parallel.pipelining.one_forward_one_backward import HandWrittenSchedule
from rankdeck.parallel.pipelining.schedules import HAND_WRITTEN, stage_ranks, theory_bubble
from rankdeck.parallel.pipelining.stages import StageRunner, TorchSchedule, Traffic, loss_inputs
from rankdeck.parallel.pipelining.traced import other_sizes_error
from rankdeck.parallel.pytree import (
    cast_to,
    check_sample_dim,
    first_samples,
    num_samples,
    pad_batch,
    split_batch,
    tensor_leaves,
)
from rankdeck.parallel.state.forward import merge_attributes, module_copies
from rankdeck.strategies.base import Batch, HeldoutSums, LossSum, Setup, Strategy, place_model
from rankdeck.strategies.facts import StageFacts

_Sizes = tuple[torch.Size, ...]


class PipelineParallel(Strategy):
    name = "pipeline"
    axis = "stage"
    forward_is_local = False
    is_sharded = True
    options: PipelineOptions
    facts: StageFacts
    replicas = ()

    def __init__(
        self,
        setup: Setup,
        group: dist.ProcessGroup | None = None,
        pipelines: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Create the strategy. Ranks in `setup` are numbered within `group` (default: all ranks); `pipelines`
        lists the ranks of each pipeline of the run (default: the group is the only pipeline)."""
        super().__init__(setup)
        self._group = group
        self._pipelines = pipelines
        self._num_microbatches = self.choose_microbatches()
        self._microbatch_size = setup.microstep_samples // self._num_microbatches
        self._boundaries_by_size: dict[_Sizes, list[Boundary]] = {}

    def choose_microbatches(self) -> int:
        """Return the number of microbatches.

        Raises: ConfigError if the batch cannot be split as the schedule requires.
        """
        setup, schedule, requested = self.setup, self.options.schedule, self.options.microbatches
        problem = rules.microbatch_problem(schedule, setup.world_size, setup.microstep_samples, 1, requested)
        if problem is not None:
            raise ConfigError(problem.message, problems=[problem])
        chosen = requested or rules.default_microbatches(schedule, setup.world_size, setup.microstep_samples)
        assert chosen is not None
        return chosen

    @property
    def pads_batches(self) -> bool:
        return True

    def min_forward_samples(self, num_samples: int) -> int:
        return min(num_samples, self._microbatch_size)

    def reports_loss(self) -> bool:
        return self.stages.is_last

    def build(self, model_fn: Callable[[], nn.Module]) -> None:
        schedule, num_ranks = self.options.schedule, self.setup.world_size
        self.build_stages(model_fn, stage_ranks(schedule, num_ranks))
        self._require_single_tensors()
        self.runners = [
            StageRunner(
                self.cut,
                stage,
                self.loss,
                self.autocast,
                is_split=schedule in SPLIT_BACKWARD_SCHEDULES,
                ledger=self.ledger,
            )
            for stage in self.stages.local_stages
        ]
        self._copies = module_copies(self.module, self.stage_modules)
        self._place_stages()
        self._traffic = Traffic(self.spans)
        num_microbatches = self._num_microbatches
        bubble = theory_bubble(num_ranks, num_microbatches, schedule)
        label = f"point-to-point ({schedule})"
        self.facts = StageFacts(label, self.stages, num_microbatches, self._traffic, bubble)
        # Last, once stages are in place: torch's stages store the objects passed to them.
        self._schedule = self._make_schedule()
        self._scheduled_sizes = self._sizes

    def _require_single_tensors(self) -> None:
        """Check that only one tensor crosses each cut if the schedule splits the backward pass. The autograd
        graphs of several tensors could overlap, and torch would run the shared part twice. Raises: ModelError
        if several tensors cross a cut under such a schedule."""
        several = next((index for index, leaf in enumerate(self.cut.boundaries) if len(leaf) > 1), None)
        if several is not None and self.options.schedule in SPLIT_BACKWARD_SCHEDULES:
            raise ModelError(
                phrase(
                    "The schedule {schedule} splits the backward pass and supports only one input "
                    "tensor per stage, but {num_tensors} tensors enter stage {stage}.",
                    schedule=self.options.schedule,
                    num_tensors=len(self.cut.boundaries[several]),
                    stage=several,
                ),
                path="strategy.schedule",
                advice=phrase('Set strategy.schedule = "1f1b" or "interleaved-1f1b".'),
                changes={"strategy.schedule": "1f1b"},
            )

    @property
    def supports_sparse_gradients(self) -> bool:
        return True

    def build_stages(self, model_fn: Callable[[], nn.Module], rank_of: Sequence[int]) -> None:
        """Build the whole model on the CPU, cut it, and keep this rank's stages. `rank_of` lists the rank of
        each stage.

        Every rank builds the model from the run's seed, so the initial weights equal those of a run on one
        device.
        """
        setup = self.setup
        assert setup.read_samples is not None
        with self.ledger.paused():
            model = place_model(model_fn(), setup, torch.device("cpu"))
            inputs, targets = cast_to(setup.read_samples(self._microbatch_size), setup.dtype)
            check_sample_dim((inputs, targets), self._microbatch_size, self.name)
            # Shapes are found on the CPU, so the CPU's autocast decides dtypes. Its cache would pass
            # weights that were cast without values, to find shapes, on to the next run, which needs values.
            with torch.autocast(
                "cpu", torch.bfloat16, enabled=setup.precision == "bf16", cache_enabled=False
            ):
                cut = cut_model(
                    model,
                    len(rank_of),
                    self.options,
                    inputs,
                    self._microbatch_size,
                    device=self.device,
                    known_differences=setup.analysis.cut_differences,
                    read_outputs=lambda outputs: loss_inputs(setup.loss, outputs, targets),
                )
            self._sizes = _sample_sizes(inputs)
            # A copy, because `use_sizes` changes the cut's own list.
            self._boundaries_by_size[self._sizes] = list(cut.boundaries)
            self.stages = StageCommunication(cut, rank_of, self.device, self._group, self._pipelines)
            cut.keep_only(self.stages.local_stages)
            cut.copy_shared_buffers(self.stages.local_stages)
        self.cut, self.module, self.stage_modules = cut, cut.model, cut.stages

    def _place_stages(self) -> None:
        """Move this rank's stages from the CPU to its device."""
        self.move_to_device(self.cut.stage_tensors(self.stages.local_stages))

    def move_to_device(self, tensors: Sequence[Tensor]) -> None:
        """Move weights and buffers from the CPU to this rank's device."""
        with self.ledger.paused():
            move_in_place(tensors, self.device)
        for kind, is_weight in (("parameters", True), ("buffers", False)):
            self.ledger.adopt([t for t in tensors if isinstance(t, nn.Parameter) == is_weight], 0, kind)

    def _make_schedule(self) -> TorchSchedule | HandWrittenSchedule:
        schedule, num_microbatches, traffic = self.options.schedule, self._num_microbatches, self._traffic
        if schedule == HAND_WRITTEN:
            return HandWrittenSchedule(self.runners[0], self.stages, num_microbatches, traffic, self.ledger)
        return TorchSchedule(schedule, self.runners, self.stages, num_microbatches, traffic, self.setup.dtype)

    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        """Run the forward and backward passes of all microbatches through all stages; only the last stage
        computes losses."""
        batch, valid = self.pad_batch(batch)
        size = self._microbatch_size
        inputs, targets = (
            split_batch(values, size, self.setup.microstep_samples) for values in self.stage_inputs(batch)
        )
        counting = [
            None if valid is None else max(0, min(size, valid - start))
            for start in range(0, self.setup.microstep_samples, size)
        ]
        self.use_sizes(batch)
        if self._scheduled_sizes != self._sizes:
            with self.ledger.phase("communication"):
                # The stages' receive buffers have fixed sizes, so new sizes need a new schedule.
                self._schedule, self._scheduled_sizes = self._make_schedule(), self._sizes
        self.cut.refresh_copies()
        for runner in self.runners:
            runner.start(inputs, targets, counting, scale)
            runner.state.start([size if counted is None else counted for counted in counting])
        self._schedule.run()
        for runner in self.runners:
            runner.finish(self.replicas)
        merge_attributes([runner.state for runner in self.runners], self._copies)
        self.facts.steps += last
        if self.ledger.is_tracking:
            self.ledger.relabel(self._schedule.buffers(), "communication")
        sums, self.runners[-1].sums = self.runners[-1].sums, []
        if not sums:
            return LossSum(torch.zeros((), device=self.device), 0)
        total: Any = sum(total for total, _ in sums)
        count: Any = sum(count for _, count in sums)
        return LossSum(total, count)

    def require_varying_sizes(self) -> None:
        if not self.cut.accepts_any_batch:
            raise other_sizes_error()

    def use_sizes(self, batch: Batch) -> None:
        """Set the shapes of the tensors between stages for this batch, whose samples may be padded to a
        different length than those of the previous batch.

        All ranks of a pipeline process the same batches.
        """
        sizes = _sample_sizes(batch[0])
        if sizes == self._sizes:
            return
        if sizes not in self._boundaries_by_size:
            self._learn_boundaries(batch)
            self._boundaries_by_size[sizes] = list(self.cut.boundaries)
        self._sizes, self.cut.boundaries[:] = sizes, self._boundaries_by_size[sizes]

    def _learn_boundaries(self, batch: Batch) -> None:
        """Find the shapes of the tensors between stages by running the forward pass of one microbatch in eval
        mode."""
        self.require_varying_sizes()
        # A real forward, not one on fake tensors: a rank has only its own stages, possibly sharded.
        inputs, _ = self.stage_inputs(first_samples(self.pad_batch(batch)[0], self._microbatch_size))
        cuda_devices = [self.device] if self.device.type == "cuda" else []
        # Random numbers that this extra forward draws must not change those of the training. Without
        # `devices`, torch would fork the state of every GPU.
        with self.eval_mode(), torch.random.fork_rng(devices=cuda_devices):
            self.stages.run([(inputs, self._microbatch_size)], lambda index, outputs: None, learn_shapes=True)

    def stage_inputs(self, batch: Batch) -> Batch:
        """Return the inputs and targets that this rank's stages need, on its device."""
        inputs = batch[0] if 0 in self.stages.local_stages or self.cut.reads_inputs else None
        return self.to_device((inputs, batch[1] if self.stages.is_last else None))

    def pad_batch(self, batch: Batch) -> tuple[Batch, int | None]:
        """Pad the batch to a full microstep; return it with its number of valid samples (None: all)."""
        num = num_samples(batch)
        if num == self.setup.microstep_samples:
            return batch, None
        with self.ledger.paused():
            return pad_batch(batch, self.setup.microstep_samples), num

    def sync_gradients(self) -> None:
        """Sum the gradients of weights that several stages share."""
        self.stages.sum_tied_gradients()

    def num_stage_holders(self) -> Mapping[nn.Parameter, int]:
        return self.stages.tied_weight_holders()

    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        """Run only the forward pass, stage by stage; each stage processes all microbatches before the next
        stage starts."""
        self.use_sizes(batch)
        size, any_batch = self._microbatch_size, self.cut.accepts_any_batch
        valid = [min(size, num_valid - start) for start in range(0, num_valid, size)]
        inputs, targets = self.stage_inputs(batch)
        # Stages that accept a single batch size get padded microbatches; `finish` drops the outputs of the
        # padding.
        samples = valid if any_batch else [size] * len(valid)
        fed = split_batch(pad_batch(inputs, sum(samples)), size, sum(samples))
        target_chunks = split_batch(targets, size, num_valid)
        sums = self.zero_sums()

        def finish(index: int, outputs: Any) -> None:
            nonlocal sums
            if not any_batch:
                outputs = first_samples(outputs, valid[index])
            sums = sums + self.heldout_sums(outputs, target_chunks[index])

        self.cut.refresh_copies()
        with self.eval_mode():
            self.stages.run(list(zip(fed, samples, strict=True)), finish)
        return sums

    def weights(self) -> dict[str, Tensor]:
        return self.stages.gather_weights()


def _sample_sizes(inputs: Any) -> _Sizes:
    """Return the shapes of a batch's tensors without the batch dim."""
    return tuple(tensor.shape[1:] for tensor in tensor_leaves(inputs))
