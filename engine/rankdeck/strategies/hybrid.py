"""hybrid: several kinds of parallelism at once, each along an axis of one mesh of ranks.

    data     replicas; gradients summed after the backward pass (parallel/collectives/grad_sync.py, as in ddp)
    shard    shards of every weight, gathered block by block    (parallel/fsdp/blocks.py, as in fsdp)
    stage    consecutive layers, microbatches between them      (pipeline.py itself)
    tensor   slices of every large layer, sums in each block    (parallel/tensor/apply.py, as in tensor)

A step from the inside out: forward and backward passes include the sums along tensor, stages pass
microbatches on, and backward passes reduce-scatter gradients along shard. Then, once per step, each rank's
gradients are summed along data, by an explicit sync: DistributedDataParallel around a stage crashes or
silently does not sync.

Where: each rank holds 1/(stage x tensor x shard) of the weights with their gradients and optimizer state.
Sent per rank and step: for each axis, the bytes that its strategy alone would send for the part of the model
that remains after the split along the inner axes. Wins: models that do not fit with any single axis, with
tensor inside a machine, data and stage across machines. Breaks: the limits of every axis; a mesh that leaves
each rank too little work. Read all other strategies first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import loss_parallel

from rankdeck.base.errors import ConfigError, ModelError
from rankdeck.base.phrases import phrase
from rankdeck.config import mesh_sizes
from rankdeck.config.catalog import HybridOptions
from rankdeck.parallel.collectives.grad_sync import GradientSync, collect_gradients
from rankdeck.parallel.fsdp.blocks import Sharding, reshard_blocks, sharded_modules
from rankdeck.parallel.fsdp.used_weights import UsedWeights
from rankdeck.parallel.mesh import Mesh
from rankdeck.parallel.pipelining.cutting import weights_and_buffers
from rankdeck.parallel.sharded_init import materialize_sharded
from rankdeck.parallel.tensor.apply import LayerSplit, retie_weights
from rankdeck.parallel.tensor.gradients import reduce_partial_gradients
from rankdeck.parallel.tensor.loss import make_loss_parallel
from rankdeck.parallel.tensor.plan import cached_plan
from rankdeck.parallel.tensor.split_plan import SplitPlan, tied_names
from rankdeck.parallel.tensor.stages import require_model_modules, split_stages
from rankdeck.strategies.base import Batch, HeldoutSums, LossSum, Setup, Strategy
from rankdeck.strategies.facts import CollectiveFacts, HybridFacts, ShardFacts, StrategyFacts, SyncFacts
from rankdeck.strategies.pipeline import PipelineParallel
from rankdeck.torch_compat.dtensors import is_dtensor, local_part

Axes = Mapping[str, DeviceMesh]
"""Device mesh of each axis; axes of size 1 are left out."""


class Hybrid(Strategy):
    name = "hybrid"
    forward_is_local = False
    is_sharded = True
    options: HybridOptions

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        sizes = {axis: int(getattr(self.options, axis)) for axis in mesh_sizes.AXES}
        problem = mesh_sizes.mesh_problem(sizes, setup.world_size)
        if problem is not None:
            raise ConfigError(problem.message, problems=[problem])
        # A mesh needs at least one axis, also for a single rank.
        self._mesh = Mesh.of(
            setup.rank, **({axis: size for axis, size in sizes.items() if size > 1} or {"data": 1})
        )
        self._loss_parallel = self.options.loss_parallel and sizes["tensor"] > 1
        if self._loss_parallel:
            self.loss = make_loss_parallel(setup.loss)
        self._collectives = CollectiveFacts()

    def mesh(self) -> Mesh:
        return self._mesh

    @property
    def pads_batches(self) -> bool:
        return self._inner.pads_batches

    def min_forward_samples(self, num_samples: int) -> int:
        return self._inner.min_forward_samples(num_samples)

    @property
    def supports_sparse_gradients(self) -> bool:
        return self._mesh.size("stage") == self.setup.world_size

    def require_varying_sizes(self) -> None:
        self._inner.require_varying_sizes()

    def reports_loss(self) -> bool:
        return self._mesh.coordinate("tensor") == 0 and self._inner.reports_loss()

    def build(self, model_fn: Callable[[], nn.Module]) -> None:
        setup, options, axes = self.setup, self.options, self._make_axes()
        inner_setup = dataclasses.replace(
            setup, loss=self.loss, microstep_samples=setup.microstep_samples // self.data_shard()[1]
        )
        self._inner: _FullModel | _HybridPipeline = (
            _HybridPipeline(inner_setup, axes, self._mesh.groups_along("stage"))
            if "stage" in axes
            else _FullModel(inner_setup, axes)
        )
        self._inner.build(model_fn)
        self.module, self.stage_modules = self._inner.module, self._inner.stage_modules
        facts: list[StrategyFacts] = [self._inner.facts]
        self.replicas = [axes[axis].get_group() for axis in ("shard", "data") if axis in axes]
        self._inner.replicas = self.replicas
        self._shard_sync = self._data_sync = None
        if "shard" in axes:
            # A weight without dims cannot be sharded: the ranks along shard sum its gradient here.
            group = axes["shard"].get_group()
            self._shard_sync = GradientSync(group)
            self._used_weights = UsedWeights(self._inner.shard_roots, self._inner.replicated, group)
        if "tensor" in axes:
            facts.append(self._collectives)
        if "data" in axes:
            self._data_sync = GradientSync(
                axes["data"].get_group(), algorithm=options.sync, compress=options.compress
            )
            facts.append(SyncFacts(self._data_sync, " over data"))
        self.facts = HybridFacts(facts, self._collectives)

    def _make_axes(self) -> Axes:
        if self.setup.world_size == 1:
            return {}
        mesh = self.setup.backend.device_mesh(self._mesh, self.device.type)
        return {axis: mesh[axis] for axis, size in self._mesh.sizes if size > 1}

    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        self._buffers_differ = True
        split_classes = loss_parallel() if self._loss_parallel else contextlib.nullcontext()
        with self._collectives.microstep(last=last), split_classes:
            return self._inner.forward_backward(batch, scale, last=last)

    def sync_gradients(self) -> None:
        """Sum gradients from the innermost axis outward: over sequence slices, between stages that share
        weights, along the shard axis for weights that are not sharded, and finally along the data axis."""
        inner = self._inner
        with self.ledger.phase("communication"):
            if inner.split is not None:
                reduce_partial_gradients(
                    inner.module.parameters(), inner.split.partial_gradients(), inner.split.mesh
                )
            inner.sync_gradients()
            if self._shard_sync is not None:
                self._used_weights.sync_used()
                uncut = [weight.grad for weight in inner.replicated if weight.grad is not None]
                self._shard_sync.sync([local_part(gradient) for gradient in uncut])
            if self._data_sync is not None:
                with self.spans.phase(0, "all-reduce"):
                    self._data_sync.sync(
                        collect_gradients(inner.module, find_unused=True, group=self._data_sync.peers.group)
                    )

    def num_stage_holders(self) -> Mapping[nn.Parameter, int]:
        return self._inner.num_stage_holders()

    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        """Evaluate on this rank. With sharding, a rank whose part of the batch is all padding also runs the
        forward pass, because the other ranks need its shards of the weights."""
        self.broadcast_buffers()
        if num_valid == 0 and self._shard_sync is None:
            return self.zero_sums()
        # A share that is all padding evaluates one sample of it, whose sums are discarded below.
        sums = self._inner.evaluate(batch, max(num_valid, 1))
        return sums if num_valid else self.zero_sums()

    def weights(self) -> dict[str, Tensor]:
        """Return the full weights on rank 0; other ranks help to gather them and return an empty dict."""
        weights = self._inner.weights()
        return weights if self.setup.rank == 0 else {}

    def close(self) -> None:
        self._inner.close()


class _FullModel(Strategy):
    """Hybrid without stages: each rank has all layers, split along the tensor axis and sharded as in fsdp."""

    name = "hybrid"
    options: HybridOptions

    def __init__(self, setup: Setup, axes: Axes) -> None:
        super().__init__(setup)
        self._axes = axes
        self.split: LayerSplit | None = None
        self.replicated: list[nn.Parameter] = []

    @property
    def shard_roots(self) -> Sequence[nn.Module]:
        """The modules that are sharded."""
        return [self.module]

    def build(self, model_fn: Callable[[], nn.Module]) -> None:
        axes, options, setup = self._axes, self.options, self.setup
        blank = self.meta_init_model(model_fn)
        module = self.module = blank.module
        if "tensor" in axes:
            with self.ledger.paused():
                plan = cached_plan(
                    setup.analysis, module, axes["tensor"].size(), options.plan, self.sample_inputs()
                )
            self.split = LayerSplit(module, plan, axes["tensor"], options)
        sharding = None
        if "shard" in axes:
            # Split layers pass on views of gathered weights; no code here writes into them.
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
            half = setup.precision == "bf16"
            sharding = Sharding(axes["shard"], options.reshard, half, self.sample_inputs())
            backend = "gloo" if setup.is_rehearsal else "nccl"
            label = "all-gather and reduce-scatter over shard"
            self.facts = ShardFacts(module, sharding, setup.accumulate, backend, label)
        self.replicated = materialize_sharded(
            [module], blank.materialize, split=self.split, sharding=sharding
        )

    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        for module in sharded_modules(self.module):
            module.set_requires_gradient_sync(last, recurse=False)
        with self.track_forward_state(batch, scale):
            return self.compute(self.module, batch, scale)

    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        sums = self.compute_heldout(self.module, batch, num_valid)
        reshard_blocks(self.module)
        return sums


class _HybridPipeline(PipelineParallel):
    """One pipeline of the mesh, with its stages' layers split along the tensor axis and their weights
    sharded."""

    name = "hybrid"
    options: HybridOptions

    def __init__(self, setup: Setup, axes: Axes, pipelines: list[list[int]]) -> None:
        """Create the strategy; `pipelines` lists the ranks of every pipeline of the mesh."""
        stage = axes["stage"]
        stage_setup = dataclasses.replace(setup, rank=stage.get_local_rank(), world_size=stage.size())
        super().__init__(stage_setup, stage.get_group(), pipelines)
        self._axes = axes
        self._plan: SplitPlan | None = None
        self.split: LayerSplit | None = None
        self.replicated: list[nn.Parameter] = []

    @property
    def shard_roots(self) -> Sequence[nn.Module]:
        """The modules that are sharded."""
        return self.runners

    def build(self, model_fn: Callable[[], nn.Module]) -> None:
        """Build the stages. The split along the tensor axis is planned on the complete model, and applied
        after the stages of other ranks have been dropped."""

        def planned() -> nn.Module:
            model = model_fn()
            if "tensor" in self._axes:
                size = self._axes["tensor"].size()
                with self.ledger.paused():
                    self._plan = cached_plan(
                        self.setup.analysis, model, size, self.options.plan, self.sample_inputs()
                    )
            return model

        super().build(planned)

    def _place_stages(self) -> None:
        """Move and shard the stages block by block: each block is sharded before the next one is moved."""
        sharding = None
        if self._plan is not None:
            self.split = split_stages(self.stages, self._plan, self._axes["tensor"], self.options)
        if "shard" in self._axes:
            require_model_modules(self.stages, "shard")
            _require_untied(self.runners)
            # Gathered weights stay until the step's last backward, or each microbatch would gather them
            # again.
            sharding = Sharding(
                self._axes["shard"], reshard_after_forward=False, is_bf16=self.setup.precision == "bf16"
            )
        # Before sharding, which replaces parameters and so unties them.
        ties = tied_names(self.module)
        self.move_to_device(self.cut.unused_tensors(self.stages.local_stages))
        self.replicated = materialize_sharded(
            self.runners, self._move_part, split=self.split, sharding=sharding
        )
        if sharding is not None:
            retie_weights(self.module, ties, self.stages.local_modules())

    def require_varying_sizes(self) -> None:
        """Check that the strategy supports samples of different sizes. Sharded weights are refused: the ranks
        along shard must run the same all-gathers, but read different batches."""
        # New sizes need a forward of all shards, but only one of them may have met a batch with these sizes.
        super().require_varying_sizes()
        if "shard" in self._axes:
            raise ModelError(
                phrase("Samples differ in size, which stages with sharded weights do not support."),
                path="strategy.shard",
                advice=phrase("Pad all samples to the same length, or set strategy.shard = 1."),
            )

    def _move_part(self, submodule: nn.Module) -> None:
        self.move_to_device([tensor for tensor in weights_and_buffers(submodule) if not is_dtensor(tensor)])

    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        for runner in self.runners:
            for module in sharded_modules(runner):
                module.unshard()
        sums = super().evaluate(batch, num_valid)
        for runner in self.runners:
            reshard_blocks(runner)
        return sums


def _require_untied(runners: Sequence[nn.Module]) -> None:
    """Check that no two of this rank's stages, each inside one of `runners`, share a weight. Raises:
    ModelError if a weight is shared."""
    weights = [weight for runner in runners for weight in runner.parameters()]
    if len(set(weights)) < len(weights):
        raise ModelError(
            phrase("Two stages of one rank share a tied weight, which cannot be sharded twice."),
            path="strategy.schedule",
            advice=phrase("Use schedule = 1f1b or gpipe, shard = 1, or a model without tied weights."),
        )
