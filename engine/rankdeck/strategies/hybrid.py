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
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import loss_parallel

from rankdeck.base.errors import ConfigError, ModelError
from rankdeck.config import mesh_sizes
from rankdeck.models.blocks import repeated_blocks
from rankdeck.parallel.collectives.broadcast import broadcast_from_rank_0
from rankdeck.parallel.collectives.counted import CountedCollectives
from rankdeck.parallel.collectives.grad_sync import GradientSync, gradients_of
from rankdeck.parallel.fsdp.blank import BlankModel
from rankdeck.parallel.fsdp.blocks import reshard_blocks, sent_bytes_per_step, shard_blocks, sharded_modules
from rankdeck.parallel.mesh import Mesh, device_mesh
from rankdeck.parallel.tensor.apply import LayerSplit, names_by_weight, tie_again
from rankdeck.parallel.tensor.gradients import add_up_partial, clip_over_ranks, whole_tensors
from rankdeck.parallel.tensor.loss import over_split_classes
from rankdeck.parallel.tensor.plan import Plan, make_plan
from rankdeck.strategies.base import (
    Batch,
    HeldoutSums,
    LossSum,
    PipelineFacts,
    Setup,
    Strategy,
    call,
    first_samples,
)
from rankdeck.strategies.pipeline import Pipeline
from rankdeck.torch_compat.dtensors import local_part


@dataclasses.dataclass
class Axes:
    """The mesh as the parts of a hybrid see it. An axis of size 1 is None."""

    sizes: Mapping[str, int]
    data: DeviceMesh | None = None
    shard: DeviceMesh | None = None
    stage: DeviceMesh | None = None
    tensor: DeviceMesh | None = None
    pipelines: list[list[int]] | None = None
    """The ranks of every pipeline of the mesh."""
    plan: Plan | None = None
    """How layers are split over tensor, once the whole model is there."""


