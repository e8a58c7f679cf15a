"""Apply a plan: weights become this rank's slices, and hooks add the communication.

    column-wise   full input on every rank, weight cut by outputs; backward sums the input's gradient
    row-wise      sliced input from column-wise layers, weight cut by inputs; forward sums the outputs

Each attention layer and feed-forward block needs two sums of (B, T, C), one per forward and one per backward
pass. With sequence_parallel, hidden states between layers are cut along T, not replicated, and each sum
becomes a reduce-scatter plus an all-gather, which together send as many bytes; activations shrink to 1/n.

torch unties tied weights when it replaces them; this module ties them again. Read plan.py first, gradients.py
next. Source: torch.distributed.tensor.parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import phrase
from rankdeck.config.catalog import HybridOptions, TensorOptions
from rankdeck.parallel.tensor.gradients import apply_gradient_hooks, is_close
from rankdeck.parallel.tensor.split_plan import SplitLayer, SplitPlan, tied_names
from rankdeck.torch_compat.dispatch import Kwargs
from rankdeck.torch_compat.fake_tensors import active_fake_mode
from rankdeck.torch_compat.modules import make_contiguous
from rankdeck.torch_compat.weight_metadata import WeightMetadata, metadata_by_name, restore_metadata


class LayerSplit:
    """The layers of one model, split across the ranks of `mesh`, part by part.

    Create it before anything is split, with the plan of the whole model; call `split` for each part, then
    `finish` once. Parts may be any modules of the model. If this rank holds only some modules,
    `local_modules` lists them all, `stage_plan` is the part of the plan that is entirely in one pipeline
    stage, and each item of `block_runs` lists blocks that this rank computes one after another.

    Raises:
        ModelError: the plan and an option are incompatible, or the plan splits one weight in two ways.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: SplitPlan,
        mesh: DeviceMesh,
        options: TensorOptions | HybridOptions,
        *,
        local_modules: Collection[nn.Module] | None = None,
        stage_plan: SplitPlan | None = None,
        block_runs: Sequence[Sequence[str]] | None = None,
    ) -> None:
        _require_options(plan, options)  # for the full plan: a rank may have no block among its stages
        self.mesh = mesh
        self._model = model
        self._plan = plan = (stage_plan or plan).restrict_to_model(model)
        self._options = options
        self._ties = tied_names(model)
        _require_equal_ties(model, self._ties, plan)
        self._local_modules = set(model.modules()) if local_modules is None else local_modules
        # Weights of other ranks' modules are here only if they are tied to this rank's, which they follow.
        self._pending_layers = [
            layer for layer in plan.layers if model.get_submodule(layer.name) in self._local_modules
        ]
        self._block_runs = [plan.blocks] if block_runs is None else block_runs
        self._partial_names: list[str] = []

    def split(self, submodule: nn.Module, fill: Callable[[nn.Module], None] = lambda layer: None) -> None:
        """Split the layers of the plan that are inside `submodule`, a part of the model.

        `fill(layer)` is called before a layer is split; when it returns, the layer's weights must be on the
        device, with equal values on all ranks.
        """
        inside = set(submodule.modules())
        chosen = [layer for layer in self._pending_layers if self._model.get_submodule(layer.name) in inside]
        for layer in chosen:
            module = self._model.get_submodule(layer.name)
            fill(module)
            make_contiguous(module.parameters())  # a slice would keep its memory order
            style = self._parallel_style(module, layer)
            marks = metadata_by_name(module)
            parallelize_module(self._model, self.mesh, {layer.name: style}, src_data_rank=None)
            for name, of_weight in marks.items():
                _require_hooks_take_shards(f"{layer.name}.{name}", module.get_parameter(name), of_weight)
            restore_metadata(module, marks)
            self._pending_layers.remove(layer)
        if not self._pending_layers:
            self._retie()

    def finish(self) -> None:
        """Adapt the modules' own head counts, and register the hooks between split layers."""
        for count in self._plan.heads:
            setattr(self._model.get_submodule(count.module), count.attribute, count.count)
        for name in self._plan.input_modules:
            in_sequence = self._is_sequence_parallel(f"{name}.")
            module = self._model.get_submodule(name)
            _gather_input(module, self.mesh, Shard(SEQUENCE_DIM) if in_sequence else Replicate())
            if in_sequence:
                require_hidden_states(module, name)
        for row in self._block_runs:
            if row and self._options.sequence_parallel:
                shard_sequence(self._model, row, self.mesh)
                self._partial_names += [name for block in row for name in self._replicated_weights(block)]

    def partial_gradients(self) -> list[Tensor]:
        """Return those gradients of replicated weights that cover only this rank's slice of the sequence."""
        gradients = [self._model.get_parameter(name).grad for name in self._partial_names]
        return [gradient for gradient in gradients if gradient is not None]

    def _is_sequence_parallel(self, name: str) -> bool:
        return self._options.sequence_parallel and any(
            name.startswith(f"{block}.") for block in self._plan.blocks
        )

    def _parallel_style(self, module: nn.Module, layer: SplitLayer) -> ParallelStyle:
        """Return the ParallelStyle that cuts one layer's weights and sets its input and output layouts."""
        stream = Shard(SEQUENCE_DIM) if self._is_sequence_parallel(layer.name) else Replicate()
        if isinstance(module, nn.Embedding):
            if layer.kind == "column" and not layer.gathers_output:
                return ColwiseParallel(input_layouts=Replicate())
            table = RowwiseParallel if layer.kind == "row" else ColwiseParallel
            return table(input_layouts=Replicate(), output_layouts=Replicate())
        if layer.kind == "row":
            return RowwiseParallel(output_layouts=stream)
        if layer.name == self._plan.output and self._options.loss_parallel:
            return ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
        if layer.gathers_output:
            return ColwiseParallel(output_layouts=Replicate())
        # A hook on the parent module has already gathered the input.
        has_entry = layer.name.rpartition(".")[0] in self._plan.input_modules
        if isinstance(stream, Shard) and not has_entry:
            require_hidden_states(module, layer.name)
        return ColwiseParallel(input_layouts=Replicate() if has_entry else stream)

    def _replicated_weights(self, block: str) -> list[str]:
        """List names of a block's weights that the plan does not split (norms), even if FSDP shards them."""
        # The plan decides and not the tensor's type: once weights are sharded too, norms are DTensors like
        # all others.
        split = {layer.name for layer in self._plan.layers}
        names = [f"{block}.{name}" for name, _ in self._model.get_submodule(block).named_parameters()]
        return [name for name in names if name.rpartition(".")[0] not in split]

    def _retie(self) -> None:
        retie_weights(self._model, self._ties, self._local_modules)


