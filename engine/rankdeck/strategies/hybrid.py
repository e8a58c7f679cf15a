"""hybrid: several kinds of parallelism at once, each along an axis of one mesh of ranks.

    data     replicas; gradients are summed after backward      (parallel/collectives/grad_sync.py, as in ddp)
    shard    slices of every weight, gathered block by block    (parallel/fsdp/blocks.py, as in fsdp)
    stage    layers one after another, microbatches between     (pipeline.py itself)
    tensor   slices of every large layer, sums in each block    (parallel/tensor/apply.py, as in tensor)

A step from the inside out: tensor's sums happen inside forward and backward, stages pass microbatches, shards
are scattered in backward; then, once per step, what each rank holds is summed over data. One sync for all of
them, because a wrapper around a stage crashes or silently does not sync.

Where: each rank holds 1/(stage x tensor x shard) of the weights with their gradients and optimizer state.
Sent per rank and step: what each axis sends by itself, of the part of the model that the axes inside it
leave. Wins: models that no single axis fits; tensor inside a machine, data and stage across. Breaks: every
axis' own limits; a mesh that leaves each rank too little to do. Read all the others before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import loss_parallel

from rankdeck.base.errors import ConfigError
from rankdeck.config import mesh_sizes
from rankdeck.config.catalog import HybridOptions
from rankdeck.parallel.collectives.broadcast import broadcast_from_rank_0
from rankdeck.parallel.collectives.grad_sync import GradientSync, gradients_of
from rankdeck.parallel.fsdp.blocks import reshard_blocks, shard_blocks, sharded_modules
from rankdeck.parallel.fsdp.stages import shard_stages
from rankdeck.parallel.mesh import Mesh
from rankdeck.parallel.slices import fill_in_slices
from rankdeck.parallel.tensor.apply import LayerSplit
from rankdeck.parallel.tensor.gradients import add_up_partial, clip_over_ranks, whole_tensors
from rankdeck.parallel.tensor.loss import over_split_classes
from rankdeck.parallel.tensor.plan import SplitPlan, make_plan
from rankdeck.parallel.tensor.stages import require_own_modules, split_stages
from rankdeck.strategies.base import Batch, HeldoutSums, LossSum, Setup, Strategy
from rankdeck.strategies.facts import CollectiveFacts, HybridFacts, ShardFacts, StrategyFacts, SyncFacts
from rankdeck.strategies.pipeline import PipelineParallel
from rankdeck.torch_compat.dtensors import local_part


@dataclasses.dataclass
class Axes:
    """The mesh as the parts of a hybrid see it. An axis of size 1 is None."""

    data: DeviceMesh | None = None
    shard: DeviceMesh | None = None
    stage: DeviceMesh | None = None
    tensor: DeviceMesh | None = None
    pipelines: list[list[int]] | None = None
    """The ranks of every pipeline of the mesh."""


class Hybrid(Strategy):
    name = "hybrid"
    forwards_alone = False
    options: HybridOptions

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        sizes = {axis: int(getattr(self.options, axis)) for axis in mesh_sizes.AXES}
        problem = mesh_sizes.problem(sizes, setup.world_size)
        if problem is not None:
            raise ConfigError(problem.message, problems=[problem])
        self._sizes = sizes
        self._mesh = Mesh.of(
            setup.rank, **({axis: size for axis, size in sizes.items() if size > 1} or {"data": 1})
        )
        self._loss_parallel = self.options.loss_parallel and sizes["tensor"] > 1
        if self._loss_parallel:
            self.loss = over_split_classes(setup.loss)
        self._collectives = CollectiveFacts()

    def mesh(self) -> Mesh:
        return self._mesh

    def data_shard(self) -> tuple[int, int]:
        """Replicas and shards read slices of their own; stages and tensor ranks share one."""
        mesh = self._mesh
        index = mesh.coordinate("data") * mesh.size("shard") + mesh.coordinate("shard")
        return index, mesh.size("data") * mesh.size("shard")

    def reports_loss(self) -> bool:
        return self._mesh.coordinate("tensor") == 0 and self._inner.reports_loss()

    def build(self, model_fn: Callable[[], nn.Module]) -> None:
        axes = self._axes = self._make_axes()
        own = dataclasses.replace(
            self.setup, loss=self.loss, part_batch=self.setup.part_batch // self.data_shard()[1]
        )
        self._inner: _WholeModel | _Stages = (
            _WholeModel(own, axes) if axes.stage is None else _Stages(own, axes)
        )
        self._inner.build(model_fn)
        facts: list[StrategyFacts] = [self._inner.facts]
        # A weight without dims cannot be cut: its ranks along shard sum it up by themselves.
        self._shard_sync = None if axes.shard is None else GradientSync(axes.shard.get_group())
        self._data_sync = None
        if axes.tensor is not None:
            facts.append(self._collectives)
        if axes.data is not None:
            self._data_sync = GradientSync(
                axes.data.get_group(), algorithm=self.options.sync, compress=self.options.compress
            )
            facts.append(SyncFacts(self._data_sync, " over data"))
        self.facts = HybridFacts(facts, self._collectives)

    def _make_axes(self) -> Axes:
        if self.setup.world_size == 1:
            return Axes()
        mesh = self.setup.backend.device_mesh(self._mesh, self.device.type)
        lines = {axis: mesh[axis] for axis, size in self._sizes.items() if size > 1}
        return Axes(**lines, pipelines=self._mesh.lines("stage"))

    @property
    def module(self) -> nn.Module:
        return self._inner.module

    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        split_classes = loss_parallel() if self._loss_parallel else contextlib.nullcontext()
        with self._collectives.part(last=last), split_classes:
            return self._inner.forward_backward(batch, scale, last=last)

    def sync_gradients(self) -> None:
        """From the inside out: sequence parts, tied stages, uncut weights, and last the replicas."""
        inner, axes = self._inner, self._axes
        with self.ledger.phase("communication"):
            if inner.split is not None and axes.tensor is not None:
                add_up_partial(inner.module.parameters(), inner.split.partial_gradients(), axes.tensor)
            inner.sync_gradients()
            if self._shard_sync is not None:
                uncut = [weight.grad for weight in inner.uncut if weight.grad is not None]
                self._shard_sync.sync([local_part(gradient) for gradient in uncut])
            if self._data_sync is not None:
                with self.spans.phase(0, "all-reduce"):
                    self._data_sync.sync(gradients_of(inner.module))

    def clip(self, max_norm: float) -> Tensor:
        return clip_over_ranks(
            self.module.parameters(),
            max_norm,
            world_size=self.setup.world_size,
            num_stages=self._sizes["stage"],
            owners=self._inner.stages.owners() if isinstance(self._inner, _Stages) else None,
        )

    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        """Shards gather together, so a rank whose share is all padding computes too, for nothing."""
        self._share_buffers()
        if num_valid == 0 and self._axes.shard is None:
            return self.no_sums()
        sums = self._inner.evaluate(batch, max(num_valid, 1))
        return sums if num_valid else self.no_sums()

    def settle(self) -> None:
        """Any replica may write a buffer into a checkpoint: all have the first one's."""
        self._share_buffers()

    def _share_buffers(self) -> None:
        """Replicas evaluate with the running statistics that will be saved."""
        buffers = list(self.module.buffers())
        for axis in (self._axes.shard, self._axes.data):
            if buffers and axis is not None:
                with self.ledger.phase("communication"):
                    broadcast_from_rank_0(buffers, axis.get_group())

    def weights(self) -> dict[str, Tensor]:
        """Full tensors on rank 0; the others help to put them together."""
        weights = self._inner.weights()
        return weights if self.setup.rank == 0 else {}

    def close(self) -> None:
        self._inner.close()


