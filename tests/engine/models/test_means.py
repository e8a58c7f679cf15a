"""What a loss is a mean of is read from its graph, and remembered for batches without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rankdeck.config.catalog import IGNORE_INDEX
from rankdeck.models import losses
from rankdeck.models.losses import loss_terms
from rankdeck.torch_compat.fake_tensors import FakeTensorMode

TARGETS = torch.tensor([1, 2, IGNORE_INDEX, 3, 0, IGNORE_INDEX])
MASK = torch.tensor([1, 1, 0, 0, 1, 0])


class PassThroughMode(TorchDispatchMode):
    """Passes everything on, as the ledger does: tensors of Python numbers arrive as numbers."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **kwargs or {})


def term_counts(loss: Tensor) -> list[float | None]:
    return [None if term is None else float(term.count) for term in loss_terms(loss)]


def squared_norms(logits: Tensor) -> Tensor:
    return logits.square().sum(1)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda x: F.cross_entropy(x, TARGETS), [4]),
        (lambda x: F.cross_entropy(x, TARGETS, reduction="sum") / (TARGETS != IGNORE_INDEX).sum(), [4]),
        (lambda x: F.cross_entropy(x, TARGETS, weight=torch.tensor([3.0, 1, 1, 1, 1])), [6]),
        (lambda x: F.cross_entropy(x, TARGETS, label_smoothing=0.1), [4, 4]),
        (lambda x: F.cross_entropy(x, TARGETS.clamp(min=0), ignore_index=0), [3]),
        (lambda x: F.cross_entropy(x.bfloat16().float(), TARGETS).double(), [4]),
        (lambda x: F.mse_loss(x, torch.zeros(6, 5)), [30]),
        (lambda x: squared_norms(x)[MASK > 0].mean(), [3]),
        (lambda x: squared_norms(x)[:1].mean(), [1]),
        (lambda x: (squared_norms(x) * MASK).sum() / MASK.sum(), [3]),
        (lambda x: torch.stack([F.cross_entropy(x, TARGETS), x.mean()]).mean(), [4, 30]),
        (lambda x: F.cross_entropy(x, TARGETS) + 0.1 * x.softmax(1).mean(0).square().sum(), [4, None]),
        (lambda x: F.cross_entropy(x, TARGETS, reduction="sum"), [None]),
        (lambda x: F.kl_div(x.log_softmax(1), torch.full((6, 5), 0.2), reduction="batchmean"), [6]),
        (lambda x: squared_norms(x).sum() / len(x), [6]),
        (lambda x: squared_norms(x).sum() / 2 / (TARGETS != IGNORE_INDEX).sum(), [8]),
        (lambda x: squared_norms(x).sum() / 4.5 / 2.0, [9]),
        (lambda x: F.cross_entropy(x, TARGETS).unsqueeze(0).mean(), [4]),
        (lambda x: F.cross_entropy(x, TARGETS).detach(), []),
    ],
)
def test_the_divisor_of_each_mean_is_found(
    loss: Callable[[Tensor], Tensor], expected: list[float | None]
) -> None:
    logits = torch.randn(6, 5, requires_grad=True)
    assert term_counts(loss(logits)) == expected
    with PassThroughMode():
        assert term_counts(loss(logits)) == expected


@pytest.mark.parametrize("mode", [PassThroughMode, FakeTensorMode])
def test_a_loss_divided_by_a_number_is_restored_to_a_sum(mode: Any) -> None:
    with mode():
        logits = torch.ones(6, 5, requires_grad=True)
        total, count = losses.model_loss().function({"loss": squared_norms(logits).sum() / len(logits)}, {})
    assert (count, total.dtype, total.shape) == (6, torch.float32, ())
    if mode is PassThroughMode:
        assert total.item() == 30


@pytest.mark.parametrize(("first", "expected"), [(0, 6), (1, 4)])
def test_an_evaluation_counts_as_training_did(first: int, expected: int) -> None:
    loss = losses.model_loss()
    labels = torch.tensor([[1, 2, IGNORE_INDEX, 3], [4, IGNORE_INDEX, 0, 2]])
    logits = torch.randn(2, 4, 5, requires_grad=True)

    def outputs() -> dict[str, Tensor]:
        predictions = logits[:, : 4 - first].reshape(-1, 5)
        return {"loss": F.cross_entropy(predictions, labels[:, first:].reshape(-1))}

    total, count = loss.function(outputs(), {"labels": labels})
    assert float(count) == expected
    assert float(total.detach() / count) == pytest.approx(float(outputs()["loss"].detach()))
    longer = torch.cat([labels, labels, labels])
    with torch.no_grad():
        _, count = loss.function({"loss": torch.tensor(2.0)}, {"labels": longer})
    assert float(count) == 3 * expected


def test_means_with_independent_divisors_are_reported() -> None:
    loss = losses.model_loss()
    for targets in (TARGETS, TARGETS.clamp(min=0)):
        logits = torch.randn(6, 5, requires_grad=True)
        assert loss.mismatch() is None
        loss_value = F.cross_entropy(logits, targets) + logits.mean()
        loss.function({"loss": loss_value}, {"labels": targets})
    assert loss.mismatch() == losses.UNEQUAL_COUNTS
