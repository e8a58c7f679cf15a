"""A model is looked at on shapes, unless computing takes less time."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from rankdeck.parallel.pipelining.probing import have_same_history, run_on_fake_tensors


@pytest.mark.parametrize(("width", "has_values"), [(8, True), (4096, False)])
def test_only_large_models_are_probed_on_fake_tensors(width: int, has_values: bool) -> None:
    model, calls = nn.Linear(width, width), []

    def run(inputs: Tensor) -> list[int]:
        calls.append(type(inputs) is Tensor)
        return list(model(inputs).shape)

    assert run_on_fake_tensors(run, torch.ones(4, width), model) == [4, width]
    assert calls == [has_values]


def test_a_large_model_that_reads_values_is_probed_with_values() -> None:
    model = nn.Linear(4096, 4096)

    def run(inputs: Tensor) -> float:
        return float(model(inputs).detach().sum())

    assert isinstance(run_on_fake_tensors(run, torch.ones(4, 4096), model), float)


def test_equal_histories_have_equal_operations_and_weights() -> None:
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
        assert have_same_history([results[left]], [results[right]]) is (left == right)
    assert have_same_history([(some * 2).sum()], [(some * 2).sum()])
