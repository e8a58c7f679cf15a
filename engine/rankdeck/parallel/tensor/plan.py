"""Which linear layers of a model are split, and how: data, before anything moves.

A column-wise layer keeps all inputs and a slice of the outputs; a row-wise layer takes such a slice as its
input and adds the partial outputs up over the ranks. One column after another row by row would send every
output; a column followed by a row sends once:

    attention       query, key, value: columns (whole heads)      output: row
    feed-forward    up (and gate): columns                        down: row
    vocabulary      embedding: rows of the table                  output layer: columns

The plan of transformer blocks is found in attention.py and pairs.py and looked at in between.py, or a person
gives it as name patterns (given.py). Units of it that would compute something else from slices stay whole
(checked.py). Read apply.py next. Source: Shoeybi et al., "Megatron-LM" (2019), section 3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import phrase
from rankdeck.parallel.collectives.broadcast import from_rank_0
from rankdeck.parallel.tensor.attention import AttentionLayers, find_attentions, is_plain
from rankdeck.parallel.tensor.between import Between, look_between, operation_between
from rankdeck.parallel.tensor.checked import Unit, find_differences, units_of
from rankdeck.parallel.tensor.given import given_plan
from rankdeck.parallel.tensor.pairs import Pair, chain_pairs, feed_forward_pairs
from rankdeck.parallel.tensor.refused import differs, does_not_take_slices, nothing_to_split
from rankdeck.parallel.tensor.split_plan import Kind, SplitLayer, SplitPlan, loose_tie
from rankdeck.parallel.tensor.trial import SplitDifference


def known_plan(
    known: dict[str, Any],
    model: nn.Module,
    num_ranks: int,
    given: Mapping[str, Kind] | None,
    inputs: Any = None,
) -> SplitPlan:
    """The plan that was made for another model of the same kind, else a new one, which is then known."""
    if "split" not in known:
        known["split"] = make_plan(model, num_ranks, given, inputs)
    plan: SplitPlan = known["split"]
    return plan


def make_plan(
    model: nn.Module, num_ranks: int, given: Mapping[str, Kind] | None, inputs: Any = None
) -> SplitPlan:
    """The person's plan where there is one, else what the model's structure says.

    Raises:
        ModelError: nothing can be split, or not by this number of ranks.
    """
    if not given:
        return find_plan(model, num_ranks, inputs)
    plan = given_plan(model, num_ranks, given)
    for unit, difference in _differing(model, plan, inputs, {}).items():
        raise differs(unit, difference, _operation(model, unit, inputs), is_given=True)
    return plan


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
    entered: dict[str, Any] = dict.fromkeys(blocks)
    if blocks:
        between = look_between(model, [*attentions, *pairs], inputs, entered)
        pairs = [pair for pair in pairs if not between.weights[pair.row]]
        biases = _biases_of_heads(model, attentions, between)
        around = between.around
    groups: list[AttentionLayers | Pair] = [*attentions, *pairs]
    layers = [SplitLayer(name, "column") for name in biases]
    for group in groups:
        layers += [SplitLayer(name, "column") for name in group.columns]
        layers.append(SplitLayer(group.row, "row"))
    if not layers:
        raise from_rank_0(lambda: nothing_to_split(model, num_ranks, inputs)) or AssertionError
    entries = tuple(name for name in _entries(model, layers, groups) if name not in around)
    vocabulary, output = _vocabulary(model, num_ranks, blocks) if blocks else ([], None)
    counts = tuple(count for attention in attentions for count in attention.counts)
    plan = SplitPlan(num_ranks, (*layers, *vocabulary), entries, tuple(blocks), counts, output)
    left = _without_what_differs(model, plan, inputs, entered)
    split = {layer.name for layer in left.layers}
    return replace(left, whole=tuple(one.row for one in attentions if one.row not in split))


def _without_what_differs(
    model: nn.Module, plan: SplitPlan, inputs: Any, entered: Mapping[str, Any]
) -> SplitPlan:
    """The units of a plan that compute from slices what they compute whole.

    Raises:
        ModelError: no columns with a row are left, or an attention takes no slices.
    """
    differing = _differing(model, plan, inputs, entered)
    for unit, difference in differing.items():
        if unit.heads and difference.complaint and not difference.is_outside:
            raise does_not_take_slices(model, difference.complaint)
    dropped = {layer for unit in differing for layer in unit.layers}
    left = plan.only([layer for layer in plan.layers if layer not in dropped])
    for unit, difference in differing.items():
        if not any(_is_row(model, layer) for layer in left.layers):
            raise differs(unit, difference, _operation(model, unit, inputs))
    return left


def _is_row(model: nn.Module, layer: SplitLayer) -> bool:
    return layer.kind == "row" and isinstance(model.get_submodule(layer.name), nn.Linear)


def _differing(
    model: nn.Module, plan: SplitPlan, inputs: Any, entered: Mapping[str, Any]
) -> dict[Unit, SplitDifference]:
    """All ranks of a run call this together."""
    units = units_of(model, plan)
    found = from_rank_0(
        lambda: [] if inputs is None else find_differences(model, plan, units, inputs, entered)
    )
    pairs = zip(units, found or [None] * len(units), strict=True)
    return {unit: difference for unit, difference in pairs if difference is not None}


def _operation(model: nn.Module, unit: Unit, inputs: Any) -> str | None:
    """What between a unit's columns and its row needs all of their numbers. All ranks call this together."""
    names = [layer.name for layer in unit.layers]
    return from_rank_0(lambda: operation_between(model, names[:-1], names[-1], inputs))


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
    embeddings = {n: m for n, m in model.named_modules() if isinstance(m, nn.Embedding) and _is_lookup(m)}
    linears = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    name, last = linears[-1]
    if (
        not is_plain(last)
        or any(name.startswith(f"{block}.") for block in blocks)
        or last.out_features % num_ranks
    ):
        return [], None
    tables = [n for n, m in embeddings.items() if m.num_embeddings == last.out_features]
    if not tables:
        return [], None
    output = SplitLayer(name, "column", gathers=True)
    # A padding index would count from each rank's own first row.
    rows = [SplitLayer(table, "row") for table in tables[:1] if embeddings[table].padding_idx is None]
    for chosen in ([*rows, output], [output], rows):
        if not loose_tie(model, {layer.name for layer in chosen}):
            return chosen, name if output in chosen else None
    return [], None


def _is_lookup(table: nn.Embedding) -> bool:
    """Whether a table is looked up and nothing else: one with a largest norm changes in each forward, and
    counts of words would be a rank's own."""
    return is_plain(table) and table.max_norm is None and not (table.scale_grad_by_freq or table.sparse)
