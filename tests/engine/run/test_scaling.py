"""Steps that fp16's loss scaling left out are the run's, but for those that a later attempt took again."""

from __future__ import annotations

from rankdeck import events
from rankdeck.run.attempt import Attempt
from rankdeck.run.scaling import LossScalingSummary, summarize_loss_scaling

SCALE_EVENTS = [(1, 8.0), (4, 4.0), (6, 2.0), (7, 1.0), (9, 2.0)]
"""After steps 3, 5 and 6 it fell."""


def first_attempt(cut_after: int) -> Attempt:
    """Cut at step 5 once so many of its events were read."""
    one = Attempt(0)
    for place, (step, scale) in enumerate(SCALE_EVENTS):
        if place == cut_after:
            one.cut(5)
        one.scaling.add_event(events.LossScale(rank=0, step=step, scale=scale), one.last_step)
    one.cut(5)
    return one


def test_a_lower_scale_means_the_step_before_was_skipped() -> None:
    one = Attempt(0)
    assert summarize_loss_scaling([one.scaling]) is None
    for step, scale in SCALE_EVENTS:
        one.scaling.add_event(events.LossScale(rank=0, step=step, scale=scale), one.last_step)
        one.scaling.add_event(events.LossScale(rank=1, step=step, scale=scale / 7), one.last_step)
    assert list(one.scaling.skipped_steps) == [3, 5, 6]
    one.scaling.add_event(events.LossScale(rank=0, step=12, scale=float("nan")), one.last_step)
    assert summarize_loss_scaling([one.scaling]) == LossScalingSummary(2.0, 3)


def test_skipped_steps_trained_again_are_replaced_in_any_order() -> None:
    later = Attempt(1)
    later.scaling.add_event(events.LossScale(rank=0, step=6, scale=0.5), None)
    for cut_after in range(len(SCALE_EVENTS) + 1):
        one = first_attempt(cut_after)
        assert list(one.scaling.skipped_steps) == [3, 5], cut_after
        assert summarize_loss_scaling([one.scaling, later.scaling]) == LossScalingSummary(0.5, 2)
