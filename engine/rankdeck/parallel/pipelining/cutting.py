"""A model cut into stages: each stage's units and weights, and the tensors that cross each cut.

Weights keep the model's own names: a stage holds the model's own Parameters, and names are looked up by
tensor. A weight that several stages use (a tied embedding) is held by each of them. A tensor that no unit
uses belongs to the first stage. Read communication.py next, then the strategies.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from rankdeck.base.errors import ConfigError, ModelError, did_you_mean, format_choices
from rankdeck.base.phrases import Phrase, phrase
from rankdeck.config.catalog import CutOptions
from rankdeck.parallel.backward import USE_DDP
from rankdeck.parallel.collectives.broadcast import run_on_rank_0_or_all
from rankdeck.parallel.pipelining import costs
from rankdeck.parallel.pipelining.chain import UNITS_ADVICE, Chain, UnitChain
from rankdeck.parallel.pipelining.costs import Boundary
from rankdeck.parallel.pipelining.equality import USES_AUTOGRAD_GRAD, ChainComparison
from rankdeck.parallel.pipelining.observed import ObservedChain, observe_units
from rankdeck.parallel.pipelining.traced import trace_chain
from rankdeck.torch_compat.modules import own_buffers, own_children, own_tensors, split_state_dict


@dataclass(frozen=True)
class StageWeight:
    """One entry of the model's state dict, with the stages that hold it, the owner first."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    stages: tuple[int, ...]


class CutModel:
    """A model cut into stages. `stages[i]` is called as chain.py describes. `boundaries[i]` describes the
    tensors that enter stage i, for batches of the size for which the model was cut; the last entry is empty.
    """

    def __init__(self, chain: Chain, cuts: list[int], boundaries: list[Boundary]) -> None:
        starts, ends = [0, *cuts], [*cuts, len(chain)]
        self.model = chain.model
        self.accepts_any_batch = chain.accepts_any_batch
        self.reads_inputs = chain.reads_inputs
        self.units = [chain.names[start:end] for start, end in zip(starts, ends, strict=True)]
        self.boundaries = [*(boundaries[start] for start in starts), ()]
        # Traced modules have their own training flag, off at first.
        self.stages = [chain.stage(start, end).train() for start, end in zip(starts, ends, strict=True)]
        self._copies: list[tuple[Any, Tensor]] = []
        self._holders = self._find_holders(chain.owners, ends)
        self.weights = [
            StageWeight(name, tensor.shape, tensor.dtype, self._holders.get(id(tensor), (0,)))
            for name, tensor in split_state_dict(self.model)[0].items()
        ]

    def _find_holders(self, owners: dict[int, int], ends: list[int]) -> dict[int, tuple[int, ...]]:
        """Map each tensor's id to the stages that use it, starting with the stage that provides its value."""
        holders: dict[int, tuple[int, ...]] = {}
        for index, stage in enumerate(self.stages):
            for tensor in weights_and_buffers(stage):
                holders[id(tensor)] = (*holders.get(id(tensor), ()), index)
        for buffer, unit in owners.items():
            owner = bisect.bisect(ends, unit)
            others = tuple(index for index in holders.get(buffer, ()) if index != owner)
            holders[buffer] = (owner, *others)
        return holders

    def owner_stage(self, tensor: Tensor) -> int:
        """Return the stage that owns a weight or buffer: the first holder, or stage 0 if no unit uses it."""
        return self._holders.get(id(tensor), (0,))[0]

    def copy_shared_buffers(self, stages: Iterable[int]) -> None:
        """Give each of this process's `stages` its own copy of shared buffers, except the first holder of a
        buffer, which keeps the original."""
        together = list(stages)
        for index in together:
            clones: dict[int, Tensor] = {}
            for table in [own_buffers(module) for module in self.stages[index].modules()]:
                for name, buffer in table.items():
                    holders = self._holders.get(id(buffer), (index,))
                    if buffer is not None and next(s for s in holders if s in together) != index:
                        table[name] = clones.setdefault(id(buffer), buffer.clone())
                        self._copies.append((table[name], buffer))

    @torch.no_grad()
    def refresh_copies(self) -> None:
        """Copy the model's buffers into the stages' copies, at the start of a forward pass."""
        for copy, buffer in self._copies:
            copy.copy_(buffer)

    def shared_parameters(self) -> list[tuple[nn.Parameter, tuple[int, ...]]]:
        """Return parameters that several stages hold, with those stages, in the model's order."""
        holders = [
            (parameter, self._holders.get(id(parameter), (0,))) for parameter in self.model.parameters()
        ]
        return [(parameter, stages) for parameter, stages in holders if len(stages) > 1]

    def stage_tensors(self, stages: Iterable[int]) -> list[Tensor]:
        """Return the parameters and buffers that any of the stages needs, each once."""
        tensors = [tensor for stage in set(stages) for tensor in weights_and_buffers(self.stages[stage])]
        tensors += self.unused_tensors(stages)
        return list({id(tensor): tensor for tensor in tensors}.values())

    def unused_tensors(self, stages: Iterable[int]) -> list[Tensor]:
        """Return the tensors that no unit of the model uses. They belong to stage 0: if `stages` does not
        include 0, return an empty list. Call this before weights are replaced."""
        if 0 not in stages:
            return []
        return [tensor for tensor in weights_and_buffers(self.model) if id(tensor) not in self._holders]

    def keep_only(self, stages: Iterable[int]) -> None:
        """Drop the tensors of all other stages; the model keeps its structure and names."""
        kept_ids = {id(tensor) for tensor in self.stage_tensors(stages)}
        for module in self.model.modules():
            for tensors in own_tensors(module):
                for name, tensor in tensors.items():
                    if tensor is not None and id(tensor) not in kept_ids:
                        tensors[name] = None
        kept_stages = set(stages)
        self.stages = [
            stage if index in kept_stages else nn.Module() for index, stage in enumerate(self.stages)
        ]


