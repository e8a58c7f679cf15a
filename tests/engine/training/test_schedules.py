"""Factors of the learning rate: where they start, where they end, and that warm-up rises."""

from __future__ import annotations

import pytest

from rankdeck.training import workload


def test_constant_stays_at_one() -> None:
    assert {workload.constant(10)(step) for step in range(10)} == {1.0}


def test_warm_up_is_linear_and_ends_at_one() -> None:
    factor = workload.constant(10, warmup=4)
    assert [factor(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_a_warm_up_longer_than_the_run_is_valid() -> None:
    assert workload.cosine(5, warmup=50)(4) == pytest.approx(0.1)


@pytest.mark.parametrize("schedule", [workload.cosine, workload.linear])
def test_the_rate_reaches_its_final_factor_in_the_last_step(schedule: workload.Schedule) -> None:
    factor = schedule(100, warmup=10, final=0.1)
    values = [factor(step) for step in range(10, 100)]
    assert values[0] == 1.0
    assert values[-1] == pytest.approx(0.1)
    assert values == sorted(values, reverse=True)


def test_one_cycle_rises_then_falls_to_nearly_zero() -> None:
    factor = workload.one_cycle(100, rise=0.3)
    values = [factor(step) for step in range(100)]
    assert max(values) == values[30] == 1.0
    assert values[0] == pytest.approx(1 / 25)
    assert values[-1] == pytest.approx(1 / 25e4)


def test_schedules_support_a_single_step() -> None:
    for schedule in (workload.constant, workload.cosine, workload.linear, workload.one_cycle):
        assert 0 <= schedule(1)(0) <= 1
