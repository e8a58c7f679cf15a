"""What is split and how: data, before anything moves. Read plan.py for where it comes from, apply.py for what
carries it out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import nn

from rankdeck.parallel.tensor.attention import HeadCount

Kind = Literal["column", "row"]


@dataclass(frozen=True)
class SplitLayer:
    """One Linear or Embedding. `gathers`: a column whose outputs are put together again behind it."""

    name: str
    kind: Kind
    gathers: bool = False


@dataclass(frozen=True)
class SplitPlan:
    """How a model is split over `num_ranks`.

    `entries` are modules whose input feeds several columns, so that its gradient is added up once. `blocks`
    are the transformer blocks in order; `output` names the layer whose columns are the classes, and `whole`
    are the last layers of attentions that stay whole.
    """

    num_ranks: int
    layers: tuple[SplitLayer, ...]
    entries: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    heads: tuple[HeadCount, ...] = ()
    output: str | None = None
    is_given: bool = False
    whole: tuple[str, ...] = ()

    def held_by(self, model: nn.Module) -> SplitPlan:
        """What of the plan concerns a model in which other ranks' weights have been dropped."""
        held = {name.rpartition(".")[0] for name, _ in model.named_parameters(remove_duplicate=False)}
        parents = {".".join(name.split(".")[:end]) for name in held for end in range(1, name.count(".") + 2)}
        return self._of([layer for layer in self.layers if layer.name in held], lambda name: name in parents)

    def inside(self, model: nn.Module, parts: Sequence[Collection[nn.Module]]) -> SplitPlan:
        """What of the plan lies whole in one of the parts, which hand on whole activations.

        Columns and the row behind them are split together or not at all: between them lies a slice.
        """
        layers: list[SplitLayer] = []
        for group in self.groups():
            modules = {model.get_submodule(layer.name) for layer in group}
            if len(group) == 1 or any(modules <= set(part) for part in parts):
                layers += group
        return self.only(layers)

    def only(self, layers: Sequence[SplitLayer]) -> SplitPlan:
        """The plan of some of the layers, and of the modules around them."""
        return self._of(
            layers, lambda module: any(f"{layer.name}.".startswith(f"{module}.") for layer in layers)
        )

    def _of(self, layers: Sequence[SplitLayer], keeps: Callable[[str], bool]) -> SplitPlan:
        """The plan of some of the layers, and of the modules that `keeps` names."""
        names = {layer.name for layer in layers}
        return replace(
            self,
            output=self.output if self.output in names else None,
            layers=tuple(layers),
            entries=tuple(filter(keeps, self.entries)),
            blocks=tuple(filter(keeps, self.blocks)),
            heads=tuple(count for count in self.heads if keeps(count.module)),
        )

    def groups(self) -> Iterator[list[SplitLayer]]:
        """Runs of columns with the row behind them; a layer that gathers stands alone."""
        group: list[SplitLayer] = []
        for layer in self.layers:
            if layer.gathers:
                yield [layer]
                continue
            group.append(layer)
            if layer.kind == "row":
                yield group
                group = []
        yield from ([layer] for layer in group)


def loose_tie(model: nn.Module, split: set[str]) -> str | None:
    """A module outside of `split` that shares a weight with one inside."""
    for names in names_by_weight(model):
        outside = [owner for name in names if (owner := name.rpartition(".")[0]) not in split]
        if outside and len(outside) < len(names):
            return outside[0]
    return None


def names_by_weight(module: nn.Module) -> list[list[str]]:
    """The names of each weight that has several."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return [own for own in names.values() if len(own) > 1]


def is_table_of_heads(model: nn.Module, layer: SplitLayer) -> bool:
    """Whether each rank takes the columns of a table that are its heads' (T5's biases of positions)."""
    is_slice = layer.kind == "column" and not layer.gathers
    return is_slice and isinstance(model.get_submodule(layer.name), nn.Embedding)
