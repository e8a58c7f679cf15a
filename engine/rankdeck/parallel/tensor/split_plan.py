"""What is split and how: data, before anything moves. Read plan.py for where it comes from, apply.py for what
carries it out."""

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
    """One Linear or Embedding. `gathers_output`: a column whose outputs are put together again behind it."""

    name: str
    kind: Kind
    gathers_output: bool = False


@dataclass(frozen=True)
class SplitPlan:
    """How a model is split over `num_ranks`.

    `input_modules` are modules whose input feeds several columns, so that its gradient is added up once.
    `blocks` are the transformer blocks in order; `output` names the layer whose columns are the classes, and
    `unsplit_attentions` are the last layers of attentions that stay whole.
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
        """What of the plan concerns a model in which other ranks' weights have been dropped."""
        held = {name.rpartition(".")[0] for name, _ in model.named_parameters(remove_duplicate=False)}
        parents = {".".join(name.split(".")[:end]) for name in held for end in range(1, name.count(".") + 2)}
        return self._filter(
            [layer for layer in self.layers if layer.name in held], lambda name: name in parents
        )

    def restrict_to_stages(self, model: nn.Module, parts: Sequence[Collection[nn.Module]]) -> SplitPlan:
        """What of the plan lies whole in one of the parts, which hand on whole activations.

        Columns and the row behind them are split together or not at all: between them lies a slice.
        """
        layers: list[SplitLayer] = []
        for group in self.groups():
            modules = {model.get_submodule(layer.name) for layer in group}
            if len(group) == 1 or any(modules <= set(part) for part in parts):
                layers += group
        return self.with_layers(layers)

    def with_layers(self, layers: Sequence[SplitLayer]) -> SplitPlan:
        """The plan of some of the layers, and of the modules around them."""
        return self._filter(
            layers, lambda module: any(f"{layer.name}.".startswith(f"{module}.") for layer in layers)
        )

    def _filter(self, layers: Sequence[SplitLayer], keeps: Callable[[str], bool]) -> SplitPlan:
        """The plan of some of the layers, and of the modules that `keeps` names."""
        names = {layer.name for layer in layers}
        return replace(
            self,
            output=self.output if self.output in names else None,
            layers=tuple(layers),
            input_modules=tuple(filter(keeps, self.input_modules)),
            blocks=tuple(filter(keeps, self.blocks)),
            heads=tuple(count for count in self.heads if keeps(count.module)),
        )

    def groups(self) -> Iterator[list[SplitLayer]]:
        """Runs of columns with the row behind them; a layer that gathers stands alone."""
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
    """What was found out about a model, for the next of the same kind: how it is split, and what differs
    behind `cut_differences` that were compared on shapes (../pipelining/equality.py)."""

    plan: SplitPlan | None = None
    cut_differences: dict[Hashable, Phrase | None] = field(default_factory=dict)


def find_loose_tie(model: nn.Module, split: set[str]) -> str | None:
    """A module outside of `split` that shares a weight with one inside."""
    for names in tied_names(model):
        outside = [owner for name in names if (owner := name.rpartition(".")[0]) not in split]
        if outside and len(outside) < len(names):
            return outside[0]
    return None


def tied_names(module: nn.Module) -> list[list[str]]:
    """The names of each weight that has several."""
    return [names for names in parameter_names(module).values() if len(names) > 1]


def is_head_table(model: nn.Module, layer: SplitLayer) -> bool:
    """Whether each rank takes the columns of a table that are its heads' (T5's biases of positions)."""
    is_slice = layer.kind == "column" and not layer.gathers_output
    return is_slice and isinstance(model.get_submodule(layer.name), nn.Embedding)


# One rank's slices in place of a model's split layers, in plain torch, in a copy of the model.
#
#     column   its rows of the weight; outputs put together again where it `gathers_output`
#     row      its columns of the weight; outputs summed over the ranks, then the bias added
#     table    its rows of an embedding, zeros for all others; outputs summed
#
# What each layer gives to the other ranks goes through an `Exchange`. A split weight is there while its own
# layer computes and at no other time: in a run it is a DTensor, which no other operation of the model takes
# beside plain tensors.

Exchange = Callable[[Tensor], Sequence[Tensor]]
"""What all ranks have in place of this rank's tensor, in their order."""
_METADATA_NAMES = ("size", "dim", "numel", "stride", "is_floating_point", "is_complex", "element_size")


class UsedOutsideLayerError(Exception):
    """The model used a split weight where its layer does not compute."""


class _SplitWeight:
    """Stands for a split weight outside of its layer: its shape and dtype are known, its values are not."""

    def __init__(self, name: str, whole: Tensor) -> None:
        self._name = name
        self._full = whole

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
    """Make a copy of the model that of one rank, in place. Its parameters stay as they are, whole."""
    for layer in layers:
        _split_layer(copied.get_submodule(layer.name), layer, rank, num_ranks, exchange)
    for count in heads:
        setattr(copied.get_submodule(count.module), count.attribute, count.count)
    return copied


def _split_layer(module: nn.Module, layer: SplitLayer, rank: int, num_ranks: int, exchange: Exchange) -> None:
    whole = {name: weight for name, weight in own_parameters(module).items() if weight is not None}
    is_table = isinstance(module, nn.Embedding)
    bias = whole.get("bias")
    # Outputs of a row hold a sum over ranks; a bias is added once, behind it.
    is_row = layer.kind == "row"

    def slices() -> dict[str, Tensor | None]:
        weight = whole["weight"]
        if is_row and is_table:
            return {"weight": _mask_rows(weight, rank, num_ranks)}
        dim = int(is_row != is_table)
        held: dict[str, Tensor | None] = {"weight": _narrow(weight, dim, rank, num_ranks)}
        if bias is not None:
            held["bias"] = None if is_row else _narrow(bias, 0, rank, num_ranks)
        return held

    def enter(_module: nn.Module, _args: Any) -> None:
        vars(module).update(slices())

    def leave(_module: nn.Module, _args: Any, output: Any) -> Any:
        hide()
        if is_row:
            total = torch.stack(list(exchange(output))).sum(0)
            return total if bias is None else total + bias
        return torch.cat(list(exchange(output)), dim=-1) if layer.gathers_output else output

    def hide() -> None:
        vars(module).update(
            {name: _SplitWeight(f"{layer.name}.{name}", held) for name, held in whole.items()}
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
