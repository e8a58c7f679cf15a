"""Plan which linear layers of a model are split, and how, before any weight is cut.

A column-wise layer takes all inputs and computes a slice of the outputs; a row-wise layer takes such a slice
as its input and sums the partial outputs across the ranks. If all layers were column-wise, each would have to
send its outputs; a column-wise layer followed by a row-wise one sends only once:

    attention       query, key, value: columns (whole heads)      output: row
    feed-forward    up (and gate): columns                        down: row
    vocabulary      embedding: rows of the table                  output layer: columns

attention.py finds the plan of transformer blocks and layer_flow.py checks it, or the user provides a plan as
name patterns. Units whose slices would give a different result from the full layers are not split
(plan_check.py). Read apply.py next. Source: Shoeybi et al., "Megatron-LM" (2019), section 3.
"""

from __future__ import annotations

import contextlib
import fnmatch
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from rankdeck.base.errors import ModelError, did_you_mean
from rankdeck.base.phrases import phrase
from rankdeck.parallel.collectives.broadcast import run_on_rank_0
from rankdeck.parallel.tensor.attention import (
    AttentionLayers,
    FeedForwardPair,
    HeadCount,
    chain_pairs,
    feed_forward_pairs,
    find_attentions,
    has_plain_weight,
)
from rankdeck.parallel.tensor.layer_flow import LayerFlow, find_layer_flow, operation_between
from rankdeck.parallel.tensor.plan_check import (
    SplitUnit,
    find_differences,
    no_split_error,
    slices_error,
    split_difference_error,
    split_units,
)
from rankdeck.parallel.tensor.split_plan import Kind, ModelAnalysis, SplitLayer, SplitPlan, find_loose_tie
from rankdeck.parallel.tensor.trial import SplitDifference


def cached_plan(
    analysis: ModelAnalysis,
    model: nn.Module,
    num_ranks: int,
    patterns: Mapping[str, Kind] | None,
    inputs: Any = None,
) -> SplitPlan:
    """Return the plan stored in `analysis`; if there is none, make a plan and store it there."""
    if analysis.plan is None:
        analysis.plan = make_plan(model, num_ranks, patterns, inputs)
    return analysis.plan


def make_plan(
    model: nn.Module, num_ranks: int, patterns: Mapping[str, Kind] | None, inputs: Any = None
) -> SplitPlan:
    """Return the user's plan if there is one, else the plan found from the model's structure.

    Raises:
        ModelError: nothing can be split, or the layers cannot be split across this number of ranks.
    """
    if not patterns:
        return find_plan(model, num_ranks, inputs)
    plan = plan_from_patterns(model, num_ranks, patterns)
    for unit, difference in _differing_units(model, plan, inputs, {}).items():
        raise split_difference_error(
            unit, difference, _blocking_operation(model, unit, inputs), is_given=True
        )
    return plan


def find_plan(model: nn.Module, num_ranks: int, inputs: Any = None) -> SplitPlan:
    """Find the plan of a model's transformer blocks, or of a chain of linear layers if it has no blocks.

    `inputs` is a small batch for the model, used to observe a forward pass; all ranks of a run call this
    together.

    Raises:
        ModelError: nothing can be split, or the heads cannot be divided among the ranks.
    """
    attentions = find_attentions(model, num_ranks)
    blocks = list(dict.fromkeys(attention.block for attention in attentions))
    taken = {name for attention in attentions for name in (*attention.columns, attention.row)}
    pairs = feed_forward_pairs(model, blocks, taken) if blocks else chain_pairs(model)
    pairs = [pair for pair in pairs if pair.width % num_ranks == 0]
    around: Collection[str] = ()
    biases: list[str] = []
    entered: dict[str, tuple[Any, ...] | None] = dict.fromkeys(blocks)
    if blocks:
        between = find_layer_flow(model, [*attentions, *pairs], inputs, entered)
        # A weight inside a pair would get only one rank's slice; such a pair is not split.
        pairs = [pair for pair in pairs if not between.weights[pair.row]]
        biases = _head_bias_tables(model, attentions, between)
        around = between.bypassed
    groups: list[AttentionLayers | FeedForwardPair] = [*attentions, *pairs]
    layers = [SplitLayer(name, "column") for name in biases]
    for group in groups:
        layers += [SplitLayer(name, "column") for name in group.columns]
        layers.append(SplitLayer(group.row, "row"))
    if not layers:
        # Rank 0 searches for a plan to recommend; all ranks raise the same error.
        raise run_on_rank_0(lambda: no_split_error(model, num_ranks, inputs)) or AssertionError
    entries = tuple(name for name in _iter_input_modules(model, layers, groups) if name not in around)
    vocabulary, output = _vocabulary_layers(model, num_ranks, blocks) if blocks else ([], None)
    counts = tuple(count for attention in attentions for count in attention.counts)
    plan = SplitPlan(num_ranks, (*layers, *vocabulary), entries, tuple(blocks), counts, output)
    left = _drop_differing_units(model, plan, inputs, entered)
    split = {layer.name for layer in left.layers}
    return replace(
        left,
        unsplit_attentions=tuple(candidate.row for candidate in attentions if candidate.row not in split),
    )


