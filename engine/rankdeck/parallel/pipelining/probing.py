"""Running a model once to learn about it, so that nothing is changed by that: no weight, no statistic, no
random number, and under fake tensors no time either.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

from rankdeck.parallel.nested import tensors_of
from rankdeck.torch_compat.dispatch import tree_map
from rankdeck.torch_compat.fake_tensors import FakeTensorMode

T = TypeVar("T")
_AT_ONCE = 100_000_000
"""Weights times numbers that enter: some milliseconds of a CPU, where shapes take most of a second."""


@contextmanager
def without_effects(model: nn.Module) -> Iterator[None]:
    """Eval mode, random numbers and buffers put back: batch norms count nothing, dropout draws nothing. A
    traced stage has a mode of its own, over the same buffers."""
    modes = {module: module.training for module in model.modules()}
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    model.eval()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for module, training in modes.items():
            module.training = training
        for buffer, value in kept:
            buffer.detach().copy_(value)


def same_weights(model: nn.Module) -> nn.Module:
    """A copy of all modules that shares every parameter and buffer."""
    shared: dict[int, Any] = {id(tensor): tensor for tensor in model.parameters()}
    shared.update((id(tensor), tensor) for tensor in model.buffers())
    return copy.deepcopy(model, shared)


def on_shapes(run: Callable[[Any], T], inputs: Any, model: nn.Module) -> T:
    """`run(inputs)` of a model on tensors that have shapes only; on real ones where it asks for values, or
    where it computes them sooner than torch works out their shapes.

    Whatever `run` returns must not hold tensors.
    """
    num_weights = sum(parameter.numel() for parameter in model.parameters())
    if num_weights * sum(tensor.numel() for tensor in tensors_of(inputs)) <= _AT_ONCE:
        return run(inputs)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as fake:
            return run(tree_map(lambda leaf: _faked(leaf, fake), inputs))
    except Exception:  # a model's own code may raise anything where values are missing
        return run(inputs)


def _faked(leaf: Any, fake: FakeTensorMode) -> Any:
    return fake.from_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf
