"""Steps that fp16's loss scaling left out are the run's, but for those that a later attempt took again."""

from __future__ import annotations

from rankdeck import events
from rankdeck.run.attempt import Attempt
from rankdeck.run.scaling import LossScalingSummary, summarize_loss_scaling

SCALE_EVENTS = [(1, 8.0), (4, 4.0), (6, 2.0), (7, 1.0), (9, 2.0)]
"""After steps 3, 5 and 6 it fell."""


def first_attempt(cut_after: int) -> Attempt:
    """Cut at step 5 once so many of its events were read."""
    attempt = Attempt(0)
    for index, (step, scale) in enumerate(SCALE_EVENTS):
        if index == cut_after:
            attempt.cut(5)
        attempt.scaling.add_event(events.LossScale(rank=0, step=step, scale=scale), attempt.last_step)
    attempt.cut(5)
    return attempt


def test_a_lower_scale_means_the_step_before_was_skipped() -> None:
    attempt = Attempt(0)
    assert summarize_loss_scaling([attempt.scaling]) is None
    for step, scale in SCALE_EVENTS:
        attempt.scaling.add_event(events.LossScale(rank=0, step=step, scale=scale), attempt.last_step)
        attempt.scaling.add_event(events.LossScale(rank=1, step=step, scale=scale / 7), attempt.last_step)
    assert list(attempt.scaling.skipped_steps) == [3, 5, 6]
    attempt.scaling.add_event(events.LossScale(rank=0, step=12, scale=float("nan")), attempt.last_step)
    assert summarize_loss_scaling([attempt.scaling]) == LossScalingSummary(2.0, 3)


def test_skipped_steps_trained_again_are_replaced_in_any_order() -> None:
    later = Attempt(1)
    later.scaling.add_event(events.LossScale(rank=0, step=6, scale=0.5), None)
    for cut_after in range(len(SCALE_EVENTS) + 1):
        attempt = first_attempt(cut_after)
        assert list(attempt.scaling.skipped_steps) == [3, 5], cut_after
        assert summarize_loss_scaling([attempt.scaling, later.scaling]) == LossScalingSummary(0.5, 2)
