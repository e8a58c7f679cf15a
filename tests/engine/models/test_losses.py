"""A loss is a sum and a count, whatever the shapes, and masked targets count nothing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from rankdeck.base.errors import ModelError
from rankdeck.config.catalog import MASKED
from rankdeck.models import losses


def test_cross_entropy_sums_over_tokens_and_counts_those_not_masked() -> None:
    logits = torch.randn(3, 5, 7)
    targets = torch.randint(7, (3, 5))
    targets[0, :2] = MASKED
    total, count = losses.cross_entropy().function(logits, targets)
    mean = F.cross_entropy(logits.reshape(-1, 7), targets.reshape(-1))
    assert int(count) == 13
    assert float(total / count) == pytest.approx(float(mean), rel=1e-6)


def test_cross_entropy_takes_classes_in_the_second_dim_too() -> None:
    logits, targets = torch.randn(2, 4, 6, 6), torch.randint(4, (2, 6, 6))
    total, count = losses.cross_entropy().function(logits, targets)
    assert float(total) == pytest.approx(float(F.cross_entropy(logits, targets, reduction="sum")), rel=1e-6)
    assert int(count) == 72


def test_data_that_never_masks_is_counted_without_looking() -> None:
    logits, targets = torch.randn(3, 5, 7), torch.randint(7, (3, 5))
    total, count = losses.cross_entropy(may_mask=False).function(logits, targets)
    looked, counted = losses.cross_entropy().function(logits, targets)
    assert torch.equal(total, looked) and count == int(counted) == 15 and isinstance(count, int)


def test_all_masked_is_zero_not_nan() -> None:
    total, count = losses.cross_entropy().function(torch.randn(4, 3), torch.full((4,), MASKED))
    assert (float(total), int(count)) == (0.0, 0)


def test_cross_entropy_names_shapes_that_do_not_pair() -> None:
    with pytest.raises(ModelError, match=r"\(4, 3\) with targets \(5,\)"):
        losses.cross_entropy().function(torch.randn(4, 3), torch.zeros(5, dtype=torch.long))


def test_correct_counts_the_right_classes_that_are_not_masked() -> None:
    correct = losses.cross_entropy().correct
    assert correct is not None
    logits = torch.eye(4)
    targets = torch.tensor([0, 1, 3, MASKED])
    assert int(correct(logits, targets)) == 2


def test_mse_sums_squares_over_elements() -> None:
    outputs, targets = torch.zeros(2, 3), torch.full((2, 3), 2.0)
    total, count = losses.mse().function(outputs, targets)
    assert (float(total), count) == (24.0, 6)


def test_labels_count_as_they_are_where_nothing_is_shifted() -> None:
    labels = torch.tensor([[1, MASKED], [4, 5]])
    total, count = losses.model_loss().function({"loss": torch.tensor(2.0)}, labels)
    assert (float(total), int(count)) == (6.0, 3)


def test_an_all_masked_batch_gives_zero_and_sends_zero_back() -> None:
    logits = torch.randn(2, 3, requires_grad=True)
    labels = torch.full((2,), MASKED)
    outputs = {"loss": F.cross_entropy(logits, labels)}
    total, count = losses.model_loss().function(outputs, labels)
    total.backward()
    assert (total.item(), int(count)) == (0.0, 0)
    assert logits.grad is not None and torch.equal(logits.grad, torch.zeros(2, 3))


def test_a_mean_that_is_nan_for_another_reason_stays_nan() -> None:
    total, _ = losses.model_loss().function({"loss": torch.tensor(float("nan"))}, torch.tensor([1, 2]))
    assert torch.isnan(total)


def test_the_models_own_count_is_taken_where_it_gives_one() -> None:
    total, count = losses.model_loss().function({"loss": torch.tensor(3.0), "count": 5}, None)
    assert (float(total), count) == (15.0, 5)


def test_a_model_without_a_loss_is_told_what_to_return() -> None:
    with pytest.raises(ModelError, match="has no loss"):
        losses.model_loss().function({"logits": torch.zeros(1)}, None)


def test_an_own_loss_must_return_a_sum_and_a_count() -> None:
    loss = losses.own_loss("mine:mean", lambda outputs, targets: outputs.mean())
    with pytest.raises(ModelError, match=r"must return \(sum, count\)"):
        loss.function(torch.ones(2), torch.ones(2))


@pytest.mark.parametrize("count", ["5", -1, torch.ones(3), None])
def test_an_own_count_must_be_one_number(count: object) -> None:
    loss = losses.own_loss("mine:odd", lambda outputs, targets: (outputs.sum(), count))
    with pytest.raises(ModelError, match="and a number"):
        loss.function(torch.ones(2, requires_grad=True), torch.ones(2))


def test_an_own_loss_must_depend_on_the_model() -> None:
    loss = losses.own_loss("mine:cut", lambda outputs, targets: (outputs.detach().sum(), 2))
    with pytest.raises(ModelError, match="does not depend on the model"):
        loss.function(torch.ones(2, requires_grad=True), torch.ones(2))
    with torch.no_grad():
        assert float(loss.function(torch.ones(2), torch.ones(2))[0]) == 2.0


def test_an_own_loss_must_take_outputs_and_targets() -> None:
    with pytest.raises(ModelError, match=r"does not take \(outputs, targets\)"):
        losses.own_loss("mine:one", lambda outputs: outputs)
