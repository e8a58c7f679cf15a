"""A plan carried out: weights become this rank's slices, and hooks send what the slices lack.

    column   input whole on every rank, weight cut by outputs; backward adds the input's gradient up
    row      input is the columns' slice, weight cut by inputs; forward adds the outputs up

Two sums per attention and two per feed-forward: one in forward, one in backward, each of (B, T, C). With
sequence_parallel the stream between the layers is cut along T instead of repeated, and each sum becomes a
reduce-scatter with an all-gather on the other side: the same bytes, 1/n of the activations.

Ties are cut by torch when it replaces weights: they are tied again here. Read plan.py before, gradients.py
after. Source: torch.distributed.tensor.parallel; Korthikanti et al., "Reducing Activation Recomputation"
(2022), for sequence_parallel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from rankdeck.errors import ModelError
from rankdeck.split.plan import Plan, SplitLayer

SEQUENCE = 1
"""The dim of hidden states (B, T, C) that sequence_parallel cuts."""


@dataclass
class Split:
    """What was done to a module. `partial` are whole weights whose gradient is a part on each rank."""

    mesh: DeviceMesh
    partial: list[nn.Parameter] = field(default_factory=list)


def split_layers(
    module: nn.Module,
    plan: Plan,
    mesh: DeviceMesh,
    *,
    sequence_parallel: bool = False,
    loss_parallel: bool = False,
) -> Split:
    """Cut the weights of a module, which holds the whole model or some of it under the model's names.

    All ranks of the mesh hold equal weights before (`broadcast_weights`).

    Raises:
        ModelError: the plan and an option do not go together, or a tied weight cannot be tied again.
    """
    plan = plan.of(module)
    names = _names_by_weight(module)
    for layer in plan.layers:
        part = module.get_submodule(layer.name)
        style = _style(part, layer, plan, sequence_parallel=sequence_parallel, loss_parallel=loss_parallel)
        parallelize_module(module, mesh, {layer.name: style}, src_data_rank=None)
    _tie_again(module, names)
    for count in plan.heads:
        setattr(module.get_submodule(count.module), count.attribute, count.count)
    for name in plan.entries:
        inside = sequence_parallel and _lies_in_any(f"{name}.", plan.blocks)
        _enter_split(module.get_submodule(name), mesh, Shard(SEQUENCE) if inside else Replicate())
    if not sequence_parallel or not plan.blocks:
        return Split(mesh)
    _bound_sequence(module, plan.blocks, mesh)
    return Split(mesh, _whole_weights(module, plan.blocks))


def require_options(plan: Plan, *, sequence_parallel: bool, loss_parallel: bool) -> None:
    """Raises: ModelError where the plan of a whole model cannot carry an option."""
    if sequence_parallel and not plan.blocks:
        why = "the plan is given by hand" if not plan.found else "the model has no transformer blocks"
        raise ModelError(
            f"strategy.sequence_parallel cuts the stream between transformer blocks, and {why}.",
            path="strategy.sequence_parallel",
            advice="Leave it out, or leave strategy.plan out.",
        )
    if loss_parallel and plan.output is None:
        raise ModelError(
            "strategy.loss_parallel needs an output layer whose classes are split, and the plan has none.",
            path="strategy.loss_parallel",
            advice="Leave it out, or give the model a vocabulary that divides by the ranks.",
        )


def broadcast_weights(module: nn.Module) -> None:
    """Rank 0's weights and buffers for all ranks, whatever the others built."""
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor, src=0)


def _style(
    module: nn.Module, layer: SplitLayer, plan: Plan, *, sequence_parallel: bool, loss_parallel: bool
) -> ParallelStyle:
    """How torch cuts one layer, and what it does to the layer's input and output."""
    in_sequence = sequence_parallel and _lies_in_any(layer.name, plan.blocks)
    stream = Shard(SEQUENCE) if in_sequence else Replicate()
    if isinstance(module, nn.Embedding):
        table = RowwiseParallel if layer.kind == "row" else ColwiseParallel
        return table(input_layouts=Replicate(), output_layouts=Replicate())
    if layer.kind == "row":
        return RowwiseParallel(output_layouts=stream)
    if layer.name == plan.output and loss_parallel:
        return ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    if layer.gathers:
        return ColwiseParallel(output_layouts=Replicate())
    # Behind an entry the input arrives whole already.
    has_entry = layer.name.rpartition(".")[0] in plan.entries
    return ColwiseParallel(input_layouts=Replicate() if has_entry else stream)


