"""Which steps are followed, for runs of any speed, and what that may cost."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from rankdeck.memory.batch_shapes import FollowedBatches, shape_of
from rankdeck.training.sampling import NUM_ALWAYS, NUM_PLAIN_STEPS_FIRST, SamplingBudget, SpanBudget


def _run(
    budget: SamplingBudget, num_steps: int, plain_s: float, followed_s: float
) -> tuple[list[int], float]:
    """The steps that were followed, and the share of the time after the first ones that following cost."""
    followed, total_s = [], 0.0
    for step in range(1, num_steps + 1):
        follow = budget.should_follow(step)
        step_s = followed_s if follow else plain_s
        budget.record(step, step_s, followed=follow)
        total_s += step_s
        if follow:
            followed.append(step)
    plain_total_s = (num_steps - NUM_ALWAYS) * plain_s
    return followed, 1 - plain_total_s / (total_s - NUM_ALWAYS * followed_s)


def test_the_first_three_steps_are_always_followed() -> None:
    followed, _ = _run(SamplingBudget(budget=0.0), 100, 0.01, 0.02)
    assert followed == [1, 2, 3]


@pytest.mark.parametrize("slower", [1.3, 3.0, 10.0])
@pytest.mark.parametrize("plain_s", [0.0015, 0.05, 0.3])
def test_following_costs_a_fiftieth_of_the_time_at_most(plain_s: float, slower: float) -> None:
    followed, share = _run(SamplingBudget(), round(300 / plain_s), plain_s, plain_s * slower)
    assert share <= 0.02
    assert len(followed) > NUM_ALWAYS


@pytest.mark.parametrize("plain_s", [0.002, 0.03, 0.06, 0.25])
def test_a_step_is_followed_every_second_where_that_costs_a_fiftieth_at_most(plain_s: float) -> None:
    budget, starts_s, elapsed_s = SamplingBudget(), [], 0.0
    for step in range(1, round(60 / plain_s)):
        follow = budget.should_follow(step)
        if follow:
            starts_s.append(elapsed_s)
        step_s = plain_s + 0.0099 * follow
        budget.record(step, step_s, followed=follow)
        elapsed_s += step_s
    apart_s = [after - before for before, after in itertools.pairwise(starts_s[NUM_ALWAYS - 1 :])]
    assert max(apart_s[0], 1.0) <= max(1.0, (NUM_PLAIN_STEPS_FIRST + 2) * plain_s)
    assert max(apart_s[1:]) <= 1.0
    assert len(apart_s) <= 2 * elapsed_s


def test_a_slow_model_is_followed_but_for_every_fourth_step() -> None:
    followed, _ = _run(SamplingBudget(), 20, 0.8, 0.8)
    assert followed == [1, 2, 3, 9, 10, 11, 13, 14, 15, 17, 18, 19]


def test_a_model_that_becomes_faster_does_not_hide_what_following_costs() -> None:
    budget, share = SamplingBudget(), []
    for step in range(1, 4001):
        follow = budget.should_follow(step)
        plain_s = 0.9 if step < 20 else 0.3
        budget.record(step, plain_s + 0.1 * follow, followed=follow)
        share.append(follow * 0.1 / plain_s)
    assert sum(share[200:]) / len(share[200:]) <= 0.021


def test_an_expensive_sample_waits_until_the_run_has_earned_it() -> None:
    followed, share = _run(SamplingBudget(), 20_000, 0.1, 1.0)
    # 0.9 s are 2 % of 45 s, of which the next interval is 64 s, and an eighth of that may pass.
    assert 64 <= followed[3] * 0.1 <= 64 + 9
    assert 0.01 < share <= 0.02


def test_the_first_steps_are_no_debt() -> None:
    cheap, _ = _run(SamplingBudget(), 1000, 0.01, 0.02)
    assert (cheap[3] - 3) * 0.01 <= 1.0


def test_other_processes_of_the_machine_do_not_make_following_look_dear() -> None:
    busy = random.Random(0)
    budget, followed = SamplingBudget(), []
    for step in range(1, 400):
        follow = budget.should_follow(step)
        cpu_s = 0.10 + 0.01 * follow
        budget.record(step, cpu_s * busy.uniform(1.0, 3.0), followed=follow, cpu_s=cpu_s)
        followed += [step] * follow
    assert budget.extra_s == pytest.approx(0.01)
    assert max(b - a for a, b in itertools.pairwise(followed)) <= 10


@pytest.mark.parametrize("late_s", [0.0, 7.3])
@pytest.mark.parametrize("pace_s", [0.003, 0.07])
def test_ranks_that_wait_for_each_other_mostly_take_the_same_samples(pace_s: float, late_s: float) -> None:
    """The first step of the second rank is longer: it began to wait earlier."""
    taken = []
    for rank, first_s in enumerate((0.1, 0.1 + late_s)):
        noise, budget, followed = random.Random(1), SamplingBudget(), set[int]()
        for step in range(1, round(120 / pace_s)):
            follow = budget.should_follow(step)
            # A rank sees the end of a step that both wait for some 0.1 ms sooner or later than the other.
            step_s = (
                first_s if step == 1 else pace_s + noise.uniform(0, pace_s) + (-1) ** (step + rank) * 1e-4
            )
            budget.record(step, step_s, followed=follow, cpu_s=pace_s + 0.015 * follow)
            followed |= {step} if follow else set()
        taken.append(followed)
    assert len(taken[0] & taken[1]) >= 0.8 * max(len(one) for one in taken)


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
    for step in range(1, 200):
        budget.record(step, 0.02 if step <= 3 else 0.01, followed=step <= 3)
        # 0.01 s are 2 % of 0.5 s.
        assert budget.can_pay() == (step - 3 >= 50)
    budget.record(200, 9.0, followed=True, usual=False)
    assert budget.extra_s == pytest.approx(0.01), "a long step tells nothing of what following costs"


def test_a_slow_first_step_is_not_charged_to_the_ledger() -> None:
    budget = SamplingBudget()
    for step, step_s in enumerate((30.0, 5.0, 0.02), start=1):
        budget.record(step, step_s, followed=True)
    assert budget.extra_s is None
    for step in range(4, 20):
        budget.record(step, 0.01, followed=False)
    assert budget.extra_s == pytest.approx(0.01)


def _recorded(step_s: float, num_steps: int, *, cost_s: float = 0.0, followed_every: int = 0) -> list[int]:
    budget = SpanBudget()
    found = []
    for step in range(1, num_steps + 1):
        followed = bool(followed_every) and step % followed_every == 0
        recorded = budget.should_record(step, followed=followed)
        if recorded:
            found.append(step)
            budget.add_cost(cost_s)
        budget.add_step(step, step_s, recorded=recorded)
    return found


def test_phases_of_the_first_steps_are_always_recorded_and_of_slow_ones_all() -> None:
    assert _recorded(1.0, 8) == [2, 3, 4, 6, 7, 8]
    assert _recorded(0.001, 100)[:3] == [2, 3, 4]


def test_recorded_steps_of_fast_ones_are_half_a_second_apart() -> None:
    steps = _recorded(0.001, 4000)[3:]
    apart = [after - before for before, after in itertools.pairwise(steps)]
    assert max(apart) <= 1000 and sum(apart) / len(apart) >= 450


def test_a_dear_recording_is_taken_so_rarely_that_it_costs_a_two_hundredth() -> None:
    steps = _recorded(0.01, 20_000, cost_s=0.02)[3:]
    assert 0 < len(steps) * 0.02 <= 0.005 * 20_000 * 0.01


def test_one_slow_write_does_not_make_recordings_rare() -> None:
    budget, last = SpanBudget(), 0
    for step in range(1, 4000):
        recorded = budget.should_record(step, followed=False)
        if recorded:
            assert step < 100 or step - last <= 200
            last = step
            budget.add_cost(0.5 if 200 < step < 260 else 1e-5)
        budget.add_step(step, 0.01, recorded=recorded)
    assert last > 3800


def test_a_step_that_is_followed_is_not_recorded_and_the_next_one_is_instead() -> None:
    steps = _recorded(0.3, 101, followed_every=2)
    assert steps[:3] == [2, 3, 4] and all(step % 2 for step in steps[3:])
    assert len(steps) >= 45
