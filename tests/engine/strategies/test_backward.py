"""The scale of a loss goes into backward as a gradient, with the same bits as the product's; a gradient that
a model or its loss takes by itself is refused with its reason where devices have parts of the graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from rankdeck.base.errors import ModelError
from rankdeck.parallel.backward import backward
from rankdeck.parallel.pipelining.cutting import find_chain
from tests.helpers import planning


def gradient_with(dtype: torch.dtype, scale: float | torch.Tensor | None) -> torch.Tensor:
    torch.manual_seed(0)
    weight = torch.randn(64, 10, dtype=dtype, requires_grad=True)
    total = torch.nn.functional.cross_entropy(
        torch.randn(32, 64, dtype=dtype) @ weight, torch.arange(32) % 10, reduction="sum"
    )
    if scale is None:
        (total * (1 / 96)).backward()
    else:
        backward(total, scale)
    assert weight.grad is not None
    return weight.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_scaled_gradient_equals_a_scaled_loss_bitwise(dtype: torch.dtype) -> None:
    assert torch.equal(gradient_with(dtype, 1 / 96), gradient_with(dtype, None))
    assert torch.equal(gradient_with(dtype, torch.tensor(1 / 96, dtype=dtype)), gradient_with(dtype, None))
    assert not torch.equal(gradient_with(dtype, 1 / 97), gradient_with(dtype, None))


class Critic(nn.Module):
    """Scores, and how they change with each input: a penalty on these gradients is part of its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs.detach().requires_grad_()
        with torch.enable_grad():
            scores = self.layers(inputs)
            (slopes,) = torch.autograd.grad(scores.sum(), inputs, create_graph=True)
        return torch.cat([scores, slopes.flatten(1)], dim=1)


class Scorer(Critic):
    """The same, where the loss is to take the gradients."""

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        inputs = inputs.detach().requires_grad_()
        return self.layers(inputs), inputs


def penalty(outputs: tuple[Tensor, Tensor], targets: Tensor) -> tuple[Tensor, int]:
    scores, inputs = outputs
    (slopes,) = torch.autograd.grad(scores.sum(), inputs, create_graph=True)
    return (scores**2).sum() + (slopes**2).sum(), len(targets)


def test_a_model_that_calls_autograd_grad_is_not_cut() -> None:
    with pytest.raises(ModelError, match=r"calls autograd\.grad, as a gradient penalty does") as caught:
        find_chain(Critic(), torch.randn(4, 8, 8), 4)
    assert caught.value.advice == 'Use strategy.use = "ddp".'


@pytest.mark.parametrize(
    ("strategy", "way_out"), [("dp", "strategy.parallel_loss = true"), ("model", 'strategy.use = "ddp"')]
)
def test_a_gradient_penalty_across_devices_is_refused_with_advice(strategy: str, way_out: str) -> None:
    toml = f"""
    model = {{ use = "{Path(__file__)}:Scorer" }}
    data = {{ use = "digits" }}
    loss = {{ use = "{Path(__file__)}:penalty" }}
    strategy = {{ use = "{strategy}" }}
    devices = {{ use = "cpu:2" }}
    train = {{ global_batch = 8, evaluate_every = 0 }}
    """
    with pytest.raises(ModelError, match=r"The loss calls autograd\.grad") as caught:
        planning.measure_peaks(toml)
    assert way_out in str(caught.value.advice)
    if strategy == "dp":
        planning.measure_peaks(toml.replace('"dp"', '"dp", parallel_loss = true'))