class Hybrid(Strategy):
    name = "hybrid"
    forwards_alone = False

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        sizes = mesh_sizes.sizes_of(setup.options)
        problem = mesh_sizes.problem(setup.options, setup.world_size)
        if problem is not None:
            raise ConfigError(problem.message, problems=[problem])
        self._mesh = Mesh.of(
            setup.rank, **({axis: size for axis, size in sizes.items() if size > 1} or {"data": 1})
        )
        self._loss_parallel = bool(setup.options.get("loss_parallel")) and sizes["tensor"] > 1
        if self._loss_parallel:
            self.loss = over_split_classes(setup.loss)
        self._axes = Axes(sizes)
        self._counted = CountedCollectives()
        self._steps = 0

    def mesh(self) -> Mesh:
        return self._mesh

    def data_shard(self) -> tuple[int, int]:
        """Replicas and shards read slices of their own; stages and tensor ranks share one."""
        mesh = self._mesh
        index = mesh.coordinate("data") * mesh.size("shard") + mesh.coordinate("shard")
        return index, mesh.size("data") * mesh.size("shard")

    def reports_loss(self) -> bool:
        return self._mesh.coordinate("tensor") == 0 and self._core.reports_loss()

    def build(self, model_fn: Callable[[], nn.Module]) -> None:
        axes, options = self._axes, self.setup.options
        if self.setup.world_size > 1:
            whole = device_mesh(self._mesh, self.device.type)
            for axis, size in axes.sizes.items():
                if size > 1:
                    setattr(axes, axis, whole[axis])
            axes.pipelines = self._mesh.lines("stage")
        inner = dataclasses.replace(
            self.setup, loss=self.loss, part_batch=self.setup.part_batch // self.data_shard()[1]
        )
        self._core: _Whole | _Staged = _Whole(inner, axes) if axes.stage is None else _Staged(inner, axes)
        self._core.build(model_fn)
        self._data_sync = None
        if axes.data is not None:
            self._data_sync = GradientSync(
                axes.data.get_group(),
                algorithm=options.get("sync", "native"),
                compress=options.get("compress", "none"),
            )
        # A weight without dims cannot be cut: its ranks along shard sum it up by themselves.
        self._shard_sync = None if axes.shard is None else GradientSync(axes.shard.get_group())

    @property
    def module(self) -> nn.Module:
        return self._core.module

    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        split_classes = loss_parallel() if self._loss_parallel else contextlib.nullcontext()
        counting = self._counted if self._steps == 1 else contextlib.nullcontext()
        with counting, split_classes:
            found = self._core.forward_backward(batch, scale, last=last)
        self._steps += last
        return found

    def sync_gradients(self) -> None:
        """From the inside out: sequence parts, tied stages, uncut weights, and last the replicas."""
        core, axes = self._core, self._axes
        with self.phase("communication"):
            if axes.tensor is not None:
                add_up_partial(core.module.parameters(), core.split_gradients(), axes.tensor)
            core.sync_gradients()
            if self._shard_sync is not None:
                uncut = [weight.grad for weight in core.uncut if weight.grad is not None]
                self._shard_sync.sync([local_part(gradient) for gradient in uncut])
            if self._data_sync is not None:
                with self.spans.phase(0, "all-reduce"):
                    self._data_sync.sync(gradients_of(core.module))

    def clip(self, max_norm: float) -> Tensor:
        return clip_over_ranks(
            self.module.parameters(),
            max_norm,
            world_size=self.setup.world_size,
            num_stages=self._axes.sizes["stage"],
            owners=self._core.owners(),
        )

    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        """Shards gather together, so a rank whose share is all padding computes too, for nothing."""
        nothing = HeldoutSums(0.0, 0.0, None if self.loss.correct is None else 0.0)
        self._share_buffers()
        if num_valid == 0 and self._axes.shard is None:
            return nothing
        found = self._core.evaluate(batch, max(num_valid, 1))
        return found if num_valid else nothing

    def settle(self) -> None:
        """Any replica may write a buffer into a checkpoint: all have the first one's."""
        self._share_buffers()

    def _share_buffers(self) -> None:
        """Replicas evaluate with the running statistics that will be saved."""
        buffers = list(self.module.buffers())
        for axis in (self._axes.shard, self._axes.data):
            if buffers and axis is not None:
                with self.phase("communication"):
                    broadcast_from_rank_0(buffers, axis.get_group())

    def sent_bytes_per_step(self) -> tuple[str, int, bool] | None:
        """What every axis sends, added up; by formula unless all of it was counted."""
        if self._steps < 2:
            return None
        parts = [self._core.sent_bytes_per_step()]
        if self._axes.tensor is not None:
            parts.append(("sums inside layers", self._counted.sent_bytes, False))
        if self._data_sync is not None:
            sync = self._data_sync
            parts.append((f"{sync.describe()} over data", sync.sent_bytes, sync.is_measured))
        found = [part for part in parts if part is not None]
        if not found:
            return None
        return (
            "; ".join(name for name, _, _ in found),
            sum(num_bytes for _, num_bytes, _ in found),
            all(measured for _, _, measured in found),
        )

    def pipeline_facts(self) -> PipelineFacts | None:
        return self._core.pipeline_facts()

    def weights(self) -> dict[str, Tensor]:
        """Full tensors on rank 0; the others help to put them together."""
        found = self._core.weights()
        return found if self.setup.rank == 0 else {}

    def close(self) -> None:
        self._core.close()