def cut_model(
    model: nn.Module,
    num_stages: int,
    options: CutOptions,
    inputs: Any,
    num_samples: int,
    *,
    device: torch.device,
    known_differences: dict[Hashable, Phrase | None] | None = None,
    read_outputs: Callable[[Any], Sequence[Tensor]] | None = None,
) -> CutModel:
    """Cut the model into `num_stages` stages, as strategy.cuts or strategy.balance specifies.

    `inputs` is a batch of `num_samples` samples as each stage will get it. `read_outputs` returns the model
    outputs that the loss reads; pass it if gradients are sent from stage to stage. `known_differences` is
    described in equality.py. All ranks of the run call this together. Raises: ModelError, ConfigError.
    """
    chain = find_chain(model, inputs, num_samples, known_differences)
    holds_weights = [bool(weights) for weights in chain.weights]  # an optimizer needs at least one
    if options.cuts:
        cuts = resolve_cuts(options.cuts, chain.names, num_stages, holds_weights)
    else:
        # Measured on one rank only, because every pipeline of a mesh must be cut alike.
        measured = run_on_rank_0_or_all(lambda: costs.unit_costs(chain, options.balance, inputs, device))
        cuts = balanced_cuts(measured, num_stages, holds_weights)

    def boundaries() -> list[Boundary]:
        shapes = costs.find_boundaries(chain, inputs, num_samples)
        return shapes if read_outputs is None else costs.mark_gradients(shapes, chain, inputs, read_outputs)

    return CutModel(chain, cuts, run_on_rank_0_or_all(boundaries))


def weights_and_buffers(module: nn.Module) -> list[Tensor]:
    """Return the parameters, then the buffers, each tensor once."""
    return [*module.parameters(), *module.buffers()]


def move_in_place(tensors: Iterable[Tensor], device: torch.device) -> None:
    """Move tensors to a device without replacing the objects, so that stages and model keep sharing them."""
    for tensor in tensors:
        tensor.data = tensor.data.to(device)


# Where to cut a row of units: balanced by cost, or at the user's cuts. A cut is the index of the unit after
# it. Balanced: the most expensive stage is as cheap as possible, and then all stages as even as possible.

_MAX_SHOWN_UNITS = 12