def _drop_differing_units(
    model: nn.Module, plan: SplitPlan, inputs: Any, entered: Mapping[str, Any]
) -> SplitPlan:
    """Return the plan without units whose slices would give a different result from the full layers.

    Raises:
        ModelError: no column-wise layer is followed by a row-wise one, or an attention layer rejects slices.
    """
    differing = _differing_units(model, plan, inputs, entered)
    for unit, difference in differing.items():
        if unit.heads and difference.error and not difference.is_outside:
            raise slices_error(model, difference.error)
    dropped = {layer for unit in differing for layer in unit.layers}
    left = plan.with_layers([layer for layer in plan.layers if layer not in dropped])
    for unit, difference in differing.items():
        if not any(_is_row(model, layer) for layer in left.layers):
            raise split_difference_error(unit, difference, _blocking_operation(model, unit, inputs))
    return left


def _is_row(model: nn.Module, layer: SplitLayer) -> bool:
    return layer.kind == "row" and isinstance(model.get_submodule(layer.name), nn.Linear)


def _differing_units(
    model: nn.Module, plan: SplitPlan, inputs: Any, entered: Mapping[str, Any]
) -> dict[SplitUnit, SplitDifference]:
    """Return the units whose slices give a different result from the whole unit, each with its difference.

    All ranks of a run call this together.
    """
    units = split_units(model, plan)
    differences = run_on_rank_0(
        lambda: [] if inputs is None else find_differences(model, plan, units, inputs, entered)
    )
    pairs = zip(units, differences or [None] * len(units), strict=True)
    return {unit: difference for unit, difference in pairs if difference is not None}


def _blocking_operation(model: nn.Module, unit: SplitUnit, inputs: Any) -> str | None:
    """Return the name of the operation between a unit's column-wise layers and its row-wise layer that needs
    all features; None if it is unknown. All ranks call this together."""
    names = [layer.name for layer in unit.layers]
    return run_on_rank_0(lambda: operation_between(model, names[:-1], names[-1], inputs))


