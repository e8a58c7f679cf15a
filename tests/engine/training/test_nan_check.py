"""Where NaN is first seen: in the batch, in the weights, or after which module."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rankdeck.observer import log
from rankdeck.training.nan_check import NonFiniteOrigin, find_non_finite


class BreaksOnForward(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 0


class Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.inner, self.factor = nn.Linear(2, 2), factor

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.factor


def test_a_non_finite_batch_is_reported_first() -> None:
    origin = find_non_finite(nn.Linear(2, 2), torch.tensor([[1.0, float("nan")]]))
    assert origin == NonFiniteOrigin("batch", "0")
    assert origin.text(float("nan"), 3, 1) == (
        "The loss became NaN in step 3 on rank 1; the first NaN or infinite value was in the batch itself "
        "(input 0)."
    )
    assert origin.text(float("inf"), 3, 1).startswith(
        "The loss became infinite in step 3 on rank 1; the first"
    )


def test_non_finite_weights_are_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.fill_(float("inf"))  # type: ignore[union-attr,operator]
    assert find_non_finite(model, torch.ones(1, 2)) == NonFiniteOrigin("weights", "0.weight")
    texts = [NonFiniteOrigin("weights", "0.weight").text(float("nan"), step, 1) for step in (1, 2)]
    assert (
        "the model was built with NaN or infinite weights" in texts[0]
        and "an earlier update made them" in texts[1]
    )


def test_the_batch_is_cast_to_the_precision_of_the_weights() -> None:
    model = nn.Sequential(nn.Linear(2, 2), BreaksOnForward()).double()
    assert find_non_finite(model, torch.ones(1, 2)) == NonFiniteOrigin("output", "1")


def test_a_batch_that_cannot_be_rerun_hides_no_error() -> None:
    assert find_non_finite(nn.Linear(2, 2), torch.ones(1, 3)) == NonFiniteOrigin("again", "RuntimeError")


def test_the_first_module_with_a_non_finite_output_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(BreaksOnForward(), nn.ReLU()))
    assert find_non_finite(model, torch.ones(1, 2)) == NonFiniteOrigin("output", "1.0")


def test_the_root_module_and_the_loss_are_named() -> None:
    assert find_non_finite(Scaled(float("inf")), torch.ones(1, 2)) == NonFiniteOrigin("model")
    assert find_non_finite(Scaled(1.0), torch.ones(1, 2)) == NonFiniteOrigin("loss")


def test_a_rank_that_needs_others_does_not_rerun_the_forward() -> None:
    model = nn.Sequential(nn.Linear(2, 2), BreaksOnForward())
    assert find_non_finite(model, torch.ones(1, 2), forward_is_local=False) == NonFiniteOrigin("forward")
    with torch.no_grad():
        model[0].weight.fill_(float("nan"))  # type: ignore[union-attr,operator]
    assert find_non_finite(model, torch.ones(1, 2), forward_is_local=False) == NonFiniteOrigin(
        "weights", "0.weight"
    )


@pytest.mark.parametrize("what", ["batch", "weights", "forward", "again", "output", "model", "loss"])
def test_both_kinds_of_loss_have_the_same_report(what: str) -> None:
    nan, infinite = (NonFiniteOrigin(what, "x").text(loss, 2, 0) for loss in (float("nan"), float("-inf")))
    assert nan.replace("became NaN", "became infinite") == infinite


class Logs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        log.log(seen=1.0)
        return x / 0


def test_rerunning_the_batch_logs_no_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[object] = []
    monkeypatch.setattr(log, "rank_handler", lambda *values: taken.append(values))
    model = nn.Sequential(nn.Linear(2, 2), Logs())
    assert find_non_finite(model, torch.ones(1, 2)) == NonFiniteOrigin("output", "1")
    assert not taken
    model(torch.ones(1, 2))
    assert len(taken) == 1, "a step's own forward does"
