"""Why tensor splits nothing of a model, or not what a person names, and what works instead."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import nn

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import Phrase, marked, phrase
from rankdeck.parallel.tensor.attention import is_plain
from rankdeck.parallel.tensor.checked import Unit, trial_of
from rankdeck.parallel.tensor.split_plan import SplitLayer
from rankdeck.parallel.tensor.trial import CannotTryError, SplitDifference

_INSTEAD = phrase("Use ddp, which takes every model as it is, or try fsdp or pipeline.")
_MOST_TRIED = 8
"""Pairs of layers that are tried out for an advice."""


def does_not_take_slices(model: nn.Module, complaint: str) -> ModelError:
    return ModelError(
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


def differs(
    unit: Unit, difference: SplitDifference, operation: str | None, *, is_given: bool = False
) -> ModelError:
    """Layers would compute something else from slices. `operation` needs them whole, if it is known."""
    advice = _INSTEAD
    if is_given:
        advice = phrase("Leave these layers out of strategy.plan, or use ddp, fsdp or pipeline.")
    return ModelError(
        _why(unit, difference, operation),
        code="tensor-plan",
        path="strategy.plan" if is_given else "strategy.use",
        advice=advice,
    )


def _why(unit: Unit, difference: SplitDifference, operation: str | None) -> Phrase:
    first, last = unit.layers[0].name, unit.layers[-1].name
    layers = phrase("{first} and {last}", first=first, last=last) if first != last else first
    if difference.is_outside:
        return phrase(
            "tensor cannot split {weight}: the model also uses it outside of its layer (as "
            "F.linear(hidden, layer.weight) does).",
            weight=difference.complaint,
        )
    if difference.complaint:
        return phrase(
            "tensor cannot split {layers}: the model does not take slices of them ({complaint}).",
            layers=layers,
            complaint=difference.complaint,
        )
    if operation:
        return phrase(
            "tensor cannot split {layers}: {operation} between them needs all numbers, of which each rank "
            "would have a part.",
            layers=layers,
            operation=operation,
        )
    if unit.heads:
        return phrase(
            "tensor cannot split {layers}: from the heads of one rank they compute something else. The code "
            "combines heads, or uses {attribute}, then the number of a rank's heads, for more than shapes.",
            layers=layers,
            attribute=f"{unit.heads[0].module}.{unit.heads[0].attribute}",
        )
    return phrase(
        "tensor cannot split {layers}: slices of them compute something else (by {share:.2g} of the whole).",
        layers=layers,
        share=difference.share,
    )


def nothing_to_split(model: nn.Module, num_ranks: int, inputs: Any) -> ModelError:
    """What a model keeps its weights in, and a plan by hand where one works."""
    kinds = _kinds(model)
    name, most = type(model).__name__, ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(3))
    if works := _working_plan(model, num_ranks, inputs):
        column, row = works
        example = f'strategy.plan = {{ "{column}" = "column", "{row}" = "row" }}'
        return ModelError(
            phrase("tensor found nothing to split in {model} ({kinds}).", model=name, kinds=most),
            code="tensor-plan",
            path="strategy.plan",
            advice=phrase("Name its layers: {example}.", example=example),
        )
    layers = {
        path: module for path, module in model.named_modules() if isinstance(module, nn.Linear | nn.Embedding)
    }
    computed = next((layer for layer, module in layers.items() if not is_plain(module)), None)
    if not layers or {"Conv1D", "Conv2d", "Conv3d"} & kinds.keys():
        template = _IN_OTHERS
    else:
        template = _COMPUTED if computed else _NO_TWO_LAYERS
    return ModelError(
        phrase(template, model=name, kinds=most, num_ranks=num_ranks, layer=computed),
        code="tensor-plan",
        path="strategy.use",
        advice=_INSTEAD,
    )


_IN_OTHERS = marked(
    "tensor splits Linear and Embedding layers, and {model} keeps its weights in others ({kinds})."
)
_NO_TWO_LAYERS = marked(
    "tensor found no two layers in {model} ({kinds}) that {num_ranks} ranks can split: one whose outputs go "
    "to the other one alone, number by number, and whose width divides by the ranks."
)
_COMPUTED = marked(
    "tensor found nothing to split in {model} ({kinds}): it splits layers with a weight of their own, and "
    "{layer} computes its weight from others (weight_norm, a parametrization), or has more (an adapter)."
)


def _kinds(model: nn.Module) -> Counter[str]:
    owners = (module for module in model.modules() if any(True for _ in module.parameters(recurse=False)))
    return Counter(type(module).__name__ for module in owners)


def _working_plan(model: nn.Module, num_ranks: int, inputs: Any) -> tuple[str, str] | None:
    """A column and a row that compute from slices what they compute whole."""
    try:
        trial = trial_of(model, num_ranks, inputs)
    except CannotTryError:
        return None
    for column, row in itertools.islice(_neighbours(model, num_ranks), _MOST_TRIED):
        if trial.difference([SplitLayer(column, "column"), SplitLayer(row, "row")], []) is None:
            return column, row
    return None


def _neighbours(model: nn.Module, num_ranks: int) -> Iterator[tuple[str, str]]:
    """Linear layers of which the first gives as many numbers as the second one takes, nearest first."""
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and is_plain(module)
    ]
    for distance in range(1, len(layers)):
        for (name, module), (after, following) in zip(layers, layers[distance:], strict=False):
            if module.out_features == following.in_features and module.out_features % num_ranks == 0:
                yield name, after