def _require_options(plan: SplitPlan, options: TensorOptions | HybridOptions) -> None:
    if options.sequence_parallel and not plan.blocks:
        raise ModelError(
            phrase(
                "strategy.sequence_parallel needs transformer blocks, which are not detected "
                "when strategy.plan is set."
            )
            if plan.is_user_plan
            else phrase("strategy.sequence_parallel needs transformer blocks, but the model has none."),
            path="strategy.sequence_parallel",
            advice=phrase("Leave out strategy.sequence_parallel or strategy.plan."),
        )
    if options.sequence_parallel and len({block.rpartition(".")[0] for block in plan.blocks}) > 1:
        raise ModelError(
            phrase(
                "strategy.sequence_parallel supports one stack of transformer blocks, but the "
                "model has several ({first}, {last}).",
                first=plan.blocks[0],
                last=plan.blocks[-1],
            ),
            path="strategy.sequence_parallel",
            advice=phrase("Leave strategy.sequence_parallel out."),
        )
    if options.sequence_parallel and (alone := _unsplit_attention(plan)):
        raise ModelError(
            phrase(
                "strategy.sequence_parallel gives each rank a part of the tokens, but {alone} "
                "belongs to an attention module that tensor parallelism cannot split.",
                alone=alone,
            ),
            path="strategy.sequence_parallel",
            advice=phrase("Leave strategy.sequence_parallel out."),
        )
    if options.sequence_parallel and (bare := _block_without_modules(plan)):
        raise ModelError(
            phrase(
                "strategy.sequence_parallel needs attention in a separate module, but {bare} "
                "computes it directly.",
                bare=bare,
            ),
            path="strategy.sequence_parallel",
            advice=phrase(
                "Move query, key, value and output into a separate module, or leave out "
                "strategy.sequence_parallel."
            ),
        )
    if options.loss_parallel and plan.output is None:
        raise ModelError(
            phrase("strategy.loss_parallel needs an output layer split by class, but the plan has none."),
            path="strategy.loss_parallel",
            advice=phrase(
                "Leave strategy.loss_parallel out, or use a vocabulary size divisible by the number of ranks."
            ),
        )


