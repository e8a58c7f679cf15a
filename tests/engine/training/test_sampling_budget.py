"""Which steps are followed, for runs of any speed, and what that may cost."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from rankdeck.memory.batch_shapes import TrackedBatches, shape_of
from rankdeck.training.sampling_budget import MIN_PLAIN_STEPS, NUM_ALWAYS_TRACKED, SamplingBudget, SpanBudget


def _simulate_tracking(
    budget: SamplingBudget, num_steps: int, plain_s: float, followed_s: float
) -> tuple[list[int], float]:
    """The steps that were followed, and the share of the time after the first ones that following cost."""
    followed, total_s = [], 0.0
    for step in range(1, num_steps + 1):
        follow = budget.should_track(step)
        step_s = followed_s if follow else plain_s
        budget.record(step, step_s, is_tracked=follow)
        total_s += step_s
        if follow:
            followed.append(step)
    plain_total_s = (num_steps - NUM_ALWAYS_TRACKED) * plain_s
    return followed, 1 - plain_total_s / (total_s - NUM_ALWAYS_TRACKED * followed_s)


def test_the_first_three_steps_are_always_tracked() -> None:
    followed, _ = _simulate_tracking(SamplingBudget(budget=0.0), 100, 0.01, 0.02)
    assert followed == [1, 2, 3]


@pytest.mark.parametrize("slower", [1.3, 3.0, 10.0])
@pytest.mark.parametrize("plain_s", [0.0015, 0.05, 0.3])
def test_tracking_costs_at_most_two_percent(plain_s: float, slower: float) -> None:
    followed, share = _simulate_tracking(SamplingBudget(), round(300 / plain_s), plain_s, plain_s * slower)
    assert share <= 0.02
    assert len(followed) > NUM_ALWAYS_TRACKED


@pytest.mark.parametrize("plain_s", [0.002, 0.03, 0.06, 0.25])
def test_a_step_is_tracked_every_second_within_the_budget(plain_s: float) -> None:
    budget, starts_s, elapsed_s = SamplingBudget(), [], 0.0
    for step in range(1, round(60 / plain_s)):
        follow = budget.should_track(step)
        if follow:
            starts_s.append(elapsed_s)
        step_s = plain_s + 0.0099 * follow
        budget.record(step, step_s, is_tracked=follow)
        elapsed_s += step_s
    apart_s = [after - before for before, after in itertools.pairwise(starts_s[NUM_ALWAYS_TRACKED - 1 :])]
    assert max(apart_s[0], 1.0) <= max(1.0, (MIN_PLAIN_STEPS + 2) * plain_s)
    assert max(apart_s[1:]) <= 1.0
    assert len(apart_s) <= 2 * elapsed_s


def test_a_slow_model_is_tracked_in_three_of_four_steps() -> None:
    followed, _ = _simulate_tracking(SamplingBudget(), 20, 0.8, 0.8)
    assert followed == [1, 2, 3, 9, 10, 11, 13, 14, 15, 17, 18, 19]


def test_a_model_that_speeds_up_does_not_hide_the_tracking_cost() -> None:
    budget, share = SamplingBudget(), []
    for step in range(1, 4001):
        follow = budget.should_track(step)
        plain_s = 0.9 if step < 20 else 0.3
        budget.record(step, plain_s + 0.1 * follow, is_tracked=follow)
        share.append(follow * 0.1 / plain_s)
    assert sum(share[200:]) / len(share[200:]) <= 0.021


def test_an_expensive_sample_waits_for_its_budget() -> None:
    followed, share = _simulate_tracking(SamplingBudget(), 20_000, 0.1, 1.0)
    # 0.9 s are 2 % of 45 s, of which the next interval is 64 s, and an eighth of that may pass.
    assert 64 <= followed[3] * 0.1 <= 64 + 9
    assert 0.01 < share <= 0.02


def test_the_first_steps_do_not_use_the_budget() -> None:
    cheap, _ = _simulate_tracking(SamplingBudget(), 1000, 0.01, 0.02)
    assert (cheap[3] - 3) * 0.01 <= 1.0


def test_other_processes_do_not_inflate_the_tracking_cost() -> None:
    busy = random.Random(0)
    budget, followed = SamplingBudget(), []
    for step in range(1, 400):
        follow = budget.should_track(step)
        cpu_s = 0.10 + 0.01 * follow
        budget.record(step, cpu_s * busy.uniform(1.0, 3.0), is_tracked=follow, cpu_s=cpu_s)
        followed += [step] * follow
    assert budget.tracking_cost_s == pytest.approx(0.01)
    assert max(b - a for a, b in itertools.pairwise(followed)) <= 10


@pytest.mark.parametrize("late_s", [0.0, 7.3])
@pytest.mark.parametrize("pace_s", [0.003, 0.07])
def test_synchronized_ranks_mostly_track_the_same_steps(pace_s: float, late_s: float) -> None:
    """The first step of the second rank is longer: it began to wait earlier."""
    taken = []
    for rank, first_s in enumerate((0.1, 0.1 + late_s)):
        noise, budget, followed = random.Random(1), SamplingBudget(), set[int]()
        for step in range(1, round(120 / pace_s)):
            follow = budget.should_track(step)
            # A rank sees the end of a step that both wait for some 0.1 ms sooner or later than the other.
            step_s = (
                first_s if step == 1 else pace_s + noise.uniform(0, pace_s) + (-1) ** (step + rank) * 1e-4
            )
            budget.record(step, step_s, is_tracked=follow, cpu_s=pace_s + 0.015 * follow)
            followed |= {step} if follow else set()
        taken.append(followed)
    assert len(taken[0] & taken[1]) >= 0.8 * max(len(steps) for steps in taken)


def test_always_tracks_every_step() -> None:
    followed, _ = _simulate_tracking(SamplingBudget(always=True), 20, 0.001, 0.1)
    assert followed == list(range(1, 21))


def test_a_batch_is_covered_by_one_at_least_as_large() -> None:
    followed = TrackedBatches()
    for sizes in ((8, 30), (4, 50), (2, 20)):
        followed.add(shape_of([torch.empty(sizes)]))
    covered = {
        sizes: followed.covers(shape_of([torch.empty(sizes)]))
        for sizes in [(8, 30), (4, 40), (5, 40), (9, 1)]
    }
    assert covered == {(8, 30): True, (4, 40): True, (5, 40): False, (9, 1): False}
    assert shape_of([torch.empty(4, 50)]) in followed and shape_of([torch.empty(4, 40)]) not in followed
    followed.add(shape_of([torch.eye(3).to_sparse()]))
    assert followed.covers(shape_of([torch.zeros(3, 3).to_sparse()]))
    assert not followed.covers(shape_of([torch.ones(3, 3).to_sparse()]))
    for others in ([torch.empty(1, 1).long()], [torch.empty(1, 1), torch.empty(1)], [torch.empty(1)]):
        assert not followed.covers(shape_of(others))


def test_a_new_covered_batch_is_tracked_when_affordable() -> None:
    budget = SamplingBudget()
    assert not budget.can_afford()
    for step in range(1, 200):
        budget.record(step, 0.02 if step <= 3 else 0.01, is_tracked=step <= 3)
        # 0.01 s are 2 % of 0.5 s.
        assert budget.can_afford() == (step - 3 >= 50)
    budget.record(200, 9.0, is_tracked=True, is_typical=False)
    assert budget.tracking_cost_s == pytest.approx(0.01), "a long step tells nothing of what following costs"


def test_a_slow_first_step_is_not_charged_to_the_ledger() -> None:
    budget = SamplingBudget()
    for step, step_s in enumerate((30.0, 5.0, 0.02), start=1):
        budget.record(step, step_s, is_tracked=True)
    assert budget.tracking_cost_s is None
    for step in range(4, 20):
        budget.record(step, 0.01, is_tracked=False)
    assert budget.tracking_cost_s == pytest.approx(0.01)


def _simulate_recording(
    step_s: float, num_steps: int, *, cost_s: float = 0.0, followed_every: int = 0
) -> list[int]:
    budget = SpanBudget()
    steps = []
    for step in range(1, num_steps + 1):
        followed = bool(followed_every) and step % followed_every == 0
        recorded = budget.should_record(step, is_tracked=followed)
        if recorded:
            steps.append(step)
            budget.add_cost(cost_s)
        budget.add_step(step, step_s, is_recorded=recorded)
    return steps


def test_first_and_slow_steps_always_record_phases() -> None:
    assert _simulate_recording(1.0, 8) == [2, 3, 4, 6, 7, 8]
    assert _simulate_recording(0.001, 100)[:3] == [2, 3, 4]


def test_fast_steps_are_recorded_every_half_second() -> None:
    steps = _simulate_recording(0.001, 4000)[3:]
    apart = [after - before for before, after in itertools.pairwise(steps)]
    assert max(apart) <= 1000 and sum(apart) / len(apart) >= 450


def test_recording_costs_at_most_half_a_percent() -> None:
    steps = _simulate_recording(0.01, 20_000, cost_s=0.02)[3:]
    assert 0 < len(steps) * 0.02 <= 0.005 * 20_000 * 0.01


def test_one_slow_write_does_not_make_recordings_rare() -> None:
    budget, last = SpanBudget(), 0
    for step in range(1, 4000):
        recorded = budget.should_record(step, is_tracked=False)
        if recorded:
            assert step < 100 or step - last <= 200
            last = step
            budget.add_cost(0.5 if 200 < step < 260 else 1e-5)
        budget.add_step(step, 0.01, is_recorded=recorded)
    assert last > 3800


def test_the_step_after_a_tracked_step_is_recorded_instead() -> None:
    steps = _simulate_recording(0.3, 101, followed_every=2)
    assert steps[:3] == [2, 3, 4] and all(step % 2 for step in steps[3:])
    assert len(steps) >= 45
