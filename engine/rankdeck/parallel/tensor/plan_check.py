"""Check a plan before anything is split: slices of each unit must give the same result as the full layers.

A unit is a set of layers that are split together or not at all: column-wise layers with the row-wise layer
after them, or the layers of one vocabulary. A small model is tried as a whole with real values (trial.py). A
large model is run with shapes only, and one block of each kind is tried with real values and few tokens.
Rank 0 runs the check for all ranks.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import Phrase, phrase, tr_noop
from rankdeck.parallel.pipelining.probing import (
    copy_sharing_weights,
    run_on_fake_tensors,
    without_side_effects,
)
from rankdeck.parallel.pytree import call_model, map_tensors, tensor_leaves
from rankdeck.parallel.tensor.attention import HeadCount, has_plain_weight
from rankdeck.parallel.tensor.split_plan import (
    SplitLayer,
    SplitPlan,
    UsedOutsideLayerError,
    apply_slices,
    is_head_table,
    tied_names,
)
from rankdeck.parallel.tensor.trial import SplitDifference, SplitTrial, TrialImpossibleError, exception_text
from rankdeck.torch_compat.dispatch import without_modes

_MAX_WORK = 30_000_000
"""Maximum number of weights times tokens for a trial with values; that size takes 0.1 s on a CPU."""
_MAX_BLOCK_WORK = 250_000_000
_NUM_TOKENS = 4
"""Number of tokens when a block is tried alone."""
DifferenceFn = Callable[[Sequence["SplitUnit"]], SplitDifference | None]


@dataclass(frozen=True)
class SplitUnit:
    """Layers that are split together, and the head counts that change with them."""

    layers: tuple[SplitLayer, ...]
    heads: tuple[HeadCount, ...]

    def within_block(self, block: str) -> SplitUnit | None:
        """Return the unit with names relative to the block; None if the unit is not entirely inside the
        block."""
        names = [item.name for item in self.layers] + [item.module for item in self.heads]
        if not all(f"{name}.".startswith(f"{block}.") for name in names):
            return None

        def relative_name(name: str) -> str:
            return name[len(block) + 1 :]

        return SplitUnit(
            tuple(replace(layer, name=relative_name(layer.name)) for layer in self.layers),
            tuple(replace(count, module=relative_name(count.module)) for count in self.heads),
        )


def split_units(model: nn.Module, plan: SplitPlan) -> list[SplitUnit]:
    """Group the plan's layers into units, in the plan's order."""
    groups = [list(group) for group in plan.groups()]
    belonging = [{layer.name for layer in group} for group in groups]
    for names in tied_names(model):
        owners = {name.rpartition(".")[0] for name in names}
        _merge_groups(
            groups, belonging, [index for index, group_names in enumerate(belonging) if group_names & owners]
        )
    tables = {layer.name for layer in plan.layers if is_head_table(model, layer)}
    if tables:
        with_heads = [
            i for i, group in enumerate(groups) if belonging[i] & tables or _group_heads(plan, group)
        ]
        _merge_groups(groups, belonging, with_heads)
    return [SplitUnit(tuple(group), _group_heads(plan, group)) for group in groups if group]


def _merge_groups(groups: list[list[SplitLayer]], belonging: list[set[str]], indices: Sequence[int]) -> None:
    for index in indices[1:]:
        groups[indices[0]] += groups[index]
        belonging[indices[0]] |= belonging[index]
        groups[index], belonging[index] = [], set()


def _group_heads(plan: SplitPlan, group: Iterable[SplitLayer]) -> tuple[HeadCount, ...]:
    names = [layer.name for layer in group]
    return tuple(count for count in plan.heads if any(name.startswith(f"{count.module}.") for name in names))


def find_differences(
    model: nn.Module, plan: SplitPlan, units: Sequence[SplitUnit], inputs: Any, entered: Mapping[str, Any]
) -> list[SplitDifference | None]:
    """Return, for each unit, how its slices' results differ from the full layers'; None if they do not
    differ, or if the unit cannot be tried.

    `entered` maps blocks to their arguments in one forward pass of the model.
    """
    with contextlib.suppress(TrialImpossibleError):
        trial = make_trial(model, plan.num_ranks, inputs)
        return _differences_by_unit(units, partial(_compare_units, trial))
    differences = _differences_by_unit(
        units, lambda some: _difference_on_shapes(model, plan.num_ranks, some, inputs)
    )
    tried = _block_differences(model, plan, units, entered)
    return [difference or tried.get(index) for index, difference in enumerate(differences)]


def make_trial(model: nn.Module, num_ranks: int, inputs: Any) -> SplitTrial:
    """Create a trial of the whole model.

    Raises:
        TrialImpossibleError: the model is too large to be tried as a whole, or cannot be tried at all.
    """
    if inputs is None or _estimate_work(model, inputs) > _MAX_WORK:
        raise TrialImpossibleError
    return SplitTrial(model, inputs, num_ranks, call_model)


def _compare_units(trial: SplitTrial, units: Sequence[SplitUnit]) -> SplitDifference | None:
    return trial.difference(*_layers_and_heads(units))


def _differences_by_unit(units: Sequence[SplitUnit], differ: DifferenceFn) -> list[SplitDifference | None]:
    together = differ(units)
    if together is None:
        return [None] * len(units)
    # Each unit alone only if all together differ: for most models one trial is enough.
    alone = [differ([unit]) for unit in units]
    # Units that differ only together cannot be distinguished, so none of them is split.
    return alone if any(alone) else [together] * len(units)


def _layers_and_heads(units: Iterable[SplitUnit]) -> tuple[list[SplitLayer], list[HeadCount]]:
    units = list(units)
    return [item for unit in units for item in unit.layers], [item for unit in units for item in unit.heads]


def _estimate_work(model: nn.Module, inputs: Any) -> int:
    """Estimate a forward pass's cost as weights times tokens; the first input gives the number of tokens."""
    tensors = tensor_leaves(inputs)
    if not tensors or not tensors[0].numel():
        return 0
    # Token ids have no feature dim at the end, and neither do images (4 dims).
    has_features = tensors[0].is_floating_point() and tensors[0].dim() < 4
    tokens = tensors[0].numel() // (tensors[0].shape[-1] if has_features else 1)
    return tokens * sum(weight.numel() for weight in model.parameters())


