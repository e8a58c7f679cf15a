"""Where NaN is first seen: in the batch, in the weights, or after which module."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rankdeck.training.finite import first_non_finite


class Breaks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 0


def test_the_batch_is_blamed_first() -> None:
    assert first_non_finite(nn.Linear(2, 2), torch.tensor([[1.0, float("nan")]])).startswith(
        "the batch itself"
    )


def test_broken_weights_are_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.fill_(float("inf"))  # type: ignore[union-attr,operator]
    assert "0.weight" in first_non_finite(model, torch.ones(1, 2))


def test_the_batch_is_taken_to_the_precision_of_the_weights() -> None:
    model = nn.Sequential(nn.Linear(2, 2), Breaks()).double()
    assert first_non_finite(model, torch.ones(1, 2)) == "the output of 1"


def test_a_batch_that_cannot_be_run_again_hides_nothing() -> None:
    assert "raised RuntimeError" in first_non_finite(nn.Linear(2, 2), torch.ones(1, 3))


def test_the_first_module_whose_output_is_not_finite_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(Breaks(), nn.ReLU()))
    assert first_non_finite(model, torch.ones(1, 2)) == "the output of 1.0"


def test_a_rank_that_cannot_run_the_forward_alone_does_not_run_it() -> None:
    model = nn.Sequential(nn.Linear(2, 2), Breaks())
    assert first_non_finite(model, torch.ones(1, 2), alone=False).startswith("the forward or the loss")
    with torch.no_grad():
        model[0].weight.fill_(float("nan"))  # type: ignore[union-attr,operator]
    assert "0.weight" in first_non_finite(model, torch.ones(1, 2), alone=False)