def _head_bias_tables(
    model: nn.Module, attentions: Sequence[AttentionLayers], between: LayerFlow
) -> list[str]:
    """Return the names of the embeddings of position biases, which are added to attention scores (as in T5).

    Such an embedding has one column per head; each rank keeps the columns of its own heads.

    Raises:
        ModelError: there is another weight between the linear layers of an attention layer.
    """
    tables: dict[str, None] = {}
    for attention in attentions:
        for weight in between.weights[attention.row]:
            owner = weight.rpartition(".")[0]
            module = model.get_submodule(owner) if "." in weight else None
            if not isinstance(module, nn.Embedding) or module.embedding_dim != attention.num_heads:
                raise ModelError(
                    phrase(
                        "Tensor parallelism would split {first} and {last}, so {weight} "
                        "between them would receive the heads of only one rank.",
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


def _iter_input_modules(
    model: nn.Module, layers: Iterable[SplitLayer], groups: Iterable[AttentionLayers | FeedForwardPair]
) -> Iterator[str]:
    """Yield modules that contain several column-wise layers of one group and no weights except those of split
    layers."""
    split = {layer.name for layer in layers}
    parents = Counter(group.columns[0].rpartition(".")[0] for group in groups)
    for group in groups:
        owners = {name.rpartition(".")[0] for name in group.columns}
        parent = next(iter(owners))
        weights = model.get_submodule(parent).named_parameters(parent, remove_duplicate=False)
        share = len(group.columns) > 1 and len(owners) == parents[parent] == 1
        if share and {name.rpartition(".")[0] for name, _ in weights} <= split:
            yield parent


def _vocabulary_layers(
    model: nn.Module, num_ranks: int, blocks: list[str]
) -> tuple[list[SplitLayer], str | None]:
    """Return the vocabulary layers to split, if an embedding (by rows) and the output layer (by columns) have
    the same vocabulary; also return the output layer's name if that layer is to be split.

    A tied weight is split under all its names or not at all.
    """
    embeddings = {
        n: m for n, m in model.named_modules() if isinstance(m, nn.Embedding) and _is_plain_lookup(m)
    }
    linears = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    name, last = linears[-1]
    if (
        not has_plain_weight(last)
        or any(name.startswith(f"{block}.") for block in blocks)
        or last.out_features % num_ranks
    ):
        return [], None
    tables = [n for n, m in embeddings.items() if m.num_embeddings == last.out_features]
    if not tables:
        return [], None
    output = SplitLayer(name, "column", gathers_output=True)
    # Each rank would apply a padding index to its own rows.
    rows = [SplitLayer(table, "row") for table in tables[:1] if embeddings[table].padding_idx is None]
    # The largest choice first; a tie to a layer outside of a choice rules it out.
    for chosen in ([*rows, output], [output], rows):
        if not find_loose_tie(model, {layer.name for layer in chosen}):
            return chosen, name if output in chosen else None
    return [], None


def _is_plain_lookup(table: nn.Embedding) -> bool:
    """Check whether an embedding does nothing but look up rows of its table.

    With max_norm, the table changes in each forward pass; with scale_grad_by_freq, each rank would count only
    its own words.
    """
    return (
        has_plain_weight(table) and table.max_norm is None and not (table.scale_grad_by_freq or table.sparse)
    )


# The user's plan: name patterns to "column" or "row".


def plan_from_patterns(model: nn.Module, num_ranks: int, patterns: Mapping[str, Kind]) -> SplitPlan:
    """Build the user's plan from `patterns`, which map name patterns ("blocks.*.up") to "column" or "row".

    If no row-wise layer follows a column-wise layer in the model's order, the outputs of the column-wise
    layer are gathered after it.

    Raises:
        ModelError: a pattern matches nothing that can be split, or a matched weight is also used elsewhere.
    """
    kinds: dict[str, Kind] = {}
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Embedding)]
    for pattern, kind in patterns.items():
        matching = fnmatch.filter(names, pattern)
        if not matching:
            raise ModelError(
                phrase(
                    'strategy.plan: "{pattern}" matches no linear layer or embedding of the model.',
                    pattern=pattern,
                ),
                path="strategy.plan",
                advice=did_you_mean(pattern, names) or phrase("Use the names from model.named_modules()."),
            )
        kinds |= dict.fromkeys(matching, kind)
    modules = dict(model.named_modules())
    layers = []
    split = [name for name in names if name in kinds]
    for index, name in enumerate(split):
        _require_plain(name, modules[name])
        _check_divides(name, modules[name], kinds[name], num_ranks)
        embeds = isinstance(modules[name], nn.Embedding)
        rows_follow = any(
            kinds[later] == "row" and not isinstance(modules[later], nn.Embedding)
            for later in split[index + 1 :]
        )
        layers.append(SplitLayer(name, kinds[name], kinds[name] == "column" and (embeds or not rows_follow)))
    if loose := find_loose_tie(model, set(split)):
        raise ModelError(
            phrase(
                "strategy.plan splits a weight that is shared with {loose}, but does not split {loose}.",
                loose=loose,
            ),
            path="strategy.plan",
            advice=phrase(
                "Add {loose} to the plan, or leave out the layer that shares its weight.", loose=loose
            ),
        )
    return SplitPlan(num_ranks, tuple(layers), heads=_find_heads(model, num_ranks, layers), is_user_plan=True)


def _find_heads(model: nn.Module, num_ranks: int, layers: Iterable[SplitLayer]) -> tuple[HeadCount, ...]:
    """Return the head counts of attention layers that the user's plan splits as an automatic plan would."""
    split = {(layer.name, layer.kind) for layer in layers}
    with contextlib.suppress(ModelError):  # attentions that cannot be split may not be part of this plan
        return tuple(
            count
            for attention in find_attentions(model, num_ranks)
            if {*((name, "column") for name in attention.columns), (attention.row, "row")} <= split
            for count in attention.counts
        )
    return ()


def _require_plain(name: str, module: nn.Module) -> None:
    if not has_plain_weight(module):
        raise ModelError(
            phrase(
                "strategy.plan: tensor parallelism splits only plain layers, but {name} "
                "computes its weight from other tensors (weight_norm, a parametrization) or has "
                "additional weights (an adapter).",
                name=name,
            ),
            path="strategy.plan",
            advice=phrase("Leave the layer out of the plan."),
        )


def _check_divides(name: str, module: nn.Module, kind: Kind, num_ranks: int) -> None:
    if isinstance(module, nn.Linear):
        width = module.out_features if kind == "column" else module.in_features
    else:
        assert isinstance(module, nn.Embedding)
        width = module.embedding_dim if kind == "column" else module.num_embeddings
    if width % num_ranks:
        raise ModelError(
            phrase(
                'strategy.plan: {name} as a "{kind}" layer has width {width}, which is not divisible '
                "by the number of ranks, {num_ranks}.",
                name=name,
                kind=kind,
                width=width,
                num_ranks=num_ranks,
            ),
            path="strategy.plan",
            advice=phrase(
                "Leave the layer out of the plan, or use a number of devices that divides its width."
            ),
        )