def _lies_in_any(name: str, blocks: tuple[str, ...]) -> bool:
    return any(name.startswith(f"{block}.") for block in blocks)


def _names_by_weight(module: nn.Module) -> list[list[str]]:
    """The names of each weight that has several."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return [own for own in names.values() if len(own) > 1]


def _tie_again(module: nn.Module, ties: list[list[str]]) -> None:
    """One weight under all its names again.

    Raises:
        ModelError: its names were split in different ways.
    """
    for first, *others in ties:
        kept = module.get_parameter(first)
        for name in others:
            owner, _, attribute = name.rpartition(".")
            here = module.get_parameter(name)
            if _placements(here) != _placements(kept):
                raise ModelError(
                    f"{first} and {name} are one weight, but the plan splits them in different ways.",
                    path="strategy.plan",
                    advice='An embedding as "row" goes with its output layer as "column".',
                )
            setattr(module.get_submodule(owner), attribute, kept)


def _placements(tensor: Tensor) -> Any:
    return tensor.placements if isinstance(tensor, DTensor) else None


def _enter_split(module: nn.Module, mesh: DeviceMesh, stream: Replicate | Shard) -> None:
    """Make the input of several columns a DTensor once, so that its gradient is added up once."""

    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def whole(hidden: Tensor) -> Tensor:
            return DTensor.from_local(hidden, mesh, [stream], run_check=False).redistribute(
                placements=[Replicate()]
            )

        return _with_hidden(args, kwargs, whole)

    module.register_forward_pre_hook(enter, with_kwargs=True)


def _bound_sequence(module: nn.Module, blocks: tuple[str, ...], mesh: DeviceMesh) -> None:
    """Cut the stream along T before the first block, and put it together behind the last one."""
    num_ranks = mesh.size()

    def cut(hidden: Tensor) -> Tensor:
        length = hidden.shape[SEQUENCE]
        if hidden.ndim != 3 or length % num_ranks:
            raise ModelError(
                f"strategy.sequence_parallel cannot cut {tuple(hidden.shape)} over {num_ranks} ranks.",
                path="strategy.sequence_parallel",
                advice=f"Use a context that divides by {num_ranks}.",
            )
        whole = DTensor.from_local(hidden, mesh, [Replicate()], run_check=False)
        return whole.redistribute(placements=[Shard(SEQUENCE)]).to_local()

    def put_together(hidden: Tensor) -> Tensor:
        part = DTensor.from_local(hidden, mesh, [Shard(SEQUENCE)], run_check=False)
        return part.redistribute(placements=[Replicate()]).to_local()

    module.get_submodule(blocks[0]).register_forward_pre_hook(
        lambda _, args, kwargs: _with_hidden(args, kwargs, cut), with_kwargs=True
    )
    module.get_submodule(blocks[-1]).register_forward_hook(
        lambda _, args, output: _first_changed(output, put_together)
    )


def _with_hidden(
    args: tuple[Any, ...], kwargs: dict[str, Any], change: Callable[[Tensor], Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with hidden states changed: the first positional one, else those named so."""
    if args:
        return (change(args[0]), *args[1:]), kwargs
    name = "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs))
    return args, {**kwargs, name: change(kwargs[name])}


def _first_changed(output: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(output, tuple):
        return (change(output[0]), *output[1:])
    return change(output)


def _whole_weights(module: nn.Module, blocks: tuple[str, ...]) -> list[nn.Parameter]:
    """Weights between the cut and the putting together that every rank holds whole (norms)."""
    found = [
        parameter
        for block in blocks
        for parameter in module.get_submodule(block).parameters()
        if not isinstance(parameter, DTensor)
    ]
    return list(dict.fromkeys(found))
