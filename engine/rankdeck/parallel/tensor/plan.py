"""Which linear layers of a model are split, and how: data, before anything moves.

A column-wise layer keeps all inputs and a slice of the outputs; a row-wise layer takes such a slice as its
input and adds the partial outputs up over the ranks. One column after another row by row would send every
output; a column followed by a row sends once:

    attention       query, key, value: columns (whole heads)      output: row
    feed-forward    up (and gate): columns                        down: row
    vocabulary      embedding: rows of the table                  output layer: columns

The plan of transformer blocks is found in attention.py and pairs.py, looked at in between.py, or a person
gives it as name patterns. Read apply.py next. Source: Shoeybi et al., "Megatron-LM" (2019), section 3.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from torch import nn

from rankdeck.base.errors import ModelError, did_you_mean
from rankdeck.base.phrases import phrase
from rankdeck.parallel.tensor.attention import AttentionLayers, HeadCount, find_attentions
from rankdeck.parallel.tensor.between import Between, look_between, try_slices
from rankdeck.parallel.tensor.pairs import Pair, chain_pairs, feed_forward_pairs

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
    are the transformer blocks in order; `output` names the layer whose columns are the classes.
    """

    num_ranks: int
    layers: tuple[SplitLayer, ...]
    entries: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    heads: tuple[HeadCount, ...] = ()
    output: str | None = None
    is_given: bool = False

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
        for group in self._groups():
            modules = {model.get_submodule(layer.name) for layer in group}
            if len(group) == 1 or any(modules <= set(part) for part in parts):
                layers += group
        return self._of(
            layers, lambda module: any(f"{layer.name}.".startswith(f"{module}.") for layer in layers)
        )

    def _of(self, layers: Sequence[SplitLayer], keeps: Callable[[str], bool]) -> SplitPlan:
        """The plan of some of the layers, and of the modules that `keeps` names."""
        return replace(
            self,
            layers=tuple(layers),
            entries=tuple(filter(keeps, self.entries)),
            blocks=tuple(filter(keeps, self.blocks)),
            heads=tuple(count for count in self.heads if keeps(count.module)),
        )

    def _groups(self) -> Iterator[list[SplitLayer]]:
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


def make_plan(
    model: nn.Module, num_ranks: int, given: Mapping[str, Kind] | None, inputs: Any = None
) -> SplitPlan:
    """The person's plan where there is one, else what the model's structure says.

    Raises:
        ModelError: nothing can be split, or not by this number of ranks.
    """
    return given_plan(model, num_ranks, given) if given else find_plan(model, num_ranks, inputs)


def find_plan(model: nn.Module, num_ranks: int, inputs: Any = None) -> SplitPlan:
    """The plan of a model's transformer blocks; of its chain of linear layers where it has none.

    `inputs` is a small batch of the model's, to look at what its code does; all ranks of a run call this
    together.

    Raises:
        ModelError: nothing can be split, or the heads do not divide by the ranks.
    """
    attentions = find_attentions(model, num_ranks)
    blocks = list(dict.fromkeys(attention.block for attention in attentions))
    taken = {name for attention in attentions for name in (*attention.columns, attention.row)}
    pairs = feed_forward_pairs(model, blocks, taken) if blocks else chain_pairs(model)
    pairs = [pair for pair in pairs if pair.width % num_ranks == 0]
    around: Collection[str] = ()
    biases: list[str] = []
    if blocks:
        between = look_between(model, [*attentions, *pairs], inputs)
        pairs = [pair for pair in pairs if not between.weights[pair.row]]
        biases = _biases_of_heads(model, attentions, between)
        around = between.around
    groups: list[AttentionLayers | Pair] = [*attentions, *pairs]
    layers = [SplitLayer(name, "column") for name in biases]
    for group in groups:
        layers += [SplitLayer(name, "column") for name in group.columns]
        layers.append(SplitLayer(group.row, "row"))
    if not layers:
        raise _nothing_to_split(model, num_ranks)
    entries = tuple(name for name in _entries(model, layers, groups) if name not in around)
    vocabulary, output = _vocabulary(model, num_ranks, blocks) if blocks else ([], None)
    counts = tuple(count for attention in attentions for count in attention.counts)
    # A table of numbers per head is cut by columns, and its columns are its second dim.
    dims = {layer.name: int(layer.kind == "row" or layer.name in biases) for layer in layers}
    if blocks and (complaint := try_slices(model, dims, counts, num_ranks, inputs)):
        raise ModelError(
            phrase(
                "{model} does not take slices of its layers, which tensor gives to each rank: {complaint}.",
                model=type(model).__name__,
                complaint=complaint,
            ),
            code="tensor-plan",
            path="strategy.use",
            advice=phrase(
                "Write -1 for the width of all heads together, and keep their number in num_heads; or "
                "use ddp, fsdp or pipeline."
            ),
        )
    return SplitPlan(num_ranks, (*layers, *vocabulary), entries, tuple(blocks), counts, output)