class _Whole(Strategy):
    """The whole model on every rank, its layers split over tensor and its weights cut over shard."""

    name = "hybrid"

    def __init__(self, setup: Setup, axes: Axes) -> None:
        super().__init__(setup)
        self._axes = axes
        self._split: LayerSplit | None = None
        self._half = setup.precision == "bf16"
        self._reshard = bool(setup.options.get("reshard", True))
        self._parts = 0
        self._parts_per_step = 1
        self.uncut: list[nn.Parameter] = []

    def build(self, model_fn: Callable[[], nn.Module]) -> None:
        """Block by block: rank 0's weights to all ranks, split over tensor, cut over shard."""
        setup, axes = self.setup, self._axes
        with contextlib.nullcontext() if setup.ledger is None else setup.ledger.paused():
            dtype = setup.dtype if setup.precision == "fp64" else None
            blank = BlankModel(model_fn, rank=setup.rank, device=self.device, dtype=dtype)
        self._module = blank.module
        if axes.tensor is not None:
            plan = make_plan(blank.module, axes.sizes["tensor"], setup.options.get("plan"))
            self._split = _layer_split(blank.module, plan, axes.tensor, setup.options)

        def prepare(part: nn.Module) -> None:
            blank.fill(part)
            if self._split is not None:
                self._split.split(part)

        if axes.shard is not None:
            # Split layers hand on views of what was gathered; nothing here writes into them.
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
            self.uncut = shard_blocks(
                blank.module, axes.shard, reshard=self._reshard, half=self._half, prepare=prepare
            )
        else:
            for part in (*repeated_blocks(blank.module), blank.module):
                prepare(part)
        if self._split is not None:
            self._split.finish()

    @property
    def module(self) -> nn.Module:
        return self._module

    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        inputs, targets = self.to_device(batch)
        for module in sharded_modules(self._module):
            module.set_requires_gradient_sync(last, recurse=False)
        with self.autocast():
            with self.spans.phase(0, "forward"):
                outputs = call(self._module, inputs)
            with self.spans.phase(0, "loss"):
                total, count = self.loss.function(outputs, targets)
                del outputs
        with self.spans.phase(0, "backward"):
            (total * scale).backward()
        self._parts += 1
        if last:
            self._parts_per_step, self._parts = self._parts, 0
        return LossSum(total.detach(), count)

    def split_gradients(self) -> list[Tensor]:
        return [] if self._split is None else self._split.partial_gradients()

    def owners(self) -> dict[nn.Parameter, int]:
        return {}

    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        inputs, targets = self.to_device(first_samples(batch, num_valid))
        with self.evaluating():
            found = self.heldout_sums(call(self._module, inputs), targets)
        reshard_blocks(self._module)
        return found

    def sent_bytes_per_step(self) -> tuple[str, int, bool] | None:
        if self._axes.shard is None:
            return None
        num_bytes = sent_bytes_per_step(
            self._module,
            self._axes.sizes["shard"],
            parts=self._parts_per_step,
            reshard=self._reshard,
            half=self._half,
            backend="gloo" if self.setup.is_rehearsal else "nccl",
        )
        return "gather and scatter over shard", num_bytes, False

    def weights(self) -> dict[str, Tensor]:
        return whole_tensors(self._module, keep=self.setup.rank == 0)


