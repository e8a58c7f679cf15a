"""Which steps are followed, for runs of any speed, and what that may cost."""

from __future__ import annotations

import itertools

import pytest
import torch

from rankdeck.memory.batch_shapes import FollowedBatches, shape_of
from rankdeck.memory.sampling import SamplingBudget


def _run(
    budget: SamplingBudget, num_steps: int, plain_s: float, followed_s: float
) -> tuple[list[int], float]:
    """The steps that were followed, and the share of the run's time that following cost."""
    followed, total_s = [], 0.0
    for step in range(1, num_steps + 1):
        follow = budget.should_follow(step)
        step_s = followed_s if follow else plain_s
        budget.record(step, step_s, followed=follow)
        total_s += step_s
        if follow:
            followed.append(step)
    return followed, (total_s - num_steps * plain_s) / total_s


def test_the_first_three_steps_are_always_followed() -> None:
    followed, _ = _run(SamplingBudget(budget=0.0), 100, 0.01, 0.02)
    assert followed == [1, 2, 3]


@pytest.mark.parametrize("slower", [1.3, 3.0, 10.0])
def test_a_tiny_fast_model_pays_less_than_the_budget(slower: float) -> None:
    followed, share = _run(SamplingBudget(), 100_000, 0.0015, 0.0015 * slower)
    assert share < 0.003
    assert len(followed) > 10


def test_samples_come_at_two_a_second_at_most() -> None:
    plain_s = 0.002
    followed, _ = _run(SamplingBudget(), 20_000, plain_s, 0.0021)
    later = followed[3:]
    assert later and len(later) <= 2 * 20_000 * plain_s
    assert min(b - a for a, b in itertools.pairwise(later)) * plain_s >= 0.5 - 1e-9


def test_a_slow_model_whose_steps_cost_no_more_is_followed_in_every_step() -> None:
    followed, _ = _run(SamplingBudget(), 50, 0.8, 0.8)
    assert followed == [1, 2, 3, *range(9, 51)]


def test_an_expensive_sample_waits_until_the_run_has_earned_it() -> None:
    followed, share = _run(SamplingBudget(), 20_000, 0.1, 1.0)
    assert share <= 0.003
    # Three early samples of 0.9 s extra and the next one have to fit into 0.3 % of the time.
    assert 4 * 0.9 <= followed[3] * 0.1 * 0.003 <= 1.5 * 4 * 0.9


def test_ranks_of_about_the_same_pace_mostly_take_the_same_samples() -> None:
    one, other = (_run(SamplingBudget(), 100_000, pace_s, 3 * pace_s)[0] for pace_s in (0.00150, 0.00153))
    assert len(set(one) & set(other)) >= 0.7 * len(one)


def test_always_follows_every_step() -> None:
    followed, _ = _run(SamplingBudget(always=True), 20, 0.001, 0.1)
    assert followed == list(range(1, 21))


def test_a_batch_is_covered_by_one_that_is_as_large_in_every_dimension() -> None:
    followed = FollowedBatches()
    for sizes in ((8, 30), (4, 50), (2, 20)):
        followed.add(shape_of([torch.empty(sizes)]))
    covered = {
        sizes: followed.cover(shape_of([torch.empty(sizes)])) for sizes in [(8, 30), (4, 40), (5, 40), (9, 1)]
    }
    assert covered == {(8, 30): True, (4, 40): True, (5, 40): False, (9, 1): False}
    assert shape_of([torch.empty(4, 50)]) in followed and shape_of([torch.empty(4, 40)]) not in followed
    followed.add(shape_of([torch.eye(3).to_sparse()]))
    assert followed.cover(shape_of([torch.zeros(3, 3).to_sparse()]))
    assert not followed.cover(shape_of([torch.ones(3, 3).to_sparse()]))
    for others in ([torch.empty(1, 1).long()], [torch.empty(1, 1), torch.empty(1)], [torch.empty(1)]):
        assert not followed.cover(shape_of(others))


def test_a_covered_batch_that_is_new_is_followed_once_it_is_paid_for() -> None:
    budget = SamplingBudget()
    assert not budget.can_pay()
    for step in range(1, 2000):
        budget.record(step, 0.02 if step <= 3 else 0.01, followed=step <= 3)
        # Three early steps and the new one have cost 0.04 s.
        assert budget.can_pay() == (step >= 1331)
    budget.record(2000, 9.0, followed=True, usual=False)
    assert budget.extra_s == pytest.approx(0.01), "a long step tells nothing of what following costs"


def test_a_slow_first_step_is_not_charged_to_the_ledger() -> None:
    budget = SamplingBudget()
    for step, step_s in enumerate((30.0, 0.02, 0.02), start=1):
        budget.record(step, step_s, followed=True)
    assert budget.extra_s is None
    for step in range(4, 20):
        budget.record(step, 0.01, followed=False)
    assert budget.extra_s == pytest.approx(0.01)
    assert budget.spent_s == pytest.approx(0.03)
