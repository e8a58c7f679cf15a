"""Data types of a plan: which layers are split, and how. A plan is made before any weight is split.

Read plan.py for how a plan is made, apply.py for how it is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rankdeck.base.phrases import Phrase
from rankdeck.parallel.tensor.attention import HeadCount
from rankdeck.torch_compat.dispatch import Kwargs
from rankdeck.torch_compat.modules import own_parameters, parameter_names

Kind = Literal["column", "row"]


@dataclass(frozen=True)
class SplitLayer:
    """A split Linear or Embedding. `gathers_output` means that the layer is column-wise and its outputs are
    gathered after it."""

    name: str
    kind: Kind
    gathers_output: bool = False


@dataclass(frozen=True)
class SplitPlan:
    """Plan for splitting a model across `num_ranks` ranks.

    `input_modules` are modules whose input goes to several column-wise layers; the gradient of that input is
    summed once. `blocks` are the transformer blocks in order; `output` names the output layer if it is split
    by classes, and `unsplit_attentions` names the last layer of each unsplit attention layer.
    """

    num_ranks: int
    layers: tuple[SplitLayer, ...]
    input_modules: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    heads: tuple[HeadCount, ...] = ()
    output: str | None = None
    is_user_plan: bool = False
    unsplit_attentions: tuple[str, ...] = ()

    def restrict_to_model(self, model: nn.Module) -> SplitPlan:
        """Return the part of the plan that applies to `model`, which lacks the weights of other ranks."""
        owner_names = {name.rpartition(".")[0] for name, _ in model.named_parameters(remove_duplicate=False)}
        parents = {
            ".".join(name.split(".")[:end]) for name in owner_names for end in range(1, name.count(".") + 2)
        }
        return self._filter(
            [layer for layer in self.layers if layer.name in owner_names], lambda name: name in parents
        )

    def restrict_to_stages(self, model: nn.Module, stages: Sequence[Collection[nn.Module]]) -> SplitPlan:
        """Return the part of the plan in which each group of layers is entirely in one of the stages.

        Column-wise layers and the row-wise layer after them are split together or not at all: the activation
        between them is a slice, but stages send full activations.
        """
        layers: list[SplitLayer] = []
        for group in self.groups():
            # Between a column and its row an activation is a slice, but a stage sends full tensors of known
            # shapes: gloo would wait for bytes that never come.
            modules = {model.get_submodule(layer.name) for layer in group}
            if len(group) == 1 or any(modules <= set(stage_modules) for stage_modules in stages):
                layers += group
        return self.with_layers(layers)

    def with_layers(self, layers: Sequence[SplitLayer]) -> SplitPlan:
        """Return the plan reduced to these layers and the modules around them."""
        return self._filter(
            layers, lambda module: any(f"{layer.name}.".startswith(f"{module}.") for layer in layers)
        )

    def _filter(self, layers: Sequence[SplitLayer], predicate: Callable[[str], bool]) -> SplitPlan:
        """Return the plan reduced to these layers and to the modules that `predicate` accepts."""
        names = {layer.name for layer in layers}
        return replace(
            self,
            output=self.output if self.output in names else None,
            layers=tuple(layers),
            input_modules=tuple(filter(predicate, self.input_modules)),
            blocks=tuple(filter(predicate, self.blocks)),
            heads=tuple(count for count in self.heads if predicate(count.module)),
        )

    def groups(self) -> Iterator[list[SplitLayer]]:
        """Yield groups of consecutive column-wise layers with the row-wise layer after them; a layer whose
        output is gathered is a group of its own."""
        group: list[SplitLayer] = []
        for layer in self.layers:
            if layer.gathers_output:
                yield [layer]
                continue
            group.append(layer)
            if layer.kind == "row":
                yield group
                group = []
        yield from ([layer] for layer in group)


@dataclass
class ModelAnalysis:
    """Results of analyzing a model, which are reused for the next model of the same kind.

    `plan` is its tensor plan; `cut_differences` are the results of comparing pipeline cuts on shapes
    (../pipelining/equality.py).
    """

    plan: SplitPlan | None = None
    cut_differences: dict[Hashable, Phrase | None] = field(default_factory=dict)


def find_loose_tie(model: nn.Module, split: set[str]) -> str | None:
    """Return a module outside of `split` that shares a weight with a module inside; None if there is no such
    module."""
    for names in tied_names(model):
        outside = [owner for name in names if (owner := name.rpartition(".")[0]) not in split]
        if outside and len(outside) < len(names):
            return outside[0]
    return None


def tied_names(module: nn.Module) -> list[list[str]]:
    """Return the names of each weight that has several names."""
    return [names for names in parameter_names(module).values() if len(names) > 1]


def is_head_table(model: nn.Module, layer: SplitLayer) -> bool:
    """Check whether the layer is an embedding with a column per head (T5's position biases), of which each
    rank takes the columns of its own heads."""
    is_slice = layer.kind == "column" and not layer.gathers_output
    return is_slice and isinstance(model.get_submodule(layer.name), nn.Embedding)


# One rank's slices in place of a model's split layers, in plain torch, in a copy of the model.
#
#     column   its rows of the weight; outputs gathered where it `gathers_output`
#     row      its columns of the weight; outputs summed over the ranks, then the bias added
#     table    its rows of an embedding, zeros for all others; outputs summed
#
# Tensors for other ranks go through an `Exchange`. A split weight exists only while its own layer computes:
# in a run it is a DTensor, which other operations of the model do not accept next to plain tensors.

Exchange = Callable[[Tensor], Sequence[Tensor]]
"""Function that returns all ranks' counterparts of this rank's tensor, in rank order."""
_METADATA_NAMES = ("size", "dim", "numel", "stride", "is_floating_point", "is_complex", "element_size")


class UsedOutsideLayerError(Exception):
    """Error for a model that uses a split weight outside of its layer's forward pass."""


class _SplitWeight:
    """Placeholder for a split weight outside of its layer: it has a shape and dtype but no values."""

    def __init__(self, name: str, full_weight: Tensor) -> None:
        self._name = name
        self._full = full_weight

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._full, name)
        if name not in _METADATA_NAMES and (callable(value) or isinstance(value, Tensor)):
            raise UsedOutsideLayerError(self._name)
        return value

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Kwargs | None = None
    ) -> Any:
        operands = [*args, *(kwargs or {}).values()]
        raise UsedOutsideLayerError(next(item._name for item in operands if isinstance(item, cls)))


