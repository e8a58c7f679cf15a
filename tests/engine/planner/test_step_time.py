"""Step times: ranges whose order says which strategy is faster; a measured step sets their scale."""

from __future__ import annotations

import pytest

from rankdeck.planner.step_cost import Work, estimate_step_time


def test_sequential_layers_take_longer_than_replicas() -> None:
    stages = [Work(num_kernels=100, roofline_s=0.25)] * 4
    in_turn = estimate_step_time("model", stages)
    together = estimate_step_time("ddp", stages, sent_bytes=10**8, link_bytes_per_s=1e11)
    assert in_turn is not None and together is not None
    assert in_turn.low_s > together.high_s


def test_a_bubble_and_sends_lengthen_a_step() -> None:
    work = [Work(num_kernels=10, roofline_s=0.1)]
    plain = estimate_step_time("pipeline", work)
    bubbly = estimate_step_time("pipeline", work, bubble=0.5)
    sending = estimate_step_time("pipeline", work, sent_bytes=10**10, link_bytes_per_s=1e10)
    assert plain is not None and bubbly is not None and sending is not None
    assert bubbly.low_s == pytest.approx(2 * plain.low_s)
    assert sending.low_s >= 1.0 > plain.high_s


def test_unknown_rates_give_no_time() -> None:
    assert estimate_step_time("single", [Work()]) is None


def test_a_measured_step_sets_the_scale() -> None:
    work = [Work(roofline_s=0.1)]
    rough = estimate_step_time("single", work)
    assert rough is not None
    middle_s = (rough.low_s * rough.high_s) ** 0.5
    estimate = estimate_step_time("single", work, scale=0.3 / middle_s)
    assert estimate is not None and estimate.calibrated
    assert (
        estimate.low_s < 0.3 < estimate.high_s
        and estimate.high_s / estimate.low_s < rough.high_s / rough.low_s
    )
