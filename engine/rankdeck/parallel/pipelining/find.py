"""Where a model's units come from, in this order:

    1. the model says them itself: pipeline_units() -> [(name, module), ...]
    2. an nn.Sequential, opened
    3. its modules run in a row (observed.py): Hugging Face decoders, BERT, ResNets, ...
    4. a trace of its graph (traced.py)

What is found is run once against the model (equality.py), so that a model that only looks like a row goes on
to 4. One that cannot be traced keeps those cuts of 3 that change nothing. Read costs.py next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import Phrase, phrase
from rankdeck.parallel.backward import USE_DDP
from rankdeck.parallel.pipelining.chain import UNITS_ADVICE, Chain, UnitChain
from rankdeck.parallel.pipelining.equality import GOES_BACK, Equality
from rankdeck.parallel.pipelining.observed import ObservedChain, observe
from rankdeck.parallel.pipelining.traced import trace
from rankdeck.torch_compat.modules import own_children


def find_chain(model: nn.Module, inputs: Any, num_samples: int, known: dict[str, Any] | None = None) -> Chain:
    """The model as a row of units. `inputs` is a batch of `num_samples` as training will see it; `known` is
    as of equality.py.

    Raises: ModelError when the model cannot be cut.
    """
    equality = Equality(model, inputs, known)
    own = getattr(model, "pipeline_units", None)
    if callable(own):
        chain = UnitChain(model, _checked(own(), model))
        if difference := equality.difference(chain):
            raise _other_units(model, difference)
        return chain
    if type(model).forward is nn.Sequential.forward:
        row: Chain = UnitChain(model, list(_opened(model, "")))
        difference = equality.difference(row)
        return row if difference is None else _without_bad_cuts(row, equality, difference)
    observed = observe(model, inputs)
    row = ObservedChain(model, observed, num_samples, inputs)
    difference = equality.difference(row) if len(row) > 1 else None
    if len(row) > 1 and difference is None:
        return row
    try:
        traced = trace(model, inputs, [unit.name for unit in observed.units[1:]])
    except ModelError:
        if difference is None:
            raise
    else:
        if (other := equality.difference(traced)) is None:
            return traced
        difference = difference or other
    return _without_bad_cuts(row, equality, difference)


def _without_bad_cuts(chain: Chain, equality: Equality, difference: Phrase) -> Chain:
    """The chain with those of its cuts that change nothing.

    Raises: ModelError when there are none; `difference` is what all cuts together change.
    """
    starts = [start for start in range(1, len(chain)) if equality.difference(chain.only([start])) is None]
    if starts and equality.difference(left := chain.only(starts)) is None:
        return left
    raise ModelError(
        phrase(
            "{model} cannot be cut into stages that compute what it computes: {difference}.",
            model=type(chain.model).__name__,
            difference=difference,
        ),
        path="strategy.use",
        advice=USE_DDP if difference == GOES_BACK else UNITS_ADVICE,
    )


def _other_units(model: nn.Module, difference: Phrase) -> ModelError:
    return ModelError(
        phrase(
            "{model}.pipeline_units() does not compute what the model's forward does: {difference}.",
            model=type(model).__name__,
            difference=difference,
        ),
        path="model.use",
        advice=phrase(
            "Return every module that forward runs, in its order. Put the code between them into modules."
        ),
    )


def _checked(units: Any, model: nn.Module) -> list[tuple[str, nn.Module]]:
    is_list = isinstance(units, list) and all(isinstance(unit, tuple) and len(unit) == 2 for unit in units)
    if units and is_list and all(isinstance(unit, nn.Module) for _, unit in units):
        return [(str(name), unit) for name, unit in units]
    raise ModelError(
        phrase("{model}.pipeline_units() must return a list of (name, module).", model=type(model).__name__),
        path="model.use",
        advice=phrase(
            "Return the modules in the order in which they run, each fed what the one before returned."
        ),
    )


def _opened(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    for name, child in own_children(module).items():  # one that runs twice stands there twice
        if child is None:
            continue
        if type(child).forward is nn.Sequential.forward and len(list(child.children())):
            yield from _opened(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", child