class _Staged(Pipeline):
    """One pipeline of the mesh, the layers of its stages split over tensor, their weights cut over shard."""

    name = "hybrid"

    def __init__(self, setup: Setup, axes: Axes) -> None:
        assert axes.stage is not None
        own = dataclasses.replace(setup, rank=axes.stage.get_local_rank(), world_size=axes.sizes["stage"])
        super().__init__(own, axes.stage.get_group(), axes.pipelines)
        self._axes = axes
        self._split: LayerSplit | None = None
        self.uncut: list[nn.Parameter] = []

    def build(self, model_fn: Callable[[], nn.Module]) -> None:
        """The plan is found while the model is whole; layers are split when other stages' are gone."""

        def planned() -> nn.Module:
            model = model_fn()
            if self._axes.tensor is not None:
                given = self.setup.options.get("plan")
                self._axes.plan = make_plan(model, self._axes.sizes["tensor"], given)
            return model

        super().build(planned)

    def _split_layers(self) -> None:
        axes, cut = self._axes, self._cut
        if axes.tensor is None:
            return
        assert axes.plan is not None
        self._require_own_modules("tensor")
        stages = [set(cut.stages[stage].modules()) for stage in self._relay.own]
        plan = axes.plan.inside(cut.model, stages)
        if not plan.held_by(cut.model).layers and (torn := axes.plan.held_by(cut.model).layers):
            raise ModelError(
                f"{torn[0].name} would be split over tensor together with a layer of another stage.",
                path="strategy.tensor",
                advice="Give strategy.cuts that keep such layers in one stage, or use stage or tensor alone.",
            )
        rows = [[name for name in plan.blocks if name in cut.units[stage]] for stage in self._relay.own]
        if self.setup.options.get("sequence_parallel") and sum(map(len, rows)) < len(
            axes.plan.held_by(cut.model).blocks
        ):
            raise ModelError(
                "strategy.sequence_parallel needs stages of whole transformer blocks, and the model was cut "
                "inside one.",
                path="strategy.sequence_parallel",
                advice="Leave it out, or give strategy.cuts that begin with blocks.",
            )
        self._split = _layer_split(cut.model, plan, axes.tensor, self.setup.options)
        self._split.split(cut.model)
        self._split.finish(rows)

    def _shard_stages(self) -> None:
        axes = self._axes
        if axes.shard is None:
            return
        self._require_own_modules("shard")
        ties = names_by_weight(self._cut.model)
        seen: set[nn.Parameter] = set()
        for runner in self._runners:
            own = set(runner.parameters())
            if own & seen:
                raise ModelError(
                    "A tied weight lies in two stages of one rank, which shard cannot cut twice.",
                    path="strategy.schedule",
                    advice="Use schedule = 1f1b or gpipe, shard = 1, or a model whose weights are not tied.",
                )
            seen |= own
            # What is gathered stays until the step's last backward: microbatches would gather it again.
            half = self.setup.precision == "bf16"
            self.uncut += shard_blocks(runner, axes.shard, reshard=False, half=half)
        tie_again(self._cut.model, ties, {name for name, _ in _names_inside(self._cut.model, self._runners)})

    def _require_own_modules(self, axis: str) -> None:
        """Raises: ModelError where a stage runs copies of the model's modules (it was traced)."""
        modules = set(self._cut.model.modules())
        for stage in self._relay.own:
            for module in self._cut.stages[stage].modules():
                if any(True for _ in module.parameters(recurse=False)) and module not in modules:
                    raise ModelError(
                        f"The model was cut by tracing, and {axis} needs the model's own modules.",
                        path=f"strategy.{axis}",
                        advice=f"Give the model a method pipeline_units(), or set {axis} = 1.",
                    )

    def split_gradients(self) -> list[Tensor]:
        return [] if self._split is None else self._split.partial_gradients()

    def owners(self) -> dict[nn.Parameter, int]:
        return {parameter: group.size() for parameter, group in self._relay.tied()}

    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        for runner in self._runners:
            for module in sharded_modules(runner):
                module.unshard()
        found = super().evaluate(batch, num_valid)
        for runner in self._runners:
            reshard_blocks(runner)
        return found


def _layer_split(model: nn.Module, plan: Plan, mesh: DeviceMesh, options: Mapping[str, Any]) -> LayerSplit:
    return LayerSplit(
        model,
        plan,
        mesh,
        sequence_parallel=bool(options.get("sequence_parallel")),
        loss_parallel=bool(options.get("loss_parallel")),
    )


def _names_inside(model: nn.Module, runners: list[Any]) -> list[tuple[str, nn.Parameter]]:
    """The names of weights whose modules a rank's stages run."""
    inside = {module for runner in runners for module in runner.modules()}
    return [
        (f"{prefix}.{name}" if prefix else name, parameter)
        for prefix, module in model.named_modules()
        if module in inside
        for name, parameter in module.named_parameters(recurse=False)
    ]