def _unsplit_attention(plan: SplitPlan) -> str | None:
    """Return an unsplit attention layer's name, else one of a block missing in `plan.blocks`, else None."""
    numbers = [int(name.rpartition(".")[2]) for name in plan.blocks if name.rpartition(".")[2].isdecimal()]
    row = plan.blocks[0].rpartition(".")[0] if plan.blocks else ""
    missing = sorted(set(range(min(numbers, default=0), max(numbers, default=-1) + 1)) - set(numbers))
    return next(iter(plan.unsplit_attentions), None) or next((f"{row}.{number}" for number in missing), None)


def _block_without_modules(plan: SplitPlan) -> str | None:
    """Return the name of a block that has split layers as direct children, or None.

    With sequence_parallel, the block's code would get one rank's tokens, but its layers gather all tokens.
    """
    owners = {layer.name.rpartition(".")[0] for layer in plan.layers}
    return next((block for block in plan.blocks if block in owners), None)


def _require_equal_ties(model: nn.Module, ties: Sequence[Sequence[str]], plan: SplitPlan) -> None:
    kinds = {model.get_submodule(layer.name): layer.kind for layer in plan.layers}

    def way(name: str) -> tuple[str, bool] | None:
        """Return a weight's name in its layer, and whether its dim 0 is split; None for an unsplit layer."""
        module, attribute = _owner_and_name(model, name)
        if module not in kinds:
            return None
        return attribute, (kinds[module] == "row") == isinstance(module, nn.Embedding)

    for first, *others in ties:
        for name in others:
            if way(name) != way(first):
                raise ModelError(
                    phrase(
                        "{first} and {name} share one weight, but the plan splits them differently.",
                        first=first,
                        name=name,
                    ),
                    path="strategy.plan",
                    advice=phrase('If an embedding is "row", its tied output layer must be "column".'),
                )


def retie_weights(model: nn.Module, ties: Sequence[Sequence[str]], modules: Collection[nn.Module]) -> None:
    """Make all tied names refer to one weight again after layers were replaced.

    `modules` are the modules whose weights may have been replaced; the other tied modules get the new weight.
    """
    for names in ties:
        owners = [_owner_and_name(model, name) for name in names]
        replaced = [getattr(module, attribute) for module, attribute in owners if module in modules]
        for module, attribute in owners if replaced else ():
            setattr(module, attribute, replaced[0])


