"""A person's plan: name patterns to "column" or "row". Read plan.py before."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Iterable, Mapping

from torch import nn

from rankdeck.base.errors import ModelError, did_you_mean
from rankdeck.base.phrases import phrase
from rankdeck.parallel.tensor.attention import HeadCount, find_attentions, is_plain
from rankdeck.parallel.tensor.split_plan import Kind, SplitLayer, SplitPlan, loose_tie


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
        _require_plain(name, modules[name])
        _check_divides(name, modules[name], kinds[name], num_ranks)
        embeds = isinstance(modules[name], nn.Embedding)
        rows_follow = any(
            kinds[later] == "row" and not isinstance(modules[later], nn.Embedding)
            for later in split[place + 1 :]
        )
        layers.append(SplitLayer(name, kinds[name], kinds[name] == "column" and (embeds or not rows_follow)))
    if loose := loose_tie(model, set(split)):
        raise ModelError(
            phrase("strategy.plan splits a weight that {loose} shares and does not split.", loose=loose),
            path="strategy.plan",
            advice=phrase("Name {loose} in the plan too, or neither.", loose=loose),
        )
    return SplitPlan(num_ranks, tuple(layers), heads=_heads(model, num_ranks, layers), is_given=True)


def _heads(model: nn.Module, num_ranks: int, layers: Iterable[SplitLayer]) -> tuple[HeadCount, ...]:
    """The numbers of heads of attentions that the plan splits as a found plan would."""
    split = {(layer.name, layer.kind) for layer in layers}
    with contextlib.suppress(ModelError):  # what a found plan cannot split may be no part of this one
        return tuple(
            count
            for attention in find_attentions(model, num_ranks)
            if {*((name, "column") for name in attention.columns), (attention.row, "row")} <= split
            for count in attention.counts
        )
    return ()


def _require_plain(name: str, module: nn.Module) -> None:
    if not is_plain(module):
        raise ModelError(
            phrase(
                "strategy.plan: {name} computes its weight from others (weight_norm, a parametrization), or "
                "has more weights (an adapter), and tensor cuts plain layers.",
                name=name,
            ),
            path="strategy.plan",
            advice=phrase("Leave it out of the plan."),
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
