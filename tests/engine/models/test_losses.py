"""A loss is a sum and a count, whatever the shapes, and masked targets count nothing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from rankdeck.base.errors import ModelError
from rankdeck.config.catalog import IGNORE_INDEX
from rankdeck.models import losses


def test_cross_entropy_sums_over_tokens_and_counts_those_not_masked() -> None:
    logits = torch.randn(3, 5, 7)
    targets = torch.randint(7, (3, 5))
    targets[0, :2] = IGNORE_INDEX
    total, count = losses.cross_entropy().function(logits, targets)
    mean = F.cross_entropy(logits.reshape(-1, 7), targets.reshape(-1))
    assert int(count) == 13
    assert float(total / count) == pytest.approx(float(mean), rel=1e-6)


def test_cross_entropy_accepts_classes_in_dim_1() -> None:
    logits, targets = torch.randn(2, 4, 6, 6), torch.randint(4, (2, 6, 6))
    total, count = losses.cross_entropy().function(logits, targets)
    assert float(total) == pytest.approx(float(F.cross_entropy(logits, targets, reduction="sum")), rel=1e-6)
    assert int(count) == 72


def test_unmasked_data_is_counted_without_reading_targets() -> None:
    logits, targets = torch.randn(3, 5, 7), torch.randint(7, (3, 5))
    total, count = losses.cross_entropy(may_mask=False).function(logits, targets)
    looked, counted = losses.cross_entropy().function(logits, targets)
    assert torch.equal(total, looked) and count == int(counted) == 15 and isinstance(count, int)


def test_all_masked_is_zero_not_nan() -> None:
    total, count = losses.cross_entropy().function(torch.randn(4, 3), torch.full((4,), IGNORE_INDEX))
    assert (float(total), int(count)) == (0.0, 0)


def test_cross_entropy_names_mismatched_shapes() -> None:
    with pytest.raises(ModelError, match=r"\(4, 3\) with targets of shape \(5,\)"):
        losses.cross_entropy().function(torch.randn(4, 3), torch.zeros(5, dtype=torch.long))


def test_correct_predictions_are_counted_without_masked_ones() -> None:
    correct = losses.cross_entropy().count_correct
    assert correct is not None
    logits = torch.eye(4)
    targets = torch.tensor([0, 1, 3, IGNORE_INDEX])
    assert int(correct(logits, targets)) == 2


def test_mse_sums_over_elements() -> None:
    outputs, targets = torch.zeros(2, 3), torch.full((2, 3), 2.0)
    total, count = losses.mse().function(outputs, targets)
    assert (float(total), count) == (24.0, 6)


def test_labels_of_unshifted_losses_are_counted_unchanged() -> None:
    labels = torch.tensor([[1, IGNORE_INDEX], [4, 5]])
    total, count = losses.model_loss().function({"loss": torch.tensor(2.0)}, labels)
    assert (float(total), int(count)) == (6.0, 3)


def test_a_fully_masked_batch_has_zero_loss_and_gradients() -> None:
    logits = torch.randn(2, 3, requires_grad=True)
    labels = torch.full((2,), IGNORE_INDEX)
    outputs = {"loss": F.cross_entropy(logits, labels)}
    total, count = losses.model_loss().function(outputs, labels)
    total.backward()
    assert (total.item(), int(count)) == (0.0, 0)
    assert logits.grad is not None and torch.equal(logits.grad, torch.zeros(2, 3))


def test_a_nan_mean_of_unmasked_targets_stays_nan() -> None:
    total, _ = losses.model_loss().function({"loss": torch.tensor(float("nan"))}, torch.tensor([1, 2]))
    assert torch.isnan(total)


def test_a_count_returned_by_the_model_is_used() -> None:
    total, count = losses.model_loss().function({"loss": torch.tensor(3.0), "count": 5}, None)
    assert (float(total), count) == (15.0, 5)


def test_a_model_without_a_loss_is_refused_with_advice() -> None:
    with pytest.raises(ModelError, match="has no loss"):
        losses.model_loss().function({"logits": torch.zeros(1)}, None)


def test_a_user_loss_must_return_a_sum_and_a_count() -> None:
    loss = losses.user_loss("mine:mean", lambda outputs, targets: outputs.mean())
    with pytest.raises(ModelError, match=r"must return \(sum, count\)"):
        loss.function(torch.ones(2), torch.ones(2))


@pytest.mark.parametrize("count", ["5", -1, torch.ones(3), None])
def test_a_user_count_must_be_one_number(count: object) -> None:
    loss = losses.user_loss("mine:odd", lambda outputs, targets: (outputs.sum(), count))
    with pytest.raises(ModelError, match="and an int"):
        loss.function(torch.ones(2, requires_grad=True), torch.ones(2))


def test_a_user_loss_must_depend_on_the_model() -> None:
    loss = losses.user_loss("mine:cut", lambda outputs, targets: (outputs.detach().sum(), 2))
    with pytest.raises(ModelError, match="does not depend on the model"):
        loss.function(torch.ones(2, requires_grad=True), torch.ones(2))
    with torch.no_grad():
        assert float(loss.function(torch.ones(2), torch.ones(2))[0]) == 2.0


def test_a_user_loss_must_take_outputs_and_targets() -> None:
    with pytest.raises(ModelError, match=r"does not accept the arguments \(outputs, targets\)"):
        losses.user_loss("mine:one", lambda outputs: outputs)