def _owner_and_name(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    owner, _, attribute = name.rpartition(".")
    return model.get_submodule(owner), attribute


def _gather_input(module: nn.Module, mesh: DeviceMesh, stream: Replicate | Shard) -> None:
    """Make a module gather the input of its column-wise layers once, and sum that input's gradient once."""

    def gather(hidden: Tensor) -> Tensor:
        local_hidden = DTensor.from_local(hidden, mesh, [stream], run_check=False)
        return local_hidden.redistribute(placements=[Replicate()])

    module.register_forward_pre_hook(
        lambda _, args, kwargs: map_hidden_states(args, kwargs, gather), with_kwargs=True
    )


# sequence_parallel: between the first and the last block of a row, each rank holds its slice of the tokens.
#     (B, T, C) full -> cut along T -> block, block, ... -> gather -> (B, T, C) full
# Inside a block, attention and feed-forward gather the tokens at their input and scatter their sums at their
# row; norms, dropout and the residual stream between them work on 1/n of the tokens. Weights of norms stay
# replicated, and their gradients are summed over the ranks (gradients.py). Source: Korthikanti et al.,
# "Reducing Activation Recomputation in Large Transformer Models" (2022).

SEQUENCE_DIM = 1
"""Index of the dim T of hidden states (B, T, C), which sequence parallelism cuts."""


def shard_sequence(model: nn.Module, blocks: Sequence[str], mesh: DeviceMesh) -> None:
    """Add hooks that cut hidden states along T before the first block and gather them after the last."""
    num_ranks = mesh.size()

    def cut(hidden: Tensor) -> Tensor:
        if hidden.ndim != 3 or hidden.shape[SEQUENCE_DIM] % num_ranks:
            raise ModelError(
                phrase(
                    "strategy.sequence_parallel cannot split hidden states of shape {shape} "
                    "over {num_ranks} ranks.",
                    shape=tuple(hidden.shape),
                    num_ranks=num_ranks,
                ),
                path="strategy.sequence_parallel",
                advice=phrase("Use a context length that is divisible by {num_ranks}.", num_ranks=num_ranks),
            )
        replicated = DTensor.from_local(hidden, mesh, [Replicate()], run_check=False)
        return replicated.redistribute(placements=[Shard(SEQUENCE_DIM)]).to_local()

    def put_together(hidden: Tensor) -> Tensor:
        shard = DTensor.from_local(hidden, mesh, [Shard(SEQUENCE_DIM)], run_check=False)
        # Cloned, because a pipeline stage cannot send a view.
        return shard.redistribute(placements=[Replicate()]).to_local().clone()

    model.get_submodule(blocks[0]).register_forward_pre_hook(
        lambda _, args, kwargs: map_hidden_states(args, kwargs, cut), with_kwargs=True
    )
    model.get_submodule(blocks[-1]).register_forward_hook(
        lambda _, args, output: _map_first_output(output, put_together)
    )


def require_hidden_states(module: nn.Module, name: str) -> None:
    """Make a split module inside a block require hidden states (B, T, C) as its input.

    Raises: ModelError in a later forward pass if the input is a selection of tokens, which differs per rank.
    """

    def require(hidden: Tensor) -> Tensor:
        if hidden.ndim != 3:
            raise ModelError(
                phrase(
                    "strategy.sequence_parallel gives each rank a part of the tokens, but "
                    "{name} receives a tensor of shape {shape} without a sequence dim. It may "
                    "contain tokens that a router selected.",
                    name=name,
                    shape=tuple(hidden.shape),
                ),
                path="strategy.sequence_parallel",
                advice=phrase("Leave strategy.sequence_parallel out."),
            )
        return hidden

    module.register_forward_pre_hook(
        lambda _, args, kwargs: map_hidden_states(args, kwargs, require), with_kwargs=True, prepend=True
    )


def map_hidden_states(
    args: tuple[Any, ...], kwargs: Kwargs, change: Callable[[Tensor], Tensor]
) -> tuple[tuple[Any, ...], Kwargs]:
    """Return the arguments with `change` applied to the hidden states (the first or a named argument)."""
    if args:
        return (change(args[0]), *args[1:]), kwargs
    name = "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs))
    return args, {**kwargs, name: change(kwargs[name])}


def _map_first_output(output: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(output, tuple):
        return (change(output[0]), *output[1:])
    return change(output)


def _require_hooks_take_shards(name: str, weight: nn.Parameter, marks: WeightMetadata) -> None:
    """Check that a weight's gradient hooks give the same result on a shard as on the full gradient.

    Raises: ModelError if the results differ, or if the hooks do not accept or return a gradient.
    """
    data = weight.detach()
    if not marks.has_hooks or not isinstance(data, DTensor) or active_fake_mode() is not None:
        return
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(data.shape, generator=generator).to(data.to_local().device, data.dtype)
    full_result = apply_gradient_hooks(marks, torch.zeros_like(gradient), gradient)
    try:
        cut = distribute_tensor(gradient, data.device_mesh, data.placements, src_data_rank=None)
        ours = apply_gradient_hooks(marks, torch.zeros_like(cut), cut)
    except RuntimeError:  # torch raises it for a slice next to a tensor of another kind or size
        ours = None
    if ours is not None and full_result is not None:
        theirs = distribute_tensor(full_result, data.device_mesh, data.placements, src_data_rank=None)
        assert isinstance(ours, DTensor)
        if is_close(ours.redistribute(placements=data.placements).to_local(), theirs.to_local()):
            return
    raise ModelError(
        phrase(
            "A gradient hook of {name} needs the full gradient, but each rank holds only a part.", name=name
        ),
        code="gradient-hook",
        path="strategy.use",
        advice=phrase(
            "Use ddp or fsdp, which pass the full gradient to the hook, or leave the layer out of the plan."
        ),
        changes={"strategy.use": "ddp"},
    )
