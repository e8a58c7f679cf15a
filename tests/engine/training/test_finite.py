"""Where NaN is first seen: in the batch, in the weights, or after which module."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rankdeck.observer import log
from rankdeck.training.finite import FirstSeen, first_non_finite


class Breaks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 0


class Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.inner, self.factor = nn.Linear(2, 2), factor

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.factor


def test_the_batch_is_blamed_first() -> None:
    place = first_non_finite(nn.Linear(2, 2), torch.tensor([[1.0, float("nan")]]))
    assert place == FirstSeen("batch", "0")
    assert place.told(float("nan"), 3, 1) == (
        "The loss became NaN in step 3 on rank 1, first seen in the batch itself (input 0)."
    )
    assert place.told(float("inf"), 3, 1).startswith("The loss became infinite in step 3 on rank 1, first")


def test_broken_weights_are_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.fill_(float("inf"))  # type: ignore[union-attr,operator]
    assert first_non_finite(model, torch.ones(1, 2)) == FirstSeen("weights", "0.weight")
    told = [FirstSeen("weights", "0.weight").told(float("nan"), step, 1) for step in (1, 2)]
    assert "the model was built so" in told[0] and "an update before this step" in told[1]


def test_the_batch_is_taken_to_the_precision_of_the_weights() -> None:
    model = nn.Sequential(nn.Linear(2, 2), Breaks()).double()
    assert first_non_finite(model, torch.ones(1, 2)) == FirstSeen("output", "1")


def test_a_batch_that_cannot_be_run_again_hides_nothing() -> None:
    assert first_non_finite(nn.Linear(2, 2), torch.ones(1, 3)) == FirstSeen("again", "RuntimeError")


def test_the_first_module_whose_output_is_not_finite_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(Breaks(), nn.ReLU()))
    assert first_non_finite(model, torch.ones(1, 2)) == FirstSeen("output", "1.0")


def test_the_model_as_a_whole_and_the_loss_itself_are_named() -> None:
    assert first_non_finite(Scaled(float("inf")), torch.ones(1, 2)) == FirstSeen("model")
    assert first_non_finite(Scaled(1.0), torch.ones(1, 2)) == FirstSeen("loss")


def test_a_rank_that_cannot_run_the_forward_alone_does_not_run_it() -> None:
    model = nn.Sequential(nn.Linear(2, 2), Breaks())
    assert first_non_finite(model, torch.ones(1, 2), alone=False) == FirstSeen("forward")
    with torch.no_grad():
        model[0].weight.fill_(float("nan"))  # type: ignore[union-attr,operator]
    assert first_non_finite(model, torch.ones(1, 2), alone=False) == FirstSeen("weights", "0.weight")


@pytest.mark.parametrize("what", ["batch", "weights", "forward", "again", "output", "model", "loss"])
def test_both_kinds_of_loss_are_told_alike(what: str) -> None:
    nan, infinite = (FirstSeen(what, "x").told(loss, 2, 0) for loss in (float("nan"), float("-inf")))
    assert nan.replace("NaN", "infinite") == infinite


class Logs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        log.log(seen=1.0)
        return x / 0


def test_running_the_batch_again_logs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[object] = []
    monkeypatch.setattr(log, "taken_by", lambda *values: taken.append(values))
    model = nn.Sequential(nn.Linear(2, 2), Logs())
    assert first_non_finite(model, torch.ones(1, 2)) == FirstSeen("output", "1")
    assert not taken
    model(torch.ones(1, 2))
    assert len(taken) == 1, "a step's own forward does"