def balanced_cuts(costs: Sequence[float], num_stages: int, holds_weights: Sequence[bool]) -> list[int]:
    """Return `num_stages` - 1 cuts in ascending order; every stage holds at least one unit with weights.

    Raises: ModelError if there are too few units."""
    num_units = len(costs)
    total, weighted = [0.0], [0]
    for cost, has_weights in zip(costs, holds_weights, strict=True):
        total.append(total[-1] + cost)
        weighted.append(weighted[-1] + has_weights)
    if weighted[-1] < num_stages:
        raise ModelError(
            phrase(
                "{num_stages} stages need as many units with weights, but the model has only {num_units}.",
                num_units=weighted[-1],
                num_stages=num_stages,
            ),
            path="strategy.use",
            advice=phrase("Use at most {num_units} stages, or a deeper model.", num_units=weighted[-1]),
        )

    # Dynamic programming: the best cuts of the remaining units depend only on where they start and `stages`.
    @cache
    def best(start: int, stages: int) -> tuple[float, float, tuple[int, ...]] | None:
        """Return (cost of the most expensive stage, sum of squared costs, ends of the stages) for the best
        split of units[start:] into `stages` stages."""
        options = []
        for end in range(start + 1, num_units - stages + 2) if stages > 1 else [num_units]:
            cost = total[end] - total[start]
            rest = best(end, stages - 1) if stages > 1 else (cost, 0.0, ())
            if rest is not None and weighted[end] > weighted[start]:
                options.append((max(cost, rest[0]), cost**2 + rest[1], (end, *rest[2])))
        return min(options, default=None)

    stages = best(0, num_stages)
    assert stages is not None, "fewer units with weights than stages"
    return list(stages[2][:-1])


def resolve_cuts(
    user_cuts: Sequence[str | int], names: Sequence[str], num_stages: int, holds_weights: Sequence[bool]
) -> list[int]:
    """Resolve a user's cuts: each is the name or the index of a stage's first unit.

    A cut may also name a module of several units: "layer3" means "layer3.0". Raises: ConfigError.
    """
    if len(user_cuts) != num_stages - 1:
        raise _cut_count_error(len(user_cuts), num_stages)
    cuts = [_resolve_cut(cut, names) for cut in user_cuts]
    ends = [*cuts, len(names)]
    for start, end in zip([0, *cuts], ends, strict=True):
        if end <= start:
            raise ConfigError(
                phrase("strategy.cuts = {wanted} leaves a stage without units.", wanted=list(user_cuts)),
                path="strategy.cuts",
                advice=phrase("List units in the model's order: {names}.", names=_shorten_names(names)),
            )
        if not any(holds_weights[start:end]):
            raise ConfigError(
                phrase(
                    "strategy.cuts = {wanted} leaves a stage without weights: that stage has only {names}.",
                    wanted=list(user_cuts),
                    names=", ".join(names[start:end]),
                ),
                path="strategy.cuts",
                advice=phrase("Move a cut so that each stage has weights."),
            )
    return cuts


def _cut_count_error(num_cuts: int, num_stages: int) -> ConfigError:
    if num_cuts == 1:
        message = phrase(
            "strategy.cuts has 1 cut, which makes 2 stages, but the run has {num_stages}.",
            num_stages=num_stages,
        )
    else:
        message = phrase(
            "strategy.cuts has {num_cuts} cuts, which make {num_made} stages, but the run has {num_stages}.",
            num_cuts=num_cuts,
            num_made=num_cuts + 1,
            num_stages=num_stages,
        )
    if num_stages == 2:
        advice = phrase("Specify 1 cut, or leave strategy.cuts out.")
    else:
        advice = phrase("Specify {num_cuts} cuts, or leave strategy.cuts out.", num_cuts=num_stages - 1)
    return ConfigError(message, path="strategy.cuts", advice=advice)


def _resolve_cut(cut: str | int, names: Sequence[str]) -> int:
    if isinstance(cut, str) and cut.lstrip("-").isdigit():
        cut = int(cut)
    if isinstance(cut, int):
        if 0 < cut < len(names):
            return cut
        message = phrase(
            "strategy.cuts: the model cannot be cut before unit {cut} of {num_units}.",
            cut=cut,
            num_units=len(names),
        )
        choices = _shorten_names(names)
        advice = phrase(
            "Use unit numbers 1 to {most}, or names: {names}.", most=len(names) - 1, names=choices
        )
        raise ConfigError(message, path="strategy.cuts", advice=advice)
    for index, name in enumerate(names):
        if index and (name == cut or name.startswith(cut + ".")):
            return index
    raise ConfigError(
        phrase('strategy.cuts: the model has no unit "{cut}" at which a stage can start.', cut=cut),
        path="strategy.cuts",
        advice=did_you_mean(cut, names) or phrase("The model's units: {names}.", names=_shorten_names(names)),
    )


