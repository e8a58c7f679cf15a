"""A model is looked at on shapes, unless computing takes less time."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from rankdeck.parallel.pipelining.probing import on_shapes, same_history


@pytest.mark.parametrize(("width", "has_values"), [(8, True), (4096, False)])
def test_only_a_large_model_is_spared_its_values(width: int, has_values: bool) -> None:
    model, seen = nn.Linear(width, width), []

    def run(inputs: Tensor) -> list[int]:
        seen.append(type(inputs) is Tensor)
        return list(model(inputs).shape)

    assert on_shapes(run, torch.ones(4, width), model) == [4, width]
    assert seen == [has_values]


def test_a_large_model_that_asks_for_values_gets_them() -> None:
    model = nn.Linear(4096, 4096)

    def run(inputs: Tensor) -> float:
        return float(model(inputs).detach().sum())

    assert isinstance(on_shapes(run, torch.ones(4, 4096), model), float)


def test_histories_are_the_same_only_by_the_same_operations_on_the_same_weights() -> None:
    some, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    results = [
        some * 2,
        (some * 2).sum(),
        (some * 2 + other).sum(),
        (some + other).exp(),
        some.exp(),
        other.exp(),
    ]
    for left, right in itertools.product(range(len(results)), repeat=2):
        assert same_history([results[left]], [results[right]]) is (left == right)
    assert same_history([(some * 2).sum()], [(some * 2).sum()])