def _biases_of_heads(model: nn.Module, attentions: Sequence[AttentionLayers], between: Between) -> list[str]:
    """Tables with a number per head that is added to the scores (T5): each rank takes those of its heads.

    Raises:
        ModelError: another weight stands between an attention's layers.
    """
    tables: dict[str, None] = {}
    for attention in attentions:
        for weight in between.weights[attention.row]:
            owner = weight.rpartition(".")[0]
            module = model.get_submodule(owner) if "." in weight else None
            if not isinstance(module, nn.Embedding) or module.embedding_dim != attention.num_heads:
                raise ModelError(
                    phrase(
                        "{weight} stands between {first} and {last}, which tensor would "
                        "split: it would see the heads of one rank only.",
                        weight=weight,
                        first=attention.columns[0],
                        last=attention.row,
                    ),
                    code="tensor-plan",
                    path="strategy.use",
                    advice=phrase("Use ddp, fsdp or pipeline instead."),
                )
            tables[owner] = None
    return list(tables)


def given_plan(model: nn.Module, num_ranks: int, given: Mapping[str, Kind]) -> SplitPlan:
    """A person's plan: name patterns ("blocks.*.up") to "column" or "row".

    A column that no row follows, in the model's order, is put together again behind it.

    Raises:
        ModelError: a pattern matches nothing that can be split, or a weight of it is also used elsewhere.
    """
    kinds: dict[str, Kind] = {}
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Embedding)]
    for pattern, kind in given.items():
        matching = fnmatch.filter(names, pattern)
        if not matching:
            raise ModelError(
                phrase(
                    'strategy.plan: "{pattern}" matches no linear layer or embedding of the model.',
                    pattern=pattern,
                ),
                path="strategy.plan",
                advice=did_you_mean(pattern, names) or phrase("Names are those of model.named_modules()."),
            )
        kinds |= dict.fromkeys(matching, kind)
    modules = dict(model.named_modules())
    layers = []
    split = [name for name in names if name in kinds]
    for place, name in enumerate(split):
        _check_divides(name, modules[name], kinds[name], num_ranks)
        embeds = isinstance(modules[name], nn.Embedding)
        rows_follow = any(
            kinds[later] == "row" and not isinstance(modules[later], nn.Embedding)
            for later in split[place + 1 :]
        )
        layers.append(SplitLayer(name, kinds[name], kinds[name] == "column" and (embeds or not rows_follow)))
    if loose := _loose_ties(model, set(split)):
        raise ModelError(
            phrase("strategy.plan splits a weight that {loose} shares and does not split.", loose=loose),
            path="strategy.plan",
            advice=phrase("Name {loose} in the plan too, or neither.", loose=loose),
        )
    return SplitPlan(num_ranks, tuple(layers), is_given=True)


def _check_divides(name: str, module: nn.Module, kind: Kind, num_ranks: int) -> None:
    if isinstance(module, nn.Linear):
        width = module.out_features if kind == "column" else module.in_features
    else:
        assert isinstance(module, nn.Embedding)
        width = module.embedding_dim if kind == "column" else module.num_embeddings
    if width % num_ranks:
        raise ModelError(
            phrase(
                'strategy.plan: {name} as "{kind}" is {width} wide, which does not divide by {num_ranks} '
                "ranks.",
                name=name,
                kind=kind,
                width=width,
                num_ranks=num_ranks,
            ),
            path="strategy.plan",
            advice=phrase("Leave it out of the plan, or use a number of devices that divides it."),
        )


def _entries(
    model: nn.Module, layers: Iterable[SplitLayer], groups: Iterable[AttentionLayers | Pair]
) -> Iterator[str]:
    """Parents of several columns of one group that hold no weights but those of split layers."""
    split = {layer.name for layer in layers}
    parents = Counter(group.columns[0].rpartition(".")[0] for group in groups)
    for group in groups:
        owners = {name.rpartition(".")[0] for name in group.columns}
        parent = next(iter(owners))
        weights = model.get_submodule(parent).named_parameters(parent, remove_duplicate=False)
        share = len(group.columns) > 1 and len(owners) == parents[parent] == 1
        if share and {name.rpartition(".")[0] for name, _ in weights} <= split:
            yield parent


def _vocabulary(model: nn.Module, num_ranks: int, blocks: list[str]) -> tuple[list[SplitLayer], str | None]:
    """The embedding's rows and the output layer's columns, where both speak of the same vocabulary.

    A tied weight is split under all its names or not at all.
    """
    embeddings = {n: m for n, m in model.named_modules() if isinstance(m, nn.Embedding)}
    linears = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    name, last = linears[-1]
    if any(name.startswith(f"{block}.") for block in blocks) or last.out_features % num_ranks:
        return [], None
    tables = [n for n, m in embeddings.items() if m.num_embeddings == last.out_features]
    if not tables:
        return [], None
    output = SplitLayer(name, "column", gathers=True)
    # A padding index would count from each rank's own first row.
    rows = [SplitLayer(table, "row") for table in tables[:1] if embeddings[table].padding_idx is None]
    for chosen in ([*rows, output], [output], rows):
        if not _loose_ties(model, {layer.name for layer in chosen}):
            return chosen, name if output in chosen else None
    return [], None


def _loose_ties(model: nn.Module, split: set[str]) -> str | None:
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


def _example(model: nn.Module) -> str:
    """A plan in the words of a configuration, with the names of two layers of this model that follow each
    other if there are any."""
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    follow = [
        (name, after)
        for (name, module), (after, next_module) in pairwise(layers)
        if module.out_features == next_module.in_features
    ]
    column, row = follow[0] if follow else ("layers.*.up", "layers.*.down")
    return f'strategy.plan = {{ "{column}" = "column", "{row}" = "row" }}'


def _nothing_to_split(model: nn.Module, num_ranks: int) -> ModelError:
    kinds = Counter(
        type(module).__name__
        for module in model.modules()
        if any(True for _ in module.parameters(recurse=False))
    )
    most = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(3))
    name = type(model).__name__
    if {"Linear", "Embedding"} & kinds.keys() and not {"Conv1D", "Conv2d", "Conv3d"} & kinds.keys():
        return ModelError(
            phrase("tensor found nothing to split in {model} ({kinds}).", model=name, kinds=most),
            code="tensor-plan",
            path="strategy.plan",
            advice=phrase(
                "Name its layers: {example}. The width between the two must divide by the ranks, "
                "of which there are {num_ranks}.",
                example=_example(model),
                num_ranks=num_ranks,
            ),
        )
    return ModelError(
        phrase(
            "tensor splits Linear and Embedding layers, and {model} keeps its weights in others ({kinds}).",
            model=name,
            kinds=most,
        ),
        code="tensor-plan",
        path="strategy.use",
        advice=phrase("Use ddp, fsdp or pipeline instead."),
    )