def _shorten_names(names: Sequence[str]) -> str:
    if len(names) <= _MAX_SHOWN_UNITS:
        return format_choices(names)
    return f"{', '.join(names[: _MAX_SHOWN_UNITS - 1])}, ... {names[-1]}"


# Where a model's units come from, in this order:
#     1. the model's own list: pipeline_units() -> [(name, module), ...]
#     2. the items of an nn.Sequential
#     3. modules that run one after another (observed.py): Hugging Face decoders, BERT, ResNets, ...
#     4. a trace of its graph (traced.py)
# Each result is compared with the model (equality.py): if cuts of 3 change results, 4 is tried.
# If tracing fails too, only those cuts of 3 that change nothing are used.


def find_chain(
    model: nn.Module, inputs: Any, num_samples: int, differences: dict[Hashable, Phrase | None] | None = None
) -> Chain:
    """Find the model's sequence of units. `inputs` is a batch of `num_samples` samples, as in training;
    `differences` are `known_differences` of equality.py. Raises: ModelError when the model cannot be cut."""
    equality = ChainComparison(model, inputs, differences)
    model_units = getattr(model, "pipeline_units", None)
    if callable(model_units):
        chain = UnitChain(model, _validate_units(model_units(), model))
        if difference := equality.difference(chain):
            raise _units_error(model, difference)
        return chain
    if type(model).forward is nn.Sequential.forward:
        row: Chain = UnitChain(model, list(_flatten_sequential(model, "")))
        difference = equality.difference(row)
        return row if difference is None else _drop_bad_cuts(row, equality, difference)
    observed = observe_units(model, inputs)
    row = ObservedChain(model, observed, num_samples, inputs)
    difference = equality.difference(row) if len(row) > 1 else None
    if len(row) > 1 and difference is None:
        return row
    try:
        traced = trace_chain(model, inputs, [unit.name for unit in observed.units[1:]])
    except ModelError:
        if difference is None:
            raise
    else:
        if (other := equality.difference(traced)) is None:
            return traced
        difference = difference or other
    return _drop_bad_cuts(row, equality, difference)


def _drop_bad_cuts(chain: Chain, equality: ChainComparison, difference: Phrase) -> Chain:
    """Return the chain with only those cuts that do not change the model's results. Raises: ModelError when
    no such cut exists; `difference` describes the effect of all cuts together."""
    starts = [at for at in range(1, len(chain)) if equality.difference(chain.with_cuts([at])) is None]
    if starts and equality.difference(left := chain.with_cuts(starts)) is None:
        return left
    raise ModelError(
        phrase(
            "{model} cannot be cut into stages that reproduce its results: {difference}.",
            model=type(chain.model).__name__,
            difference=difference,
        ),
        path="strategy.use",
        advice=USE_DDP if difference == USES_AUTOGRAD_GRAD else UNITS_ADVICE,
    )


def _units_error(model: nn.Module, difference: Phrase) -> ModelError:
    return ModelError(
        phrase(
            "The units from {model}.pipeline_units() do not compute the same results as the model's "
            "forward method: {difference}.",
            model=type(model).__name__,
            difference=difference,
        ),
        path="model.use",
        advice=phrase(
            "Return every module that the forward method runs, in the same order. Move code that runs "
            "between modules into a module."
        ),
    )


def _validate_units(units: Any, model: nn.Module) -> list[tuple[str, nn.Module]]:
    is_list = isinstance(units, list) and all(isinstance(unit, tuple) and len(unit) == 2 for unit in units)
    if units and is_list and all(isinstance(unit, nn.Module) for _, unit in units):
        return [(str(name), unit) for name, unit in units]
    raise ModelError(
        phrase("{model}.pipeline_units() must return (name, module) pairs.", model=type(model).__name__),
        path="model.use",
        advice=phrase(
            "Return the modules in the order in which they run. Each receives the output of "
            "the previous module."
        ),
    )


def _flatten_sequential(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    for name, child in own_children(module).items():  # a module that runs twice is listed twice
        if child is None:
            continue
        if type(child).forward is nn.Sequential.forward and len(list(child.children())):
            yield from _flatten_sequential(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", child