class _WholeModel(Strategy):
    """The whole model on every rank: split over tensor as in tensor, cut over shard as in fsdp."""

    name = "hybrid"
    options: HybridOptions

    def __init__(self, setup: Setup, axes: Axes) -> None:
        super().__init__(setup)
        self._axes = axes
        self.split: LayerSplit | None = None
        self.uncut: list[nn.Parameter] = []

    def build(self, model_fn: Callable[[], nn.Module]) -> None:
        axes, options = self._axes, self.options
        blank = self.blank_model(model_fn)
        self._module = blank.module
        if axes.tensor is not None:
            self.split = LayerSplit(
                blank.module,
                make_plan(blank.module, axes.tensor.size(), options.plan),
                axes.tensor,
                sequence_parallel=options.sequence_parallel,
                loss_parallel=options.loss_parallel,
            )
        half = self.setup.precision == "bf16"
        shard = None
        if axes.shard is not None:
            # Split layers hand on views of what was gathered; nothing here writes into them.
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
            shard = functools.partial(shard_blocks, mesh=axes.shard, reshard=options.reshard, half=half)
            self.facts = ShardFacts(
                blank.module,
                axes.shard.size(),
                parts=self.setup.accumulate,
                reshard=options.reshard,
                half=half,
                backend="gloo" if self.setup.is_rehearsal else "nccl",
                words="gather and scatter over shard",
            )
        self.uncut = fill_in_slices(blank, split=self.split, shard=shard)

    @property
    def module(self) -> nn.Module:
        return self._module

    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        for module in sharded_modules(self._module):
            module.set_requires_gradient_sync(last, recurse=False)
        return self.compute(self._module, batch, scale)

    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        sums = self.compute_heldout(self._module, batch, num_valid)
        reshard_blocks(self._module)
        return sums

    def weights(self) -> dict[str, Tensor]:
        return whole_tensors(self._module, keep=self.setup.rank == 0)


class _Stages(PipelineParallel):
    """One pipeline of the mesh, the layers of its stages split over tensor, their weights cut over shard."""

    name = "hybrid"
    options: HybridOptions

    def __init__(self, setup: Setup, axes: Axes) -> None:
        assert axes.stage is not None
        own = dataclasses.replace(setup, rank=axes.stage.get_local_rank(), world_size=axes.stage.size())
        super().__init__(own, axes.stage.get_group(), axes.pipelines)
        self._axes = axes
        self._plan: SplitPlan | None = None
        self.split: LayerSplit | None = None
        self.uncut: list[nn.Parameter] = []

    def build(self, model_fn: Callable[[], nn.Module]) -> None:
        """The plan is found while the model is whole; layers are split when other stages' are gone."""

        def planned() -> nn.Module:
            model = model_fn()
            if self._axes.tensor is not None:
                self._plan = make_plan(model, self._axes.tensor.size(), self.options.plan)
            return model

        super().build(planned)

    def _split_layers(self) -> None:
        if self._axes.tensor is not None and self._plan is not None:
            self.split = split_stages(
                self.stages,
                self._plan,
                self._axes.tensor,
                sequence_parallel=self.options.sequence_parallel,
                loss_parallel=self.options.loss_parallel,
            )

    def _shard_stages(self) -> None:
        if self._axes.shard is not None:
            require_own_modules(self.stages, "shard")
            half = self.setup.precision == "bf16"
            self.uncut = shard_stages(self.cut.model, self.runners, self._axes.shard, half=half)

    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        for runner in self.runners:
            for module in sharded_modules(runner):
                module.unshard()
        sums = super().evaluate(batch, num_valid)
        for runner in self.runners:
            reshard_blocks(runner)
        return sums