def _difference_on_shapes(
    model: nn.Module, num_ranks: int, units: Sequence[SplitUnit], inputs: Any
) -> SplitDifference | None:
    """Run the first rank's split model on shapes only; return the error that its code raises, or None."""
    layers, heads = _layers_and_heads(units)
    try:
        copied = copy_sharing_weights(model)
    except Exception:  # not every model can be copied
        return None
    apply_slices(
        copied, layers, heads, rank=0, num_ranks=num_ranks, exchange=lambda tensor: [tensor] * num_ranks
    )

    def run(shapes: Any) -> None:
        call_model(copied, shapes)

    try:
        with without_side_effects(copied), torch.no_grad():
            run_on_fake_tensors(run, inputs, copied)
    except UsedOutsideLayerError as error:
        return SplitDifference(str(error), is_outside=True)
    except Exception as error:
        return SplitDifference(exception_text(error))
    return None


def _block_differences(
    model: nn.Module, plan: SplitPlan, units: Sequence[SplitUnit], entered: Mapping[str, Any]
) -> dict[int, SplitDifference]:
    """Try one block of each kind; return the differences of units from the full layers, by unit index."""
    differences: dict[int, SplitDifference] = {}
    by_kind: dict[Any, list[SplitDifference | None]] = {}
    for block in plan.blocks:
        block_units = [(index, unit.within_block(block)) for index, unit in enumerate(units)]
        inside = [(index, unit) for index, unit in block_units if unit is not None]
        module = model.get_submodule(block)
        # Blocks of one class with weights of the same shapes behave alike: one trial is enough.
        kind = (type(module), *((name, tuple(weight.shape)) for name, weight in module.named_parameters()))
        if kind not in by_kind and block in entered:
            by_kind[kind] = _try_block(module, [unit for _, unit in inside], plan.num_ranks, entered[block])
        for (index, _), difference in zip(inside, by_kind.get(kind, []), strict=False):
            if difference is not None:
                differences[index] = difference
    return differences


