"""Where a model's units come from, in this order:

    1. the model says them itself: pipeline_units() -> [(name, module), ...]
    2. an nn.Sequential, opened
    3. its modules run in a row (observed.py): Hugging Face decoders, BERT, ResNets, ...
    4. a trace of its graph (traced.py)

What 3 finds is run once against the model, so that a model that only looks like a row goes on to 4. One that
cannot be traced is cut where its own code carries nothing past. Read costs.py next.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import phrase
from rankdeck.parallel.nested import call, tensors_of
from rankdeck.parallel.pipelining.chain import Chain, Received, UnitChain
from rankdeck.parallel.pipelining.observed import ObservedChain, observe
from rankdeck.parallel.pipelining.probing import same_history, without_effects
from rankdeck.parallel.pipelining.traced import trace
from rankdeck.parallel.pipelining.watching import Seen
from rankdeck.torch_compat.fake_tensors import FakeTensor


def find_chain(model: nn.Module, inputs: Any, num_samples: int) -> Chain:
    """The model as a row of units. `inputs` is a batch of `num_samples` as training will see it.

    Raises: ModelError when the model cannot be cut.
    """
    own = getattr(model, "pipeline_units", None)
    if callable(own):
        return UnitChain(model, _checked(own(), model))
    if type(model).forward is nn.Sequential.forward:
        return UnitChain(model, list(_opened(model, "")))
    seen = observe(model, inputs)
    if row := _row(model, seen, inputs, num_samples):
        return row
    try:
        return trace(model, inputs, [unit.name for unit in seen[1:]])
    except ModelError:
        apart = [replace(unit, can_cut=unit.can_cut and not unit.is_bridged) for unit in seen]
        if row := _row(model, apart, inputs, num_samples):
            return row
        raise


def _row(model: nn.Module, seen: Sequence[Seen], inputs: Any, num_samples: int) -> Chain | None:
    """The chain of what was seen, where its stages compute what the model does."""
    if not any(unit.can_cut for unit in seen):
        return None
    chain = ObservedChain(model, seen, num_samples)
    return chain if _computes_the_same(chain, model, inputs) else None


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
    for name, child in module.named_children():
        if type(child).forward is nn.Sequential.forward and len(list(child.children())):
            yield from _opened(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", child


@contextlib.contextmanager
def _all_learn(model: nn.Module) -> Iterator[None]:
    """Frozen weights take part in autograd too."""
    frozen = [
        weight for weight in model.parameters() if weight.is_floating_point() and not weight.requires_grad
    ]
    for weight in frozen:
        weight.requires_grad_(True)
    try:
        with torch.enable_grad():
            yield
    finally:
        for weight in frozen:
            weight.requires_grad_(False)


def _computes_the_same(chain: Chain, model: nn.Module, inputs: Any) -> bool:
    """Whether the units give what the model gives. Where a plan knows no values, whether their results come
    from the same weights by the same operations.
    """
    is_planned = any(isinstance(parameter, FakeTensor) for parameter in model.parameters())
    passing: Received = None
    try:
        with without_effects(model), _all_learn(model) if is_planned else torch.no_grad():
            wanted = call(model, inputs)
            for unit in chain.units():
                passing = unit(passing, inputs)
    except Exception:  # a stage that lacks what it needs may fail in any way: then it is no such row
        return False
    ours, theirs = (
        [tensor for tensor in tensors_of(outputs) if tensor.is_floating_point()]
        for outputs in (passing, wanted)
    )
    pairs = list(zip(theirs, ours, strict=False))
    if is_planned:
        return bool(pairs) and same_history(theirs, ours)
    return bool(pairs) and all(
        left.shape == right.shape and torch.allclose(left, right, rtol=1e-4, atol=1e-6)
        for left, right in pairs
    )