def apply_slices(
    copied: nn.Module,
    layers: Iterable[SplitLayer],
    heads: Iterable[HeadCount],
    *,
    rank: int,
    num_ranks: int,
    exchange: Exchange,
) -> nn.Module:
    """Turn a copy of the model into one rank's model, in place. Only forward passes use slices; the copy's
    parameters are not cut."""
    for layer in layers:
        _split_layer(copied.get_submodule(layer.name), layer, rank, num_ranks, exchange)
    for count in heads:
        setattr(copied.get_submodule(count.module), count.attribute, count.count)
    return copied


def _split_layer(module: nn.Module, layer: SplitLayer, rank: int, num_ranks: int, exchange: Exchange) -> None:
    weights = {name: weight for name, weight in own_parameters(module).items() if weight is not None}
    is_table = isinstance(module, nn.Embedding)
    bias = weights.get("bias")
    # A row's outputs are summed over the ranks, so the bias is added once, after the sum.
    is_row = layer.kind == "row"

    def slices() -> dict[str, Tensor | None]:
        weight = weights["weight"]
        if is_row and is_table:
            return {"weight": _mask_rows(weight, rank, num_ranks)}
        dim = int(is_row != is_table)
        sliced: dict[str, Tensor | None] = {"weight": _narrow(weight, dim, rank, num_ranks)}
        if bias is not None:
            sliced["bias"] = None if is_row else _narrow(bias, 0, rank, num_ranks)
        return sliced

    def enter(_module: nn.Module, _args: Any) -> None:
        # Python searches the instance's dict before the table of parameters, which stays full.
        vars(module).update(slices())

    def leave(_module: nn.Module, _args: Any, output: Any) -> Any:
        hide()
        if is_row:
            total = torch.stack(list(exchange(output))).sum(0)
            return total if bias is None else total + bias
        return torch.cat(list(exchange(output)), dim=-1) if layer.gathers_output else output

    def hide() -> None:
        vars(module).update(
            {name: _SplitWeight(f"{layer.name}.{name}", weight) for name, weight in weights.items()}
        )

    hide()
    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave)


def _narrow(weight: Tensor, dim: int, rank: int, num_ranks: int) -> Tensor:
    width = weight.shape[dim] // num_ranks
    return weight.narrow(dim, rank * width, width)


def _mask_rows(table: Tensor, rank: int, num_ranks: int) -> Tensor:
    rows = torch.arange(len(table), device=table.device) // (len(table) // num_ranks)
    return table * (rows == rank).to(table.dtype).unsqueeze(1)