def _try_block(
    block: nn.Module, units: Sequence[SplitUnit], num_ranks: int, arguments: Any
) -> list[SplitDifference | None]:
    # Few tokens first; a block that does not run on them gets all.
    for inputs in (_truncate_tokens(arguments), arguments):
        if _estimate_work(block, inputs) > _MAX_BLOCK_WORK:
            continue
        try:
            trial = SplitTrial(block, inputs, num_ranks, _call_block)
        except TrialImpossibleError:
            continue
        return _differences_by_unit(units, partial(_compare_units, trial))
    return []


def _call_block(block: nn.Module, arguments: Any) -> Any:
    args, kwargs = arguments
    return block(*args, **kwargs)


def _truncate_tokens(arguments: Any) -> Any:
    """Truncate the hidden states' second dim, and all dims of the same length, in all arguments."""
    hidden = next((tensor for tensor in tensor_leaves(arguments) if tensor.is_floating_point()), None)
    length = hidden.shape[1] if hidden is not None and hidden.dim() == 3 else 0

    def cut(tensor: Tensor) -> Tensor:
        for dim, size in enumerate(tensor.shape):
            if size == length > _NUM_TOKENS:
                tensor = tensor.narrow(dim, 0, _NUM_TOKENS)
        return tensor

    # The planner runs this model in its own fake mode, and the arguments come from another one.
    with without_modes():
        return map_tensors(arguments, cut)


# Errors that explain why a model, or the layers of the user's plan, cannot be split, and what works.

_ALTERNATIVES_ADVICE = phrase("Use ddp, which works with unmodified models, or try fsdp or pipeline.")
_MAX_TRIED_PAIRS = 8
"""Maximum number of pairs of layers that are tried for a recommendation."""


def slices_error(model: nn.Module, complaint: str) -> ModelError:
    return ModelError(
        phrase(
            "{model} does not run with the slices of its layers that tensor parallelism gives "
            "each rank: {complaint}.",
            model=type(model).__name__,
            complaint=complaint,
        ),
        code="tensor-plan",
        path="strategy.use",
        advice=phrase(
            "In reshapes, use -1 for the width of all heads and store the number of heads in "
            "num_heads, or use ddp, fsdp or pipeline."
        ),
    )


def split_difference_error(
    unit: SplitUnit, difference: SplitDifference, operation: str | None, *, is_given: bool = False
) -> ModelError:
    """Return the error for layers whose slices would give a different result from the full layers.

    `operation`, if known, needs the layers' full outputs; `is_given` is true if the user planned the split.
    """
    advice = _ALTERNATIVES_ADVICE
    if is_given:
        advice = phrase("Leave these layers out of strategy.plan, or use ddp, fsdp or pipeline.")
    return ModelError(
        _difference_text(unit, difference, operation),
        code="tensor-plan",
        path="strategy.plan" if is_given else "strategy.use",
        advice=advice,
    )


def _difference_text(unit: SplitUnit, difference: SplitDifference, operation: str | None) -> Phrase:
    first, last = unit.layers[0].name, unit.layers[-1].name
    layers = phrase("{first} and {last}", first=first, last=last) if first != last else first
    if difference.is_outside:
        return phrase(
            "Tensor parallelism cannot split {weight}: the model also uses it outside its "
            "layer (as in F.linear(hidden, layer.weight)).",
            weight=difference.error,
        )
    if difference.error:
        return phrase(
            "Tensor parallelism cannot split {layers}: the model does not run with slices of "
            "them ({complaint}).",
            layers=layers,
            complaint=difference.error,
        )
    if operation:
        return phrase(
            "Tensor parallelism cannot split {layers}: {operation} between them needs all "
            "features, but each rank would have only a part of them.",
            layers=layers,
            operation=operation,
        )
    if unit.heads:
        return phrase(
            "Tensor parallelism cannot split {layers}: with only one rank's heads, they "
            "compute different results. The model mixes values of different heads, or uses {attribute} "
            "(which becomes the number of heads per rank) for more than reshaping.",
            layers=layers,
            attribute=f"{unit.heads[0].module}.{unit.heads[0].attribute}",
        )
    return phrase(
        "Tensor parallelism cannot split {layers}: their slices compute different results "
        "(relative difference {share:.2g}).",
        layers=layers,
        share=difference.relative,
    )


def no_split_error(model: nn.Module, num_ranks: int, inputs: Any) -> ModelError:
    """Return the error for a model in which nothing can be split; it suggests a manual plan if one works."""
    kinds = _count_layer_types(model)
    name, top_kinds = (
        type(model).__name__,
        ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(3)),
    )
    if works := _working_plan(model, num_ranks, inputs):
        column, row = works
        example = f'strategy.plan = {{ "{column}" = "column", "{row}" = "row" }}'
        return ModelError(
            phrase("No layers to split were found in {model} ({kinds}).", model=name, kinds=top_kinds),
            code="tensor-plan",
            path="strategy.plan",
            advice=phrase("Specify the layers to split: {example}.", example=example),
        )
    layers = {
        path: module for path, module in model.named_modules() if isinstance(module, nn.Linear | nn.Embedding)
    }
    computed = next((layer for layer, module in layers.items() if not has_plain_weight(module)), None)
    if not layers or {"Conv1D", "Conv2d", "Conv3d"} & kinds.keys():
        template = _OTHER_LAYERS_TEXT
    else:
        template = _COMPUTED_WEIGHT_TEXT if computed else _NO_PAIR_TEXT
    return ModelError(
        phrase(template, model=name, kinds=top_kinds, num_ranks=num_ranks, layer=computed),
        code="tensor-plan",
        path="strategy.use",
        advice=_ALTERNATIVES_ADVICE,
    )


_OTHER_LAYERS_TEXT = tr_noop(
    "Tensor parallelism splits Linear and Embedding layers, but the weights of {model} are in "
    "other layers ({kinds})."
)
_NO_PAIR_TEXT = tr_noop(
    "No two layers were found in {model} ({kinds}) that {num_ranks} ranks can split. Between the two "
    "layers there must be only elementwise operations, the first layer's outputs must go to no other "
    "layer, and their width must be divisible by the number of ranks."
)
_COMPUTED_WEIGHT_TEXT = tr_noop(
    "No layers to split were found in {model} ({kinds}): only plain layers can be split, but "
    "{layer} computes its weight from other tensors (weight_norm, a parametrization) or has "
    "additional weights (an adapter)."
)


def _count_layer_types(model: nn.Module) -> Counter[str]:
    owners = (module for module in model.modules() if any(True for _ in module.parameters(recurse=False)))
    return Counter(type(module).__name__ for module in owners)


def _working_plan(model: nn.Module, num_ranks: int, inputs: Any) -> tuple[str, str] | None:
    """Return a column-wise and a row-wise layer whose slices give the full layers' result, or None."""
    try:
        trial = make_trial(model, num_ranks, inputs)
    except TrialImpossibleError:
        return None
    for column, row in itertools.islice(_neighbours(model, num_ranks), _MAX_TRIED_PAIRS):
        if trial.difference([SplitLayer(column, "column"), SplitLayer(row, "row")], []) is None:
            return column, row
    return None


def _neighbours(model: nn.Module, num_ranks: int) -> Iterator[tuple[str, str]]:
    """Yield pairs of linear layers in which the second accepts the first's outputs, closest pairs first."""
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and has_plain_weight(module)
    ]
    for distance in range(1, len(layers)):
        for (name, module), (after, following) in zip(layers, layers[distance:], strict=False):
            if module.out_features == following.in_features and module.out_features % num_ranks == 0:
                yield name, after
